"""Troubles that users reported about collectives, each with the right answer."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import trn_jax
from trn_jax.network import bytes_per_rank, check_groups, check_permutation, collective_time, make_mesh, ring_all_reduce, ring_permutation

TRN1, TRN2 = trn_jax.load_chip("trainium1"), trn_jax.load_chip("trainium2")
PAIRS, UNEVEN = [[0, 1], [2, 3], [4, 5], [6, 7]], [[0, 1], [2, 3, 4, 5, 6, 7]]
SPLIT, REPLICATED = jax.P("r"), jax.P()


def chip_with(bandwidth_bytes_per_s, latency_s):
    return TRN1.replace({"link.bandwidth_bytes_per_s": bandwidth_bytes_per_s, "link.latency_s": latency_s, "link.rate": 1.0})


def on_ranks(f, out=SPLIT, check_vma=True):
    return jax.shard_map(f, mesh=make_mesh(8, "r"), in_specs=SPLIT, out_specs=out, check_vma=check_vma)


def summed_in(groups):
    return on_ranks(lambda x: jax.lax.psum(x, "r", axis_index_groups=groups), check_vma=False)


def test_col_01_a_ring_all_reduce_sends_everything_twice_but_one_chunk():
    """What does a ring send, and how long does it take? https://github.com/NVIDIA/nccl-tests/issues/346."""
    sent_bytes = bytes_per_rank("all_reduce", 100_000_000, 8)
    assert sent_bytes == 14 * 12_500_000 == 175_000_000
    assert 8 * sent_bytes == 1_400_000_000
    for hop_s in (0.0, 1e-6):
        chip = chip_with(50e9, hop_s)
        assert collective_time("all_reduce", 1e8, 8, chip) == pytest.approx(3.5e-3 + 14 * hop_s)
        assert collective_time("all_reduce", 1e8, 8, chip, two_way=True) == pytest.approx(1.75e-3 + 14 * hop_s)


@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter", "all_to_all"])
def test_col_02_the_size_of_a_collective_is_the_larger_of_its_input_and_output(kind):
    """Which factor, of which size? https://github.com/NVIDIA/nccl-tests/issues/45."""
    assert bytes_per_rank(kind, 8 * 12_500_000, 8) == 87_500_000
    f = {
        "all_gather": lambda x: jax.lax.all_gather(x, "r", tiled=True),
        "reduce_scatter": lambda x: jax.lax.psum_scatter(x, "r", tiled=True),
        "all_to_all": lambda x: jax.lax.all_to_all(x, "r", 0, 0, tiled=True),
    }[kind]
    local = 3_125_000 if kind == "all_gather" else 25_000_000
    mesh = jax.sharding.AbstractMesh((8,), ("r",), axis_types=(jax.sharding.AxisType.Auto,))
    mapped = jax.shard_map(f, mesh=mesh, in_specs=jax.P("r"), out_specs=jax.P("r"), check_vma=False)
    program = trn_jax.trace(mapped, jax.ShapeDtypeStruct((8 * local,), jnp.float32))
    report = trn_jax.estimate(program, chip_with(50e9, 0.0))
    assert report.engines["collective"].busy_s == pytest.approx(87_500_000 / 50e9)  # whichever of the two it was traced from


def test_col_03_algorithms_send_the_same_bytes_and_differ_in_the_links_they_use():
    """A direct all-reduce took half as long as a ring: https://github.com/astra-sim/astra-sim/issues/296."""
    chip = chip_with(50e9, 0.0)
    one_way_s, two_way_s = (collective_time("all_reduce", 1e8, 8, chip, two_way=two_way) for two_way in (False, True))
    assert one_way_s == 2 * two_way_s == pytest.approx(175e6 / 50e9)
    mesh_s, share = collective_time("all_reduce", 1e8, 8, chip, "mesh"), 36.2 / 136.8  # of the ring's bandwidth
    assert mesh_s * share == pytest.approx(one_way_s)


