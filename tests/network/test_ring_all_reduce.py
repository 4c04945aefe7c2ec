"""Values of the ring: the same bits on every rank, exact where it can be, rounded where the formats say so."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from jax.sharding import PartitionSpec as P

from trn_jax.errors import FormatError, NetworkError
from trn_jax.network import make_mesh, ring_all_reduce
from trn_jax.numerics import get_format

FORMATS = ("fp32", "tf32", "bf16", "fp16", "fp8_e4m3", "fp8_e4m3fn", "fp8_e5m2", "fp8_e3m4")


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def ring_on_one_device(x_R, **options):
    """The ring over a vmapped axis: many ranks without devices."""
    return np.asarray(jax.jit(jax.vmap(lambda x: ring_all_reduce(x, "r", **options), axis_name="r"))(x_R))


@pytest.fixture
def hot_rank():
    """Eight chunks of one element; rank 0 holds 256, the others 1: the sum is 263."""
    x = np.ones((8, 8), np.float32)
    x[0] = 256
    return x


@pytest.mark.parametrize("wire", ["bf16", "fp32"])
def test_bf16_sums_depend_on_the_chunk(on_ranks, hot_rank, wire):
    got = on_ranks(partial(ring_all_reduce, axis_name="r", wire_format=wire, reduce_format="bf16"), hot_rank)
    assert (got == np.array([264, 264, 260, 260, 260, 260, 256, 256])[None]).all()


def test_fp32_sums_round_once_to_the_bf16_wire(on_ranks, hot_rank):
    got = on_ranks(partial(ring_all_reduce, axis_name="r", wire_format="bf16", reduce_format="fp32"), hot_rank)
    assert (got == 264).all()


def test_fp32_wire_is_exact_and_keeps_the_dtype_of_its_input(on_ranks, hot_rank):
    ring = partial(ring_all_reduce, axis_name="r", wire_format="fp32")
    assert (on_ranks(ring, hot_rank) == 263).all()
    in_bf16 = on_ranks(ring, hot_rank.astype(jnp.bfloat16))
    assert in_bf16.dtype == jnp.bfloat16
    assert (in_bf16.astype(np.float32) == 264).all()


def test_bf16_parts_summed_in_fp32_equal_an_fp32_ring_rounded_at_its_end():
    x = normal(5, 23).astype(jnp.bfloat16)
    assert (ring_on_one_device(x, wire_format="bf16") == ring_on_one_device(x, wire_format="fp32")).all()


@pytest.mark.parametrize("check_vma", [True, False], ids=["vma", "no_vma"])
@pytest.mark.parametrize("two_way", [False, True], ids=["one_way", "two_way"])
@pytest.mark.parametrize(("wire", "reduce"), [("bf16", "fp32"), ("bf16", "bf16"), ("fp8_e5m2", "bf16")])
def test_all_ranks_end_with_the_same_bits(on_ranks, bits, wire, reduce, two_way, check_vma):
    ring = partial(ring_all_reduce, axis_name="r", wire_format=wire, reduce_format=reduce, two_way=two_way)
    got = bits(on_ranks(ring, normal(4, 3, 5), check_vma=check_vma))
    assert (got == got[:1]).all()


@pytest.mark.parametrize("check_vma", [True, False], ids=["vma", "no_vma"])
def test_result_is_replicated_like_that_of_psum(replicated_out, check_vma):
    x = np.arange(28.0, dtype=np.float32).reshape(4, 7)
    ring = replicated_out(lambda v: ring_all_reduce(v, "r", "fp32"), 4, check_vma=check_vma)
    psum = replicated_out(lambda v: lax.psum(v, "r"), 4, check_vma=check_vma)
    assert (np.asarray(jax.jit(ring)(x)) == np.asarray(jax.jit(psum)(x))).all()


def test_runs_without_jit(on_ranks):
    x = normal(2, 3)
    got = on_ranks(lambda v: ring_all_reduce(v, "r", "fp32"), x, jit=False)
    assert (got == x.sum(0, keepdims=True)).all()


@settings(deadline=None, max_examples=12)
@given(ranks=st.integers(1, 5), size=st.integers(0, 11), two_way=st.booleans(), parts=st.booleans(), seed=st.integers(0, 99))
def test_whole_numbers_are_summed_exactly_whatever_the_size(ranks, size, two_way, parts, seed):
    x = np.random.default_rng(seed).integers(-8, 9, (ranks, size)).astype(np.float32)  # all sums fit into bf16
    got = ring_on_one_device(x, wire_format="bf16", reduce_format="fp32" if parts else "bf16", two_way=two_way)
    assert got.shape == x.shape
    assert (got == x.sum(0, keepdims=True)).all()


@pytest.mark.parametrize("wire", FORMATS)
def test_error_stays_within_one_rounding_of_each_part_and_one_of_the_sum(wire):
    x = normal(4, 40)
    fmt = get_format(wire)
    unit, tiny = 2.0 ** -(fmt.mantissa_bits + 1), fmt.min_subnormal / 2
    exact = x.astype(np.float64).sum(0)
    parts_error = (unit * np.abs(x) + tiny + 2.0**-22 * np.abs(x)).sum(0)
    bound = parts_error + unit * (np.abs(exact) + parts_error) + tiny
    error = np.abs(ring_on_one_device(x, wire_format=wire)[0] - exact)
    assert (error <= bound).all()


def test_several_arrays_travel_as_one_bucket_per_dtype(replicated_out, permutes):
    def tree_sum(v):
        return ring_all_reduce({"w": v, "b": v[0, :2], "h": v.astype(jnp.bfloat16), "n": jnp.int32(3), "ok": v > 0}, "r", "fp32")

    x = np.arange(24.0, dtype=np.float32).reshape(4, 2, 3)
    reduced = replicated_out(tree_sum, 4)
    got = jax.jit(reduced)(x)
    assert (got["w"] == x.sum(0)).all()
    assert (got["b"] == x.sum(0)[0, :2]).all()
    assert got["h"].dtype == jnp.bfloat16
    assert int(got["n"]) == 12
    assert (got["ok"] == (x > 0).sum(0)).all()
    assert len(permutes(reduced, x)) == 3 * 2 * 3  # float32, bfloat16, int32


def test_integers_are_exact_beyond_what_the_formats_hold():
    x = np.full((3, 4), 2**24 + 1, np.int32)
    assert (ring_on_one_device(x, wire_format="bf16") == 3 * (2**24 + 1)).all()


def test_one_rank_sends_and_rounds_nothing(bits):
    x = normal(1, 9)
    assert (bits(ring_on_one_device(x, wire_format="fp8_e5m2")) == bits(x)).all()


def test_two_axes_make_one_ring_and_one_axis_of_two_reduces_within_its_groups():
    mesh = make_mesh((2, 3), ("a", "b"), devices=jax.devices("cpu"))

    def both(v):
        return ring_all_reduce(v, ("a", "b"), "fp32"), ring_all_reduce(v, "b", "fp32")

    whole, rows = jax.jit(jax.shard_map(both, mesh=mesh, in_specs=P(("a", "b")), out_specs=(P(), P("a"))))(jnp.arange(6.0))
    assert whole.tolist() == [15]
    assert rows.tolist() == [3, 12]


def test_works_inside_vmap_and_scan(on_ranks):
    x = np.arange(12.0, dtype=np.float32).reshape(4, 3)

    def repeated(v):
        def body(total, scale):
            return total + jax.vmap(lambda e: ring_all_reduce(e * scale, "r", "fp32"))(v), None

        return lax.scan(body, jnp.zeros(3), jnp.array([1.0, 2.0]))[0]

    assert (on_ranks(repeated, x) == 3 * x.sum(0, keepdims=True)).all()


def test_stochastic_rounding_is_unbiased_equal_on_all_ranks_and_new_with_every_seed():
    x = jnp.full((4, 64), 1 + 2.0**-10)  # an eighth of a bf16 step above 1

    def mean_of(seed):
        return jax.vmap(lambda v: ring_all_reduce(v, "r", "bf16", rounding="stochastic", seed=seed), axis_name="r")(x)

    sums = np.asarray(jax.jit(jax.vmap(mean_of))(jnp.arange(64, dtype=jnp.uint32)))  # [seed, rank, element]
    assert (sums == sums[:, :1]).all()
    assert len({row.tobytes() for row in sums[:, 0]}) == 64
    # three parts of variance s^2 p (1-p) with s = 2^-7, p = 1/8, then the sum in steps of 4 s (at most 4 s^2)
    standard_error = 2.0**-7 * np.sqrt(3 * 7 / 64 + 4) / np.sqrt(64 * 64)
    assert abs(sums[:, 0].mean() - 4 * (1 + 2.0**-10)) < 4 * standard_error


def test_eight_ranks_on_few_cores_finish_a_hundred_steps(on_ranks):
    x = np.ones((8, 16), np.float32)
    got = on_ranks(lambda v: lax.fori_loop(0, 100, lambda i, total: ring_all_reduce(total, "r", "fp32") / 8, v), x, check_vma=False)
    assert (got == 1).all()


def test_unbound_axis_is_named():
    with pytest.raises(NetworkError, match="No mesh axis 'r' is bound.*jax.shard_map"):
        ring_all_reduce(jnp.ones(3), "r")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"wire_format": "bf17"}, FormatError, "Did you mean 'bf16'"),
        ({"reduce_format": "float32"}, FormatError, "is called 'fp32'"),
        ({"rounding": "stochastic"}, FormatError, "none given"),
        ({"rounding": "up"}, FormatError, "Unknown rounding 'up'"),
    ],
    ids=["wire", "reduce", "seed", "rounding"],
)
def test_bad_options_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        ring_on_one_device(np.ones((2, 3), np.float32), **options)


def test_complex_numbers_are_refused():
    with pytest.raises(NetworkError, match="cannot carry complex64"):
        ring_on_one_device(np.ones((2, 3), np.complex64))
