"""DMA: the rate a core gets, short rows, fixed costs, and data that SBUF still holds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from stream_costs import CHIP, cost

from trn_jax import load_chip
from trn_jax.engines.dma import moved_bytes

MIB = 2.0**20


@pytest.mark.parametrize(("name", "gigabytes_per_s"), [("trainium1", 272.0), ("trainium2", 362.5), ("inferentia2", 272.0)])
def test_large_transfers_run_at_the_smaller_of_engines_and_stack(name, gigabytes_per_s):
    occupancy_s, _, _ = cost("dma", "dma_copy", chip=load_chip(name), bytes=1024 * MIB, row_bytes=2.0**30)
    assert 1024 * MIB / occupancy_s == pytest.approx(gigabytes_per_s * 1e9, rel=1e-4)


def test_short_rows_lose_their_overhead():
    long = cost("dma", "dma_copy", bytes=1024 * MIB, row_bytes=2.0**30)
    short = cost("dma", "dma_copy", bytes=1024 * MIB, row_bytes=400.0)
    assert short[0] == pytest.approx(2 * long[0], rel=1e-5)


def test_a_tiny_transfer_costs_its_issue_and_its_latency():
    occupancy_s, latency_s, tiles = cost("dma", "dma_copy", bytes=4.0)
    assert occupancy_s == pytest.approx(CHIP.dma.issue_s)
    assert latency_s == pytest.approx(CHIP.dma.issue_s + CHIP.dma.latency_s)
    assert tiles == 1


def test_a_transpose_moves_at_nine_tenths():
    copy, transpose = (cost("dma", kind, bytes=64 * MIB)[0] for kind in ("dma_copy", "dma_transpose"))
    assert transpose == pytest.approx(copy / 0.9)


@pytest.mark.parametrize(
    ("reuse_mib", "moved_mib"), [(10, 0), (28, 0), (30, 2), (35, 7), (36, 8), (100, 8), (np.inf, 8)]
)  # 8 MiB of data, 28 MiB of SBUF
def test_only_what_sbuf_no_longer_holds_moves(reuse_mib, moved_mib):
    assert moved_bytes(8 * MIB, reuse_mib * MIB, CHIP, 0.0) == moved_mib * MIB
    occupancy_s, latency_s, _ = cost("dma", "dma_copy", bytes=8 * MIB, reuse_bytes=reuse_mib * MIB)
    everything = cost("dma", "dma_copy", bytes=8 * MIB)
    assert occupancy_s == pytest.approx(everything[0] * moved_mib / 8)
    assert latency_s - occupancy_s == pytest.approx(CHIP.dma.latency_s * moved_mib / 8)


def test_relaxed_reuse_bounds_the_exact_one_and_always_has_a_gradient_in_sbuf():
    with jax.enable_x64(True):
        reuse = jnp.linspace(8.0, 100.0, 93) * MIB
        exact, relaxed = (moved_bytes(8 * MIB, reuse, CHIP, s) for s in (0.0, 0.02))
        assert bool(jnp.all(relaxed >= exact))
        assert bool(jnp.all(relaxed <= exact + 2 * 0.02 * 8 * MIB))
        slope = jax.vmap(lambda r: jax.grad(lambda size: moved_bytes(8 * MIB, r, CHIP.replace({"sbuf.size_bytes": size}), 0.02))(28 * MIB))(
            reuse
        )
        assert bool(jnp.all(slope < 0))


def test_data_that_cannot_be_reused_all_move_and_have_a_small_gradient_under_smoothing():
    def moved(size, smoothing):
        return moved_bytes(8 * MIB, np.inf, CHIP.replace({"sbuf.size_bytes": size}), smoothing)

    assert moved(28 * MIB, 0.0) == 8 * MIB
    assert jax.grad(moved)(28 * MIB, 0.0) == 0.0
    assert -0.02 < jax.grad(moved)(28 * MIB, 0.02) < 0.0
