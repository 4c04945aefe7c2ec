"""GpSimd Engine: documented 150 + N, and the assumed costs of what nothing else does."""

import pytest
from stream_costs import CHIP, cost, cycles

from trn_jax.engines.gpsimd import KINDS


@pytest.mark.parametrize("kind", ["iota", "affine_select"])
def test_index_generation_takes_150_cycles_and_one_per_column(kind):
    assert cycles("gpsimd", kind, 512) == pytest.approx(150 + 512)


def test_integer_arithmetic_passes_over_every_operand():
    assert cycles("gpsimd", "tensor_tensor", 512, operands=2) == pytest.approx(150 + 1024)


def test_topk_takes_four_cycles_per_element_of_a_core_and_k():
    occupancy_s, _, _ = cost("gpsimd", "topk", elements=8 * 16 * 100, k=7)
    assert occupancy_s * CHIP.gpsimd.clock_hz == pytest.approx(4 * 16 * 100 + 7 + 150)


def test_sorting_longer_rows_takes_more_passes():
    short = cycles("gpsimd", "sort", 512, rows=512 * 128 / 64)
    long = cycles("gpsimd", "sort", 512, rows=512 * 128 / 1024)
    assert (short - 150) / 512 == pytest.approx(6 * 7 / 2)
    assert (long - 150) / 512 == pytest.approx(10 * 11 / 2)


def test_gathering_short_rows_is_slower_than_long_ones_and_waits_for_dma():
    short = cost("gpsimd", "gather", bytes=2.0**20, row_bytes=256.0)
    long = cost("gpsimd", "gather", bytes=2.0**20, row_bytes=16384.0)
    assert short[0] > 2 * long[0]
    assert long[1] - long[0] == pytest.approx(CHIP.dma.latency_s)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_free(kind):
    assert cost("gpsimd", kind, elements=1.0, bytes=4.0)[0] > 0
