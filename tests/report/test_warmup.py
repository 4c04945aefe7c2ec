import pytest

import trn_jax
from trn_jax.report.slices import Slice
from trn_jax.report.warmup import warmup_s

US = 1e-6


@pytest.fixture(scope="module")
def chip():
    return trn_jax.load_chip("trainium2").replace({"tensor.warmup_share": 0.5, "tensor.warmup_s": 4 * US})


def busy(begin_us, duration_us, engine="tensor", iterations=1.0, interval_us=0.0):
    return Slice(engine, 0, "x", "nc_matmul", begin_us * US, duration_us * US, iterations, interval_us * US)


def test_long_work_loses_the_warmup_once(chip):
    # 4 us at half the clock do what 2 us at the full one do.
    assert warmup_s([busy(0, 100)], chip) == pytest.approx(2 * US)


def test_work_shorter_than_the_warmup_takes_twice_as_long(chip):
    assert warmup_s([busy(0, 1.5)], chip) == pytest.approx(1.5 * US)


def test_a_short_gap_keeps_the_engine_warm_and_a_long_one_does_not(chip):
    assert warmup_s([busy(0, 100), busy(101.9, 100)], chip) == pytest.approx(2 * US)
    assert warmup_s([busy(0, 100), busy(102.1, 100)], chip) == pytest.approx(4 * US)


def test_every_iteration_of_a_loop_with_long_gaps_begins_cold(chip):
    first, others = busy(0, 1), busy(1, 9, iterations=9.0, interval_us=10.0)
    assert warmup_s([first, others], chip) == pytest.approx(10 * US)
    tight = busy(1, 9, iterations=9.0, interval_us=2.0)
    assert warmup_s([first, tight], chip) == pytest.approx(2 * US)


def test_other_engines_and_chips_without_warmup_lose_nothing(chip):
    assert warmup_s([busy(0, 100, "vector")], chip) == 0.0
    assert warmup_s([busy(0, 100)], chip.replace({"tensor.warmup_share": 1.0})) == 0.0
