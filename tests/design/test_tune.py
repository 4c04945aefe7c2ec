import dataclasses
import sys

import jax.numpy as jnp
import numpy as np
import pytest
from hand_programs import matmul, program, vector

import trn_jax
from trn_jax.design.descent import _latency_gradient
from trn_jax.design.tune import tune
from trn_jax.timing.latency import latency

QUICK = {"starts": 4, "steps": 40}
FREE = {"tensor.rows": (32, 300), "tensor.cols": (32.5, 256), "hbm.bandwidth_bytes_per_s": (5e11, 6e12)}


@pytest.fixture(scope="module")
def tuned(layer, chip):
    return tune(layer, chip, FREE, **QUICK)


def test_the_result_is_better_inside_the_ranges_and_whole(tuned, layer, chip):
    assert tuned.latency_s < tuned.start_latency_s
    for path, (low, high) in FREE.items():
        assert low <= tuned.free[path] <= high
        assert tuned.chip.get(path) == tuned.free[path]
    assert tuned.free["tensor.rows"] == int(tuned.free["tensor.rows"])
    assert tuned.free["tensor.cols"] == int(tuned.free["tensor.cols"])
    assert tuned.history.shape == (40, 4)
    assert np.isfinite(tuned.history).all()


def test_times_are_exact_and_the_rest_of_the_chip_is_untouched(tuned, layer, chip):
    assert tuned.latency_s == pytest.approx(float(latency(layer, tuned.chip)), rel=1e-6)
    assert tuned.start_latency_s == pytest.approx(float(latency(layer, chip)), rel=1e-6)
    assert tuned.objective == pytest.approx(tuned.latency_s)
    assert tuned.speedup == pytest.approx(tuned.start_latency_s / tuned.latency_s)
    assert tuned.chip.replace({path: chip.get(path) for path in FREE}) == chip
    assert all(isinstance(value, float) for value in dataclasses.asdict(tuned.chip.tensor).values())


def test_without_a_price_the_largest_chip_is_as_good_as_any(tuned, layer, chip):
    largest = chip.replace({"tensor.rows": 300, "tensor.cols": 256, "hbm.bandwidth_bytes_per_s": 6e12})
    assert tuned.latency_s == pytest.approx(float(latency(layer, largest)), rel=1e-6)


def test_the_seed_decides_everything(tuned, layer, chip):
    again = tune(layer, chip, FREE, **QUICK)
    np.testing.assert_array_equal(again.history, tuned.history)
    assert again.chip == tuned.chip
    other = tune(layer, chip, FREE, seed=1, **QUICK)
    assert not np.array_equal(other.history[0, 1:], tuned.history[0, 1:])
    np.testing.assert_array_equal(other.history[0, 0], tuned.history[0, 0])


def test_an_optimum_inside_the_ranges_is_found(chip):
    # The time of one vector instruction is constant / clock, so the objective has the shape 1 / f + f / best^2: least at best.
    work = program([(vector(1e6), ())])
    best_clock_hz = 1.7e9
    found = tune(
        work,
        chip,
        {"vector.clock_hz": (1e8, 1e10)},
        objective=lambda chip, latency_s: latency_s * (1 + (chip.vector.clock_hz / best_clock_hz) ** 2),
        starts=4,
        steps=120,
    )
    assert found.free["vector.clock_hz"] == pytest.approx(best_clock_hz, rel=0.02)
    assert found.objective < found.start_objective
    assert found.history[-1].max() < 1.02 * found.objective  # every start got there by itself


def test_the_smallest_array_that_needs_the_fewest_tiles_wins_under_a_price(chip):
    # 384 rows of depth: 128 is the smallest array that needs 3 tiles, 192 for 2; price per row makes whole tiles best.
    work = program([(matmul(512.0, 384.0, 2048.0), ())])
    found = tune(
        work, chip, {"tensor.rows": (100, 300)}, objective=lambda chip, latency_s: latency_s * (1 + chip.tensor.rows / 1e4), **QUICK
    )
    assert found.free["tensor.rows"] == 192


@pytest.mark.slow
def test_huge_steps_stay_inside(layer, chip):
    found = tune(layer, chip, {"dma.bandwidth_bytes_per_s": (1e9, 1e12)}, learning_rate=1.0, starts=3, steps=60)
    assert np.isfinite(found.history).all()
    assert 1e9 <= found.free["dma.bandwidth_bytes_per_s"] <= 1e12


def test_what_does_not_matter_stays_as_it_was(chip):
    work = program([(vector(1e6), ())])
    found = tune(work, chip, {"vector.clock_hz": (5e8, 2e9), "tensor.rows": (32, 512), "dma.latency_s": (1e-7, 1e-5)}, **QUICK)
    assert found.free["tensor.rows"] == chip.tensor.rows
    assert found.free["dma.latency_s"] == chip.dma.latency_s
    assert found.free["vector.clock_hz"] == 2e9


