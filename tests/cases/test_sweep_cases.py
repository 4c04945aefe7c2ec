"""Troubles that users reported about sweeps, gradients of hardware and tuning, each with the right answer."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hand_programs import MIB, all_reduce, dma, gpsimd, matmul, program, scalar, vector

import trn_jax

TRN2 = trn_jax.load_chip("trainium2")
PRODUCT = program([(dma(1e6), ()), (matmul(512.0, 300.0, 512.0), (0,))])


def test_swp_01_the_gradient_in_the_size_of_the_array_is_zero_when_exact_and_points_the_right_way_when_smooth():
    """Nothing flows back through the count of tiles: https://github.com/florentLutz/FAST-OAD-CS23-HE/issues/89."""
    work = program([(matmul(128.0, 300.0, 512.0), ())])
    time_s = lambda rows, smoothing: trn_jax.latency(work, TRN2.replace({"tensor.rows": rows}), smoothing=smoothing)
    assert jax.grad(time_s)(128.0, 0.0) == 0
    step_s = time_s(150.0, 0.0) - time_s(128.0, 0.0)  # three tiles become two
    assert step_s < 0
    assert jax.grad(time_s)(128.0, 0.05) < 0
    assert 0 <= time_s(128.0, 0.05) - time_s(128.0, 0.0) <= 8 * 0.05 * time_s(128.0, 0.0)


def test_swp_04_a_thousand_chips_are_one_trace_whatever_types_their_numbers_had():
    """Every point of a sweep compiled anew: https://github.com/jax-ml/jax/issues/4274."""
    traces = []

    @jax.jit
    def time_s(chip):
        traces.append(chip)
        return trn_jax.latency(PRODUCT, chip)

    for rate in np.linspace(1e11, 1e12, 1000):
        time_s(TRN2.replace({"dma.bandwidth_bytes_per_s": rate, "tensor.rows": 64.0}))
    for rows in (128, np.float32(128), np.int64(128), np.float64(128)):
        time_s(TRN2.replace({"tensor.rows": rows}))
    assert len(traces) == 1


def test_swp_05_a_hundred_thousand_chips_go_through_in_chunks_and_come_out_as_from_one_batch():
    """A large vmap ran out of memory: https://github.com/jax-ml/jax/issues/11319."""
    rates, clocks = np.geomspace(1e11, 1e12, 250), np.linspace(1e9, 3e9, 400)
    steps = []
    axes = {"dma.bandwidth_bytes_per_s": rates, "tensor.clock_hz": clocks}
    points = trn_jax.sweep(PRODUCT, TRN2, axes, chunk=1000, progress=lambda done, of: steps.append(done))
    assert set(np.diff(steps)) <= {0, 1000}
    assert steps[-1] == 100_000
    every = {path: jnp.asarray(grid.ravel()) for path, grid in zip(axes, np.meshgrid(rates, clocks, indexing="ij"), strict=True)}
    whole = jax.vmap(lambda leaves: trn_jax.latency(PRODUCT, TRN2.replace(leaves)))(every)
    np.testing.assert_allclose(points.latency_s.values.ravel(), whole, rtol=1e-6)


def test_swp_06_tuning_in_huge_steps_stays_positive_and_ends_at_a_chip_that_can_be_built():
    """An optimizer made a bandwidth negative: https://github.com/jax-ml/jax/issues/2843."""
    free = {"dma.bandwidth_bytes_per_s": (1e9, 1e12), "tensor.rows": (32.5, 300.5)}
    price = lambda chip, latency_s: latency_s * (1 + chip.tensor.rows / 1e3)
    start = TRN2.replace({"dma.bandwidth_bytes_per_s": 1e9})
    found = trn_jax.tune(PRODUCT, start, free, objective=price, learning_rate=1.0, starts=3, steps=60)
    assert np.isfinite(found.history).all()
    assert 1e9 <= found.free["dma.bandwidth_bytes_per_s"] <= 1e12
    assert found.free["tensor.rows"] in range(33, 301)
    assert found.latency_s == pytest.approx(float(trn_jax.latency(PRODUCT, found.chip)))  # the exact model, no relaxation
    assert found.speedup > 1


