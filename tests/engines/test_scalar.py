"""Scalar Engine: one column per cycle, whatever the function."""

import pytest
from stream_costs import CHIP, cost, cycles


@pytest.mark.parametrize("columns", [128, 1024, 2048])
def test_an_activation_takes_a_cycle_per_column_and_the_overhead(columns):
    assert cycles("scalar", "activation", columns, function="exp") == pytest.approx(columns + CHIP.scalar.overhead_cycles)


def test_the_published_duration_of_exp_is_met():
    """AWS's DMA timelines: 398.9 ns for 128 columns and 3706.6 ns for 4096, less the 20 ns to the waiting engine."""
    for columns, published_ns in ((128, 398.9), (4096, 3706.6)):
        _, latency_s, _ = cost("scalar", "activation", elements=columns * 128, function="exp")
        assert 1e9 * latency_s == pytest.approx(published_ns, rel=0.08)


def test_reading_the_accumulator_is_a_second_short_instruction():
    extra = cycles("scalar", "activation_reduce", 1024) - cycles("scalar", "activation", 1024)
    assert extra == pytest.approx(CHIP.scalar.min_cycles)


def test_psum_is_evacuated_512_columns_at_a_time():
    evacuated = cycles("scalar", "tensor_copy", 2048, function="evacuate")
    assert evacuated == pytest.approx(2048 + 4 * CHIP.scalar.overhead_cycles)