def test_a_chip_that_is_best_already_is_kept(chip):
    work = program([(vector(1e6), ())])
    found = tune(work, chip, {"vector.clock_hz": (chip.vector.clock_hz / 4, chip.vector.clock_hz)}, **QUICK)
    assert found.chip == chip
    assert found.speedup == 1


def test_memory_stays_large_enough_for_the_tiles(product, chip):
    smallest = (128 + 512) * 128 * 4 / 2
    found = tune(
        product,
        chip,
        {"sbuf.size_bytes": (1e4, 1e8)},
        objective=lambda chip, latency_s: latency_s * chip.sbuf.size_bytes,
        **QUICK,
    )
    assert smallest <= found.free["sbuf.size_bytes"]
    with pytest.raises(trn_jax.ProgramError, match="no chip in these ranges can run the programs"):
        tune(product, chip, {"sbuf.size_bytes": (1e4, 2e4)}, **QUICK)


@pytest.mark.slow
def test_several_programs_are_tuned_together(layer, product, chip):
    programs = {"layer": layer, "product": product}
    free = {"tensor.clock_hz": (1e9, 4e9)}
    found = tune(programs, chip, free, **QUICK)
    assert set(found.latencies_s) == {"layer", "product"}
    assert found.latency_s == pytest.approx(np.sqrt(found.latencies_s["layer"] * found.latencies_s["product"]))
    only = tune(programs, chip, free, objective=lambda chip, latency_s: latency_s["product"] * chip.tensor.clock_hz**2, **QUICK)
    assert only.free["tensor.clock_hz"] == 1e9


def test_the_gradient_is_compiled_once_for_all_objectives_and_seeds(layer, chip):
    tune(layer, chip, FREE, **QUICK)
    before = _latency_gradient._cache_size()
    tune(layer, chip, FREE, objective=lambda chip, latency_s: latency_s * chip.tensor.rows, seed=3, **QUICK)
    assert _latency_gradient._cache_size() == before


def test_the_table_shows_before_and_after(tuned):
    lines = repr(tuned).splitlines()
    assert "times as fast" in lines[0]
    assert lines[1].split() == ["given", "found", "range"]
    assert lines[2].split()[:2] == ["tensor.rows", "128"]
    assert lines[4].strip().endswith("500 GB/s to 6 TB/s")


@pytest.mark.parametrize(
    ("free", "message"),
    [
        ({"tensor.row": (1, 2)}, "Did you mean 'tensor.rows'"),
        ({"name": (1, 2)}, "'name' is no number"),
        ({"tensor.rows": 64}, r"give its range as \(low, high\)"),
        ({"tensor.rows": (64, 64)}, "give 0 < low < high"),
        ({"tensor.rows": (128, 64)}, "give 0 < low < high"),
        ({"dma.latency_s": (0.0, 1e-6)}, "give 0 < low < high"),
        ({"tensor.clock_hz": (-1e9, 1e9)}, "tensor.clock_hz = -1e[+]09 is out of range"),
        ({"tensor.rows": (64.1, 64.9)}, "holds no value that can be built"),
        ({}, "give a dict of dotted paths and ranges"),
    ],
)
def test_a_bad_range_is_named(layer, chip, free, message):
    with pytest.raises(trn_jax.ChipError, match=message):
        tune(layer, chip, free)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"starts": 0}, "starts = 0"),
        ({"steps": 2.5}, "steps = 2.5"),
        ({"smoothing": (0.3, 0.0)}, "smoothing = .* both above 0"),
        ({"smoothing": 0.1}, "smoothing = 0.1"),
        ({"learning_rate": 0.0}, "learning_rate = 0.0"),
        ({"objective": "energy_j"}, "objective = 'energy_j' is not accepted"),
        ({"objective": lambda chip, latency_s: jnp.stack([latency_s, latency_s])}, r"returned float64\[2\]"),
        ({"objective": lambda chip, latency_s: latency_s * jnp.nan}, "objective of the given chip is nan"),
    ],
)
def test_a_bad_setting_is_named(layer, chip, settings, message):
    with pytest.raises(trn_jax.ProgramError, match=message):
        tune(layer, chip, FREE, **settings)


def test_budgets_and_missing_optax_say_what_to_do(layer, chip, monkeypatch):
    with pytest.raises(trn_jax.UnsupportedError, match="price what a chip costs in the objective"):
        tune(layer, chip, FREE, budget=object())
    monkeypatch.setitem(sys.modules, "optax", None)
    with pytest.raises(trn_jax.UnsupportedError, match=r"pip install 'trn_jax\[train\]'"):
        tune(layer, chip, FREE)