def test_col_04_a_sum_in_groups_stays_in_its_group_and_takes_as_long_as_the_largest():
    """Groups were ignored and everything was summed: https://github.com/aws-neuron/aws-neuron-sdk/issues/1107."""
    x = jnp.arange(8.0)
    for groups, expected, ranks in ((PAIRS, [1, 1, 5, 5, 9, 9, 13, 13], 2), (UNEVEN, [1, 1, 27, 27, 27, 27, 27, 27], 6)):
        np.testing.assert_array_equal(trn_jax.emulate(summed_in(groups), TRN2)(x), np.float32(expected))
        for order in (groups, groups[::-1]):
            (record,) = [i for i in trn_jax.trace(summed_in(order), x).instructions if i.engine == "collective"]
            assert record.work.ranks == ranks


@pytest.mark.slow
def test_col_05_a_ring_that_rounds_at_every_hop_gives_a_sum_that_depends_on_the_chunk():
    """Gradients summed in bf16 differed from those summed in fp32: https://github.com/NVIDIA/Megatron-LM/issues/6199."""
    x = jnp.ones((8, 8)).at[0].set(256.0)
    for reduce_format, expected in (("bf16", [264, 264, 260, 260, 260, 260, 256, 256]), ("fp32", [264] * 8)):
        total = on_ranks(lambda x, fmt=reduce_format: ring_all_reduce(x[0], "r", wire_format="bf16", reduce_format=fmt)[None])(x)
        np.testing.assert_array_equal(total, np.tile(np.float32(expected), (8, 1)))


def test_col_07_groups_and_permutations_that_cannot_be_are_refused_by_rank():
    """Bad groups went through to the compiler: https://github.com/openxla/stablehlo/issues/510."""
    x = jnp.arange(8.0)
    shifted = lambda pairs: trn_jax.emulate(on_ranks(lambda x: jax.lax.ppermute(x, "r", pairs)), TRN2)
    np.testing.assert_array_equal(shifted(ring_permutation(8))(x), np.float32([7, 0, 1, 2, 3, 4, 5, 6]))
    np.testing.assert_array_equal(shifted([(3, 1)])(x), np.float32([0, 3, 0, 0, 0, 0, 0, 0]))
    for groups, message in (
        ([[0, 1], [1, 2, 3]], "Rank 1 is listed 2 times"),
        ([[0, 1], [3]], "Rank 2 is in no group"),
        ([[0, 1, 2], [3, 9]], "Rank 9 does not exist"),
    ):
        with pytest.raises(trn_jax.NetworkError, match=message):
            check_groups(groups, 4)
    with pytest.raises(trn_jax.NetworkError, match="Rank 1 receives 2 times"):
        check_permutation([(0, 1), (2, 1)], 4)


def test_col_07_what_jax_lets_pass_is_refused_with_the_line():
    x = jnp.arange(8.0)
    few = summed_in([[0, 1], [2, 3]])
    far = on_ranks(lambda x: jax.lax.ppermute(x, "r", [(0, 9)]))
    for f, message in ((few, r"'psum' at .*test_collective_cases.*Rank 4 is in no group"), (far, r"'ppermute' at .*Rank 9 does not exist")):
        with pytest.raises(trn_jax.NetworkError, match=message):
            trn_jax.trace(f, x)
        for run in (trn_jax.emulate, trn_jax.find_nonfinite, trn_jax.tap, trn_jax.cast_report):
            with pytest.raises(trn_jax.NetworkError, match=message):
                run(f, TRN2)(x)


