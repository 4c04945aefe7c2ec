"""Laws of time, over random programs and chips and over traced functions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hand_programs import programs
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trn_jax import leaf_paths, load_chip
from trn_jax.chips.paths import get_leaf
from trn_jax.timing.bound import bound
from trn_jax.timing.latency import latency
from trn_jax.timing.schedule import schedule
from trn_jax.timing.trace import trace
from trn_jax.units import time_power

# Every one of these makes a chip faster when it grows, rows and columns by whole multiples.
FASTER = {
    "tensor.clock_hz": (1.1, 2.0),
    "tensor.rate": (1.005,),
    "tensor.rows": (2.0, 3.0, 4.0),
    "tensor.cols": (2.0, 3.0, 4.0),
    "tensor.load_speedup": (2.0,),
    "vector.clock_hz": (1.3,),
    "vector.lanes": (1.5, 2.0),
    "vector.copy_speedup_16bit": (2.0,),
    "scalar.clock_hz": (1.3,),
    "scalar.lanes": (1.5, 2.0),
    "gpsimd.clock_hz": (1.3,),
    "gpsimd.lanes": (1.5,),
    "sbuf.size_bytes": (1.05, 1.5, 3.0),
    "dma.engines": (1.5, 2.0),
    "dma.bandwidth_bytes_per_s": (1.01, 1.2, 3.0),
    "dma.rate": (1.1,),
    "hbm.bandwidth_bytes_per_s": (1.01, 1.2, 3.0),
    "link.bandwidth_bytes_per_s": (1.5,),
    "link.rate": (1.2,),
}
SLOWER = (
    "dma.latency_s",
    "dma.issue_s",
    "link.latency_s",
    "scalar.table_load_s",
    "vector.latency_cycles",
    "vector.overhead_cycles",
    "hbm.active_cores",
)
LARGEST_GROWTH = 8.0  # c of |t(s) - t(0)| <= c s t(0), for smoothing up to 0.1
SMOOTHING = (0.0, 1e-4, 1e-3, 1e-2, 0.05, 0.1)

chip_names = st.sampled_from(["trainium1", "trainium2", "trainium3"])
factors = st.lists(st.sampled_from([0.5, 0.8, 1.0, 1.25, 2.0]), min_size=6, max_size=6)
overlaps = st.sampled_from([None, 0.0, 1.0, {"engines": 1.0, "collectives": 0.0}, {"engines": 0.3, "collectives": 0.9}])
VARIED = (
    "tensor.clock_hz",
    "vector.clock_hz",
    "scalar.clock_hz",
    "dma.bandwidth_bytes_per_s",
    "hbm.bandwidth_bytes_per_s",
    "sbuf.size_bytes",
)


def varied(name, scales):
    chip = load_chip(name)
    return chip.replace({path: get_leaf(chip, path) * scale for path, scale in zip(VARIED, scales, strict=True)})


def changed(chip, changes):
    """A batch: the chip itself, then one chip for each (path, factor)."""
    values = {path: np.full(len(changes) + 1, float(get_leaf(chip, path))) for path in {path for path, _ in changes}}
    for index, (path, factor) in enumerate(changes):
        values[path][index + 1] *= factor
    return chip.replace({path: jnp.asarray(value) for path, value in values.items()})


def assert_laws(program, chip, overlap):
    """Everything that holds at smoothing 0, in one compilation per question."""
    with jax.enable_x64(True):
        changes = [(path, factor) for path, several in FASTER.items() for factor in several]
        times_s = np.asarray(latency(program, changed(chip, changes), overlap=overlap))
        for (path, factor), time_s in zip(changes, times_s[1:], strict=True):
            assert time_s <= times_s[0] * (1 + 1e-9), f"{path} times {factor} is slower: {times_s[0]} -> {time_s}"
        slower = np.asarray(latency(program, changed(chip, [(path, 2.0) for path in SLOWER]), overlap=overlap))
        assert np.all(slower[1:] >= slower[0] * (1 - 1e-9))
        result = schedule(program, chip, overlap=overlap)
        total_s = float(result.total_s)
        np.testing.assert_allclose(times_s[0], total_s, rtol=1e-12)
        assert max(map(float, result.busy_s.values())) <= total_s * (1 + 1e-9)
        assert total_s <= float(result.serial_s) * (1 + 1e-9)
        assert float(bound(program, chip)) <= total_s * (1 + 1e-9)
        end_s, start_s = np.asarray(result.end_s), np.asarray(result.start_s)
        for engine in result.busy_s:
            rows = [row for row, name in enumerate(program.structure.engines) if name == engine]
            assert np.all(start_s[rows[1:]] >= end_s[rows[:-1]] - 1e-9 * total_s)


def assert_time_scales(program, chip, overlap, smoothing):
    """In another unit of time every parameter changes by the power of time in its unit, and so does the result."""
    with jax.enable_x64(True):
        units = jnp.array([1.0, 3.7])
        scaled = chip.replace({path: get_leaf(chip, path) * units ** time_power(path) for path in leaf_paths()})
        times_s = np.asarray(latency(program, scaled, overlap=overlap, smoothing=smoothing))
        np.testing.assert_allclose(times_s[1], 3.7 * times_s[0], rtol=1e-9)


def assert_smoothing_is_bounded(program, chip):
    """From above, growing, and in proportion."""
    with jax.enable_x64(True):
        times_s = [float(latency(program, chip, smoothing=jnp.float64(s), overlap=1.0)) for s in SMOOTHING]
        assert all(later >= sooner * (1 - 1e-12) for sooner, later in zip(times_s, times_s[1:], strict=False))
        for smoothing, time_s in zip(SMOOTHING, times_s, strict=True):
            assert time_s <= times_s[0] * (1 + LARGEST_GROWTH * smoothing + 1e-12)
        np.testing.assert_allclose(times_s[0], float(latency(program, chip, overlap=1.0)), rtol=1e-12)


def few(count):
    return settings(deadline=None, max_examples=count, suppress_health_check=[HealthCheck.too_slow], derandomize=True)


@few(3)
@given(programs(max_rows=6), chip_names, factors, overlaps)
def test_laws_of_exact_time_hold_for_random_programs_and_chips(program, name, scales, overlap):
    assert_laws(program, varied(name, scales), overlap)


@few(4)
@given(programs(max_rows=5), chip_names, overlaps, st.sampled_from([0.0, 0.1]))
def test_no_constant_in_seconds_hides_in_the_code(program, name, overlap, smoothing):
    assert_time_scales(program, load_chip(name), overlap, smoothing)


@few(3)
@given(programs(max_rows=5), chip_names)
def test_relaxed_time_lies_above_the_exact_one_in_proportion(program, name):
    assert_smoothing_is_bounded(program, load_chip(name))


@pytest.mark.slow
@few(12)
@given(programs(), chip_names, factors, overlaps)
def test_laws_of_exact_time_hold_for_many_random_programs_and_chips(program, name, scales, overlap):
    assert_laws(program, varied(name, scales), overlap)


@pytest.mark.slow
@few(10)
@given(programs(), chip_names, overlaps, st.sampled_from([0.0, 0.01, 0.3]))
def test_many_random_programs_scale_with_the_unit_of_time(program, name, overlap, smoothing):
    assert_time_scales(program, load_chip(name), overlap, smoothing)


@pytest.mark.slow
@few(6)
@given(programs(), chip_names)
def test_many_relaxed_times_lie_above_the_exact_ones_in_proportion(program, name):
    assert_smoothing_is_bounded(program, load_chip(name))


def attention(x, w):
    q, k, v = jnp.split(x @ w, 3, axis=-1)
    return jax.nn.softmax(q @ k.T / 16.0) @ v


def deep(x, stacked):
    return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), ()), x, stacked)[0].sum()


def spilling(x, w):
    return ((x @ w) + (x @ w.T)) @ w


def alternating(x, w):
    def step(x, _):
        return jax.nn.softmax(jnp.tanh(x @ w)), None

    return jnp.exp(jax.lax.scan(step, x, None, length=12)[0])


FUNCTIONS = {
    "attention": (attention, [(512, 256), (256, 768)]),
    "training step of a deep network": (jax.grad(deep, argnums=1), [(256, 256), (24, 256, 256)]),
    "tables of functions that alternate": (alternating, [(256, 256), (256, 256)]),
    "more than SBUF holds": (spilling, [(4096, 4096), (4096, 4096)]),
}


@pytest.mark.parametrize("name", ["attention", *(pytest.param(name, marks=pytest.mark.slow) for name in list(FUNCTIONS)[1:])])
def test_laws_hold_for_traced_functions(name):
    function, shapes = FUNCTIONS[name]
    program = trace(function, *(jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes))
    assert_laws(program, load_chip("trainium2"), None)


@pytest.mark.slow
@pytest.mark.parametrize("name", FUNCTIONS)
def test_relaxed_laws_hold_for_traced_functions(name):
    function, shapes = FUNCTIONS[name]
    program = trace(function, *(jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes))
    assert_time_scales(program, load_chip("trainium2"), None, 0.1)
    assert_smoothing_is_bounded(program, load_chip("trainium2"))
