"""Costs of nc_matmul and nc_transpose: the documented cycles, monotone in the hardware, gradients of the relaxed formula."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import trn_jax as trn
from trn_jax.engines.kind import Static
from trn_jax.engines.tensor import KINDS
from trn_jax.graph.instruction import Work

V2, V3 = trn.load_chip("trainium1"), trn.load_chip("trainium2")


def cost(chip, m, k, n, fmt="bf16", *, batch=1.0, kind="nc_matmul", smoothing=0.0):
    work = Work(batch=batch, m=m, k=k, n=n)
    return KINDS[kind].cost(work, chip, smoothing, Static(operand_formats=(fmt, fmt)))


def cycles(chip, *args, **kwargs):
    """Occupancy in cycles at the rate that columns really issue."""
    with jax.enable_x64(True):
        return float(cost(chip, *args, **kwargs).occupancy_s * chip.tensor.clock_hz * chip.tensor.rate)


@pytest.mark.parametrize(
    ("chip", "sizes", "fmt", "expected"),
    [
        (V3, (128, 128, 512), "bf16", 512),
        (V3, (128, 128, 512), "fp32", 2048),
        (V3, (8192, 4096, 8192), "fp32", 32_768 * 2048),
        (V3, (4096, 4096, 4096), "bf16", 32 * 32 * 4096),
        (V2, (4096, 4096, 4096), "bf16", 32 * 32 * 4096),
        (V2, (4096, 4096, 4096), "fp8_e4m3", 32 * 32 * 4096),
        (V3, (4096, 4096, 4096), "fp8_e4m3", 32 * 16 * 4096),  # two rows per PE and cycle
        (V3, (128, 128, 512), "fp8_e4m3", 512),  # nothing to put into the second row
        (V3, (4096, 4096, 4096), "tf32", 32 * 32 * 4096),
        (V3, (4096, 4096, 4096), "fp8_e3m4", 32 * 32 * 4096),
        (V3, (1, 128, 128), "bf16", 64),  # the vector moves: 64 cycles at least; as stationary operand it would take 128
        (V3, (128, 128, 1), "bf16", 64),
        (V3, (32, 128, 16), "bf16", 32),  # at least as many cycles as stationary columns, up to 64
        (V3, (127, 129, 513), "bf16", 2 * (512 + 64)),  # the last moving column is an instruction of its own
        (V3, (129, 128, 512), "bf16", 129 * 4),  # cheaper than two stationary tiles of the other side
        (V3, (0, 128, 128), "bf16", 0),
        (V3, (128, 0, 128), "bf16", 0),
    ],
)
def test_documented_cycles(chip, sizes, fmt, expected):
    assert cycles(chip, *sizes, fmt) == pytest.approx(expected, rel=1e-12)


def test_a_batch_costs_its_products_one_after_the_other():
    assert cycles(V3, 64, 64, 64, batch=7.0) == pytest.approx(7 * cycles(V3, 64, 64, 64), rel=1e-12)


@pytest.mark.parametrize(
    ("formats", "narrow", "passes"),
    [(("fp32", "bf16"), False, 4), (("bf16", "fp8_e4m3"), True, 1), (("", ""), False, 4), (("", ""), True, 1), (("fp8_e5m2", ""), True, 1)],
)
def test_the_widest_operand_sets_the_passes(formats, narrow, passes):
    static = Static(operand_formats=formats, narrow=narrow)
    seconds = KINDS["nc_matmul"].cost(Work(m=128, k=128, n=512), V3, 0.0, static).occupancy_s
    assert seconds == pytest.approx(passes * 512 / (V3.tensor.clock_hz * V3.tensor.rate), rel=1e-6)


def test_a_slow_load_of_weights_is_seen_when_little_moves():
    slow = V3.replace({"tensor.load_speedup": 0.5})
    assert cycles(slow, 1, 128, 128) == pytest.approx(128)  # now better as the moving operand's 128 columns
    assert cycles(slow, 64, 128, 64) == pytest.approx(128)
    assert cycles(slow, 512, 128, 128) == cycles(V3, 512, 128, 128)


def test_latency_adds_the_array_s_depth_and_tiles_follow_the_output():
    result = cost(V3, 4096, 128, 512, batch=3.0)
    assert result.latency_s - result.occupancy_s == pytest.approx(V3.tensor.fill_cycles / V3.tensor.clock_hz, rel=1e-4)
    assert result.tiles == 3 * 32


@pytest.mark.parametrize(
    ("sizes", "expected"), [((128, 128), 128), ((128, 1), 128), ((1, 128), 64), ((16, 128), 64), ((256, 384), 6 * 128)]
)
def test_transposes_take_a_pass_of_the_identity(sizes, expected):
    m, n = sizes
    assert cycles(V3, m, 0.0, n, kind="nc_transpose") == pytest.approx(expected)


def leaf(chip, path):
    return getattr(chip.tensor, path.removeprefix("tensor."))


SIZES = st.integers(1, 3000)


@settings(deadline=None, max_examples=100)
@given(
    m=SIZES,
    k=SIZES,
    n=SIZES,
    fmt=st.sampled_from(["fp32", "bf16", "fp8_e4m3"]),
    factor=st.integers(2, 5),
    rows=st.integers(1, 200),
    cols=st.integers(1, 200),
    path=st.sampled_from(
        ["tensor.rows", "tensor.cols", "tensor.clock_hz", "tensor.rate", "tensor.max_moving_columns", "tensor.load_speedup"]
    ),
    kind=st.sampled_from(sorted(KINDS)),
)
def test_more_hardware_is_never_slower(m, k, n, fmt, factor, rows, cols, path, kind):
    chip = V3.replace({"tensor.rows": float(rows), "tensor.cols": float(cols)})
    better = chip.replace({path: min(1.0, leaf(chip, path) * factor) if path == "tensor.rate" else leaf(chip, path) * factor})
    with jax.enable_x64(True):
        before, after = ([float(x) for x in cost(c, m, k, n, fmt, kind=kind)] for c in (chip, better))
    occupancy_s, latency_s, tiles = before
    assert after[0] <= occupancy_s * (1 + 1e-12)
    assert after[1] <= latency_s * (1 + 1e-12)
    assert after[0] / after[2] <= occupancy_s / tiles * (1 + 1e-12)


@settings(deadline=None, max_examples=40)
@given(m=SIZES, k=SIZES, n=SIZES, kind=st.sampled_from(sorted(KINDS)), smoothing=st.sampled_from([1e-3, 0.05, 0.3]))
def test_relaxed_time_grows_with_smoothing_from_the_exact_one(m, k, n, kind, smoothing):
    with jax.enable_x64(True):
        exact, relaxed, more = (float(cost(V3, m, k, n, kind=kind, smoothing=s).occupancy_s) for s in (0.0, smoothing, 1.5 * smoothing))
    assert exact <= relaxed * (1 + 1e-12)
    assert relaxed <= more * (1 + 1e-12)
    assert relaxed <= exact * (1 + 8 * smoothing)


@pytest.mark.parametrize("sizes", [(256, 384, 1024), (300, 70, 40), (1, 128, 128)])
@pytest.mark.parametrize("path", ["tensor.rows", "tensor.cols", "tensor.clock_hz", "tensor.min_columns", "tensor.max_moving_columns"])
def test_gradients_equal_finite_differences_of_the_relaxed_time(sizes, path):
    with jax.enable_x64(True):
        log = np.log(leaf(V3, path))
        seconds = lambda log: cost(V3.replace({path: jnp.exp(log)}), *sizes, smoothing=0.1).occupancy_s
        step = 1e-5
        difference = float(seconds(log + step) - seconds(log - step)) / (2 * step)
        gradient, total = float(jax.grad(seconds)(log)), float(seconds(log))
    assert gradient == pytest.approx(difference, rel=1e-4, abs=1e-9 * total)
    assert gradient < 0 or path == "tensor.min_columns" and gradient > 0


def test_costs_batch_over_records_and_chips():
    with jax.enable_x64(True):
        rows = jnp.asarray([64.0, 128.0])
        seconds = jax.vmap(lambda r: cost(V3.replace({"tensor.rows": r}), jnp.asarray([128.0, 512.0, 1000.0]), 512.0, 512.0).occupancy_s)(
            rows
        )
        assert seconds.shape == (2, 3)
        np.testing.assert_allclose(seconds[0], 2 * seconds[1])
