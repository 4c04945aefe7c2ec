"""Closed forms: figures worked out by hand, limits, and derivatives with respect to the link."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trn_jax.chips import load_chip
from trn_jax.errors import NetworkError
from trn_jax.network import bytes_per_rank, collective_time, ring_bytes_per_rank, ring_time


def chip_with(**link):
    chip = load_chip("trainium1")
    return dataclasses.replace(chip, link=dataclasses.replace(chip.link, rate=1.0, **link))


def test_hundred_megabytes_over_eight_ranks():
    assert ring_bytes_per_rank(100_000_000, 8) == 175_000_000
    chip = chip_with(bandwidth_bytes_per_s=50e9, latency_s=0.0)
    assert collective_time("all_reduce", 100_000_000, 8, chip) == pytest.approx(3.5e-3, rel=1e-12)
    assert collective_time("all_reduce", 100_000_000, 8, chip, two_way=True) == pytest.approx(1.75e-3, rel=1e-12)
    assert ring_time(100_000_000, 8, 1e-6, 50e9) == pytest.approx(3.5e-3 + 14e-6, rel=1e-12)


@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter", "all_to_all"])
def test_one_phase_sends_all_chunks_but_one(kind):
    chunk_bytes, ranks = 12_500_000, 8
    assert bytes_per_rank(kind, ranks * chunk_bytes, ranks) == 7 * chunk_bytes
    chip = chip_with(bandwidth_bytes_per_s=50e9, latency_s=1e-6)
    assert collective_time(kind, ranks * chunk_bytes, ranks, chip) == pytest.approx(1.75e-3 + 7e-6, rel=1e-12)


@pytest.mark.parametrize("hop_s", [1e-6, 2e-6])
def test_small_messages_pay_for_hops(hop_s):
    chip = chip_with(bandwidth_bytes_per_s=100e9, latency_s=hop_s)
    wire_s = 2 * 31 / 32 * 1024 / 100e9
    assert collective_time("all_reduce", 1024, 32, chip) == pytest.approx(62 * hop_s + wire_s, rel=1e-12)
    assert collective_time("all_reduce", 1024, 32, chip, "fastest") < 10 * hop_s


def test_ring_and_mesh_send_the_same_bytes_so_only_shares_of_the_link_tell_them_apart():
    chip = chip_with(bandwidth_bytes_per_s=50e9, latency_s=0.0)
    ring_s, mesh_s = (collective_time("all_reduce", 1e8, 8, chip, algorithm) for algorithm in ("ring", "mesh"))
    assert ring_s / mesh_s == pytest.approx(36.2 / 136.8, rel=1e-12)


def test_mesh_constants_are_those_of_trainium1():
    chip = load_chip("trainium1")
    assert collective_time("all_reduce", 0, 32, chip, "mesh") == pytest.approx(0.30e-6 + 5 * 1.79e-6, rel=1e-9)


def test_a_permute_is_one_message_and_hops_lengthen_it():
    chip = chip_with(bandwidth_bytes_per_s=50e9, latency_s=1e-6)
    assert collective_time("permute", 50_000, 8, chip) == pytest.approx(2e-6, rel=1e-12)
    assert collective_time("permute", 50_000, 8, chip, mean_hops=4) == pytest.approx(5e-6, rel=1e-12)


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "permute"])
@pytest.mark.parametrize("algorithm", [None, "fastest"])
def test_one_rank_takes_no_time(kind, algorithm):
    assert collective_time(kind, 1e6, 1, load_chip("trainium2"), algorithm) == 0


@pytest.mark.parametrize(
    ("ranks", "size_bytes", "published_s"),
    [(8, 4_194_304, 133.5e-6), (8, 536_870_912, 14014.4e-6), (32, 1024, 9.1e-6), (32, 65_536, 12.5e-6), (32, 524_288, 35.9e-6)],
)
def test_the_faster_algorithm_is_near_published_times_of_trn1(ranks, size_bytes, published_s):
    predicted_s = collective_time(
        "all_reduce", size_bytes, ranks, load_chip("trainium1"), "fastest", link_share=1.0 if ranks == 32 else 0.5
    )
    assert predicted_s == pytest.approx(published_s, rel=0.07)


@pytest.mark.parametrize(("name", "size_bytes", "published_s"), [("trainium1", 33_554_432, 585e-6), ("inferentia2", 4_949_278, 91.5e-6)])
def test_two_cores_of_a_chip_are_near_published_times(name, size_bytes, published_s):
    assert collective_time("all_reduce", size_bytes, 2, load_chip(name), "cores") == pytest.approx(published_s, rel=0.05)


def test_cores_of_a_chip_start_as_a_mesh_and_go_at_a_share_of_the_dma():
    chip = load_chip("trainium1")
    assert collective_time("all_reduce", 0, 2, chip, "cores") == pytest.approx(2.09e-6, rel=1e-9)
    for kind in ("all_reduce", "all_gather", "permute"):
        slope_s = collective_time(kind, 57.2e6, 2, chip, "cores") - collective_time(kind, 0, 2, chip, "cores")
        assert slope_s == pytest.approx(bytes_per_rank(kind, 57.2e6, 2) / 57.2e9, rel=1e-9)
    gradient = jax.grad(lambda chip: collective_time("all_reduce", 1e8, 2, chip, "cores"))(chip)
    assert gradient.dma.bandwidth_bytes_per_s < 0 < gradient.link.latency_s
    assert gradient.link.bandwidth_bytes_per_s == 0


@settings(deadline=None, max_examples=30)
@given(
    kind=st.sampled_from(["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "permute"]),
    algorithm=st.sampled_from(["ring", "fastest"]),
    size_bytes=st.floats(0, 1e10),
    ranks=st.integers(1, 64),
    gain=st.floats(1, 100),
)
def test_more_bandwidth_is_never_slower_and_never_beats_the_bytes(kind, algorithm, size_bytes, ranks, gain):
    times = [
        collective_time(kind, size_bytes, ranks, chip_with(bandwidth_bytes_per_s=g * 50e9, latency_s=1e-6), algorithm) for g in (1.0, gain)
    ]
    assert times[1] <= times[0]
    if ranks > 1:
        assert times[0] >= bytes_per_rank(kind, size_bytes, ranks) / 50e9


@pytest.mark.parametrize("algorithm", ["ring", "mesh", "fastest"])
def test_elasticities_of_the_link_add_up_to_the_power_of_time(algorithm):
    chip = load_chip("trainium1")

    def log_time(log_link):
        link = jax.tree.map(jnp.exp, log_link)
        return jnp.log(collective_time("all_reduce", 4e6, 8, dataclasses.replace(chip, link=link), algorithm, smoothing=0.1))

    elasticity = jax.grad(log_time)(jax.tree.map(jnp.log, chip.link))
    assert elasticity.latency_s - elasticity.bandwidth_bytes_per_s == pytest.approx(1, rel=1e-5)
    assert elasticity.rate == pytest.approx(float(elasticity.bandwidth_bytes_per_s), rel=1e-5)


def test_leaves_and_sizes_may_be_batches_or_tracers():
    chip = load_chip("trainium1")
    bandwidths = jnp.array([1e11, 2e11])

    def time_of(bandwidth, size_bytes, ranks):
        link = dataclasses.replace(chip.link, bandwidth_bytes_per_s=bandwidth)
        return collective_time("all_reduce", size_bytes, ranks, dataclasses.replace(chip, link=link), "fastest")

    mapped = jax.jit(jax.vmap(time_of, in_axes=(0, None, None)))(bandwidths, 1e8, 8.0)
    assert np.allclose(mapped, [time_of(b, 1e8, 8) for b in (1e11, 2e11)], rtol=1e-6)
    assert np.allclose(time_of(bandwidths, 1e8, 8), mapped, rtol=1e-6)


def test_the_choice_is_smooth_in_size_under_smoothing_and_within_its_bound():
    chip, sizes = load_chip("trainium1"), np.geomspace(1e5, 1e8, 13)
    time_of = partial(collective_time, "all_reduce", ranks=8, chip=chip, algorithm="fastest", link_share=0.5)
    hard = np.array([time_of(size) for size in sizes])
    soft = np.array([time_of(size, smoothing=0.2) for size in sizes])
    assert (soft >= hard * (1 - 1e-6)).all()
    assert (soft <= hard * (1 + 0.1 + 1e-6)).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda chip: collective_time("allreduce", 1.0, 2, chip), "Did you mean 'all_reduce'"),
        (lambda chip: collective_time("all_reduce", 1.0, 2, chip, "rings"), "Did you mean 'ring'"),
        (lambda chip: collective_time("all_gather", 1.0, 2, chip, "mesh"), "known for all_reduce only"),
        (lambda chip: collective_time("all_reduce", 1.0, 8, chip, "cores"), "8 ranks are no cores of one trainium1, which has 2"),
        (lambda chip: collective_time("all_reduce", 1.0, 0, chip), "at least 1 rank, got 0"),
        (lambda chip: ring_bytes_per_rank(-1, 2), "cannot be negative"),
        (lambda chip: ring_time(1, 0, 0.0, 1.0), "at least 1 rank"),
        (lambda chip: collective_time("all_reduce", 1.0, 2, "trainium1"), "takes a Chip, but got 'trainium1'"),
    ],
    ids=["kind", "algorithm", "mesh", "cores", "ranks", "size", "ring_time", "name of a chip"],
)
def test_impossible_questions_are_refused(call, message):
    with pytest.raises(NetworkError, match=message):
        call(load_chip("trainium1"))
