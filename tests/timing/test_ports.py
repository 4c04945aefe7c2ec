"""Ports that two engines share on NeuronCore-v2: their work takes turns, and more of anything is still never faster."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hand_programs import gpsimd, instruction, matmul, program, scalar, vector
from traced_programs import shape

import trn_jax as trn
from trn_jax.report.slices import engine_slices
from trn_jax.timing.schedule import schedule

V2, V3 = trn.load_chip("trainium1"), trn.load_chip("trainium2")
COLUMNS = 128 * 512.0 * 40


def separate(chip):
    return chip.replace({"vector.sbuf_port_shared": 0.0, "vector.psum_port_shared": 0.0})


def busy_s(program, chip):
    return {engine: float(seconds) for engine, seconds in schedule(program, chip, overlap=1.0).busy_s.items()}


SHARING = {
    "Vector and GpSimd in SBUF": (program([(vector(COLUMNS), ()), (gpsimd(COLUMNS), ())]), ("vector", "gpsimd")),
    "Vector and Scalar in PSUM": (
        program([(vector(COLUMNS, "tensor_copy", 1.0, "evacuate"), ()), (scalar(COLUMNS, "evacuate+tanh"), ())]),
        ("vector", "scalar"),
    ),
}
APART = {
    "Scalar in SBUF": program([(vector(COLUMNS, "tensor_copy", 1.0, "evacuate"), ()), (scalar(COLUMNS, "tanh"), ())]),
    "Vector in SBUF, Scalar in PSUM": program([(vector(COLUMNS), ()), (scalar(COLUMNS, "evacuate"), ())]),
    "GpSimd by DMA": program([(vector(COLUMNS), ()), (instruction("gpsimd", "gather", "gather", bytes=4 * COLUMNS), ())]),
    "Tensor and Vector": program([(matmul(4096, 4096, 512), ()), (vector(COLUMNS), ())]),
}


@pytest.mark.parametrize("name", SHARING)
def test_engines_that_share_a_port_take_turns_on_v2(name):
    sharing, engines = SHARING[name]
    with jax.enable_x64(True):
        both = sum(busy_s(sharing, V2)[engine] for engine in engines)
        assert trn.latency(sharing, V2, overlap=1.0) == pytest.approx(both, rel=1e-6)
        assert trn.latency(sharing, separate(V2), overlap=1.0) < 0.9 * both
        assert trn.latency(sharing, V3, overlap=1.0) == trn.latency(sharing, separate(V3), overlap=1.0)


@pytest.mark.parametrize("name", APART)
def test_engines_in_different_memories_do_not(name):
    with jax.enable_x64(True):
        assert trn.latency(APART[name], V2, overlap=1.0) == trn.latency(APART[name], separate(V2), overlap=1.0)


def test_a_loop_counts_all_its_iterations():
    rows = [(vector(COLUMNS), ()), (gpsimd(COLUMNS), ()), (None, (1,))]
    looped = program(rows, [(0, 2, ())], trips={2: 20})
    with jax.enable_x64(True):
        assert trn.latency(looped, V2, overlap=1.0) >= sum(busy_s(looped, V2).values()) * (1 - 1e-9)


@pytest.mark.parametrize("name", SHARING)
def test_schedules_are_stretched_and_sums_and_slopes_stay_exact(name):
    sharing, _ = SHARING[name]
    report = trn.estimate(sharing, V2, overlap=1.0)
    assert sum(row.seconds for row in report.critical_path) == pytest.approx(report.latency_s, rel=1e-9)
    ends = {}
    for item in engine_slices(sharing, report.schedule):
        assert item.begin_s >= ends.get(item.track, 0.0) - 1e-15
        ends[item.track] = item.end_s
    assert max(ends.values()) <= report.latency_s * (1 + 1e-9)
    values = {"vector.clock_hz": V2.vector.clock_hz, "vector.sbuf_port_shared": 0.7, "vector.psum_port_shared": 0.7}
    with jax.enable_x64(True):
        for smoothing in (0.0, 0.05):
            time = lambda values, s=smoothing: trn.latency(sharing, V2.replace(values), overlap=1.0, smoothing=s)
            slopes = jax.grad(time)(values)
            for path, value in values.items():
                step = 1e-5 * value
                difference = float(time({**values, path: value + step}) - time({**values, path: value - step})) / (2 * step)
                assert float(slopes[path]) == pytest.approx(difference, rel=1e-4, abs=1e-12)
    assert trn.elasticity(sharing, V2, smoothing=0.05).time_power_sum == pytest.approx(1, rel=1e-9)


def test_time_grows_with_the_share_and_batches_agree():
    sharing, _ = SHARING["Vector and GpSimd in SBUF"]
    with jax.enable_x64(True):
        shares = jnp.linspace(0.0, 1.0, 5)
        times = lambda share: trn.latency(sharing, V2.replace({"vector.sbuf_port_shared": share}), overlap=1.0)
        batch = times(shares)
        assert np.all(np.diff(batch) >= 0)
        np.testing.assert_allclose(jax.vmap(times)(shares), batch, rtol=1e-12)


@trn.kernel
def from_psum(nc, x, w):
    out = nc.ndarray((128, 512), jnp.float32, buffer="hbm")
    product = nc.nc_matmul(nc.load(w), nc.load(x))
    powers = nc.activation("exp", product)
    scaled = nc.tensor_scalar(product, "multiply", 2.0)
    nc.store(out, nc.tensor_tensor(powers, scaled, "add"))
    return out


def test_instructions_of_kernels_say_that_they_read_psum():
    instructions = trn.trace(from_psum, shape(128, 512), shape(128, 128)).instructions
    functions = [(i.kind, i.function) for i in instructions if i.engine in ("vector", "scalar") and i.kind != "act_table_load"]
    assert functions == [("activation", "evacuate+exp"), ("tensor_scalar", "evacuate+multiply"), ("tensor_tensor", "add")]