@pytest.mark.parametrize(("first", "second", "bytes_first", "bytes_second"), [("a", "b", 1.0, 0.875), ("b", "a", 1.75, 0.125)])
def test_col_08_the_order_of_the_axes_of_a_torus_moves_bytes_but_does_not_change_their_sum(first, second, bytes_first, bytes_second):
    """(2, 8) and (8, 2) gave different times: https://github.com/astra-sim/astra-sim/issues/150."""
    mesh = jax.sharding.AbstractMesh((2, 8), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)

    def hierarchical(x):
        part = jax.lax.psum(jax.lax.psum_scatter(x, first, tiled=True), second)
        return jax.lax.all_gather(part, first, tiled=True)

    flat = lambda x: jax.lax.psum(x, ("a", "b"))
    programs = [
        trn_jax.trace(
            jax.shard_map(f, mesh=mesh, in_specs=jax.P(), out_specs=jax.P(), check_vma=False), jax.ShapeDtypeStruct((2**20,), jnp.float32)
        )
        for f in (hierarchical, flat)
    ]

    def sent(program):
        """Bytes of each collective over those of the array."""
        records = [i for i in program.instructions if i.engine == "collective"]
        size = lambda i: i.work.bytes * (i.work.ranks if i.kind == "all_gather" else 1)
        return [bytes_per_rank(i.kind, size(i), i.work.ranks) / 2**22 for i in records]

    scatter, middle, gather = sent(programs[0])
    assert (scatter + gather, middle) == (bytes_first, bytes_second)
    assert sent(programs[1]) == [1.875] == [scatter + middle + gather]
    for hop_s, steps in ((0.0, (0, 0)), (1e-6, (16, 30))):
        for program, hops in zip(programs, steps, strict=True):
            busy_s = trn_jax.estimate(program, chip_with(50e9, hop_s)).engines["collective"].busy_s
            assert busy_s == pytest.approx(1.875 * 2**22 / 50e9 + hops * hop_s)


@pytest.mark.parametrize("hop_s", [1e-6, 2e-6])
def test_col_09_a_small_message_takes_its_hops_and_a_short_way_is_chosen(hop_s):
    """A kilobyte was priced by its bytes alone: https://github.com/NVIDIA/nccl/issues/1712."""
    chip, wire_s = chip_with(100e9, hop_s), 2 * 31 / 32 * 1024 / 100e9
    assert wire_s < 0.02e-6
    assert collective_time("all_reduce", 1024, 32, chip) == pytest.approx(62 * hop_s + wire_s)
    for size_bytes, algorithm in ((1024, "mesh"), (2**20, "mesh"), (2**28, "ring")):  # documented for trn1: mesh below 1 MB
        fastest_s = collective_time("all_reduce", size_bytes, 32, TRN1, "fastest")
        assert fastest_s == collective_time("all_reduce", size_bytes, 32, TRN1, algorithm)


def test_col_16_collectives_compose_with_vmap_grad_themselves_and_groups_of_one():
    """Transformations of collectives raised: https://github.com/jax-ml/jax/issues/34249."""
    x = jnp.arange(8.0)
    total = on_ranks(lambda x: jax.lax.psum(x, "r"), out=REPLICATED)
    twice = on_ranks(lambda x: jax.lax.psum(jax.lax.psum(x, "r"), "r"), out=REPLICATED)
    rows = jnp.arange(24.0).reshape(3, 8)
    for summed in (jax.vmap(trn_jax.emulate(total, TRN2)), trn_jax.emulate(jax.vmap(total), TRN2)):
        np.testing.assert_array_equal(summed(rows), np.asarray(rows).sum(1, keepdims=True))
    assert trn_jax.emulate(twice, TRN2)(x) == 8 * 28
    np.testing.assert_array_equal(trn_jax.emulate(summed_in([[i] for i in range(8)]), TRN2)(x), x)

    weights = jnp.arange(64.0).reshape(8, 8)
    exchange = on_ranks(lambda x: jax.lax.all_to_all(x, "r", 1, 0, tiled=True), out=jax.P(None, "r"))
    loss = lambda f: lambda x: (f(x) * weights).sum()
    np.testing.assert_array_equal(trn_jax.emulate(jax.grad(loss(exchange)), TRN2)(weights), weights)
    np.testing.assert_array_equal(jax.grad(loss(trn_jax.emulate(exchange, TRN2)))(weights), weights)