def test_swp_08_whole_numbers_given_to_a_chip_can_be_differentiated():
    """jax.grad refuses whole numbers; every number of a chip is a float, and `leaf_paths` lists them."""
    chip = TRN2.replace({"tensor.rows": 128, "tensor.clock_hz": np.int64(2_400_000_000), "dma.engines": jnp.int32(16)})
    gradient = jax.grad(lambda chip: trn_jax.latency(PRODUCT, chip))(chip)
    assert gradient.tensor.clock_hz < 0
    assert len(trn_jax.leaf_paths()) == len(jax.tree.leaves(chip))
    assert all(jnp.issubdtype(jnp.result_type(leaf), jnp.floating) for leaf in jax.tree.leaves((chip, gradient)))
    with pytest.raises(trn_jax.ChipError, match=r"Did you mean 'tensor.rows'"):
        TRN2.replace({"tensor.row": 128})


def test_swp_09_a_tile_larger_than_sbuf_has_a_flag_and_no_time():
    """Constraints that nothing meets gave a plausible mapping: https://github.com/NVlabs/timeloop/issues/187."""

    @trn_jax.kernel(chip="trainium2")
    def copy(nc, x):
        out = nc.ndarray(x.shape, buffer="hbm")
        nc.store(out, nc.load(x))
        return out

    work = trn_jax.trace(copy, jax.ShapeDtypeStruct((128, 50_000), jnp.float32))  # 24.4 MiB in one tile
    points = trn_jax.sweep(work, TRN2, {"sbuf.size_bytes": [24 * MIB, 25 * MIB]})
    assert points.feasible.values.tolist() == [False, True]
    assert np.isnan(points.latency_s.values).tolist() == [True, False]
    assert points.status.attrs["flag_meanings"].split()[int(points.status[0])] == "does_not_fit_sbuf"
    report = trn_jax.estimate(work, TRN2.replace({"sbuf.size_bytes": 24 * MIB}))
    assert not report.feasible
    assert report.slack_bytes["sbuf"] == 24 * MIB - 128 * 50_000 * 4


def test_swp_11_one_chip_of_a_hundred_that_cannot_hold_the_program_leaves_ninety_nine_times():
    """One bad point ended the whole sweep: https://github.com/KULeuven-MICAS/zigzag/issues/119."""
    points = trn_jax.sweep(PRODUCT, TRN2, {"sbuf.size_bytes": [1e4, *np.linspace(1, 40, 99) * MIB]})
    assert points.status.values.astype(bool).tolist() == [True, *[False] * 99]
    assert np.isfinite(points.latency_s.values).tolist() == [False, *[True] * 99]


@pytest.mark.slow
def test_swp_12_the_gradient_is_the_central_difference_in_every_number_of_twenty_random_chips():
    """Is the gradient right? Where a maximum or ceiling has no kink nearby."""
    rows = [
        (dma(2 * MIB), ()),
        (matmul(500, 640, 512), (0,)),
        (scalar(512 * 512), (1,)),
        (gpsimd(512 * 64), ()),
        (vector(512 * 512), (2, 3)),
        (all_reduce(MIB), (4,)),
        (dma(8 * MIB), (5,)),
    ]
    work, paths, step = program(rows, reuse_bytes={6: 30 * MIB}), trn_jax.leaf_paths(), 1e-5
    log_time = lambda logs: jnp.log(trn_jax.latency(work, jax.tree.unflatten(jax.tree.structure(TRN2), jnp.exp(logs))))
    with jax.enable_x64(True):
        factors = jnp.asarray(np.random.default_rng(0).uniform(-0.2, 0.2, (20, len(paths))))
        centers = jnp.log(jnp.asarray(jax.tree.leaves(TRN2), jnp.float64))[None] + factors
        slopes = jax.jit(jax.vmap(jax.grad(log_time)))(centers)
        moved = centers[:, None, None] + step * jnp.stack([-jnp.eye(len(paths)), 0 * jnp.eye(len(paths)), jnp.eye(len(paths))])[None]
        times = np.asarray(jax.jit(jax.vmap(log_time))(moved.reshape(-1, len(paths))))
    below, here, above = np.moveaxis(times.reshape(20, 3, -1), 1, 0)
    left, right = (here - below) / step, (above - here) / step
    smooth = np.abs(left - right) < 1e-3
    assert smooth.mean() > 0.99
    np.testing.assert_allclose(np.where(smooth, slopes, 0), np.where(smooth, (left + right) / 2, 0), atol=1e-3)
    matters = (np.abs(slopes) > 1e-3).any(0)
    assert {"tensor.clock_hz", "dma.bandwidth_bytes_per_s", "sbuf.size_bytes", "link.latency_s", "vector.clock_hz"} <= set(
        np.array(paths)[matters]
    )
