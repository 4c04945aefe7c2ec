"""Elasticities add up to one power of time, show what matters, and print."""

import jax.numpy as jnp
import pytest
from hand_programs import MIB, all_reduce, dma, gpsimd, matmul, program, scalar, vector

from trn_jax import ChipError, load_chip
from trn_jax.timing.elasticity import elasticity
from trn_jax.timing.latency import latency

CHIP = load_chip("trainium2")
EVERY_ENGINE = program(
    [
        (dma(2 * MIB), ()),
        (matmul(500, 640, 512), (0,)),
        (scalar(512 * 512), (1,)),
        (gpsimd(512 * 64), ()),
        (vector(512 * 512), (2, 3)),
        (None, (4,)),
        (all_reduce(MIB), (5,)),
        (dma(8 * MIB), (6,)),
    ],
    [(1, 5, [((1,), 4)])],
    {7: 30 * MIB},
    {5: 20},
)


@pytest.mark.parametrize("smoothing", [0.0, pytest.param(0.05, marks=pytest.mark.slow)])
@pytest.mark.parametrize("overlap", [None, {"engines": 0.5, "collectives": 0.0}])
def test_powers_of_time_add_up_to_one(smoothing, overlap):
    result = elasticity(EVERY_ENGINE, CHIP, smoothing=smoothing, overlap=overlap)
    assert result.time_power_sum == pytest.approx(1.0, abs=1e-9)


def test_an_elasticity_is_the_change_in_percent_per_percent():
    streams = program([(dma(64 * MIB), ()), (vector(128 * 512.0), (0,))])
    result = elasticity(streams, CHIP, overlap=1.0)
    assert set(list(result)[:3]) == {"hbm.bandwidth_bytes_per_s", "hbm.stacks", "hbm.active_cores"}
    faster = CHIP.replace({"hbm.bandwidth_bytes_per_s": 1.01 * CHIP.hbm.bandwidth_bytes_per_s})
    change = 100 * (float(latency(streams, faster, overlap=1.0)) / result.latency_s - 1)
    assert result["hbm.bandwidth_bytes_per_s"] == pytest.approx(change, rel=0.02)
    assert result["tensor.clock_hz"] == 0.0


def test_it_prints_the_largest_first_and_gives_a_table():
    result = elasticity(EVERY_ENGINE, CHIP)
    sizes = [abs(value) for value in result.values()]
    assert sizes == sorted(sizes, reverse=True)
    assert "d log t / d log p" in repr(result)
    assert "tensor.clock_hz = 2.4 GHz" in repr(result)
    row = next(row for row in result.to_table() if row["path"] == "dma.latency_s")
    assert row["unit"] == "s"
    assert row["value"] == CHIP.dma.latency_s


def test_a_batch_of_chips_is_refused():
    with pytest.raises(ChipError, match=r"one chip; tensor\.clock_hz has shape \(2,\)"):
        elasticity(EVERY_ENGINE, CHIP.replace({"tensor.clock_hz": jnp.array([1e9, 2e9])}))
