"""latency as a function of the chip: compiled, batched, differentiated, in float64 without touching the caller's settings."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hand_programs import MIB, all_reduce, dma, matmul, program, scalar, vector

from trn_jax import AutoCast, ChipError, FormatError, ProgramError, load_chip, trace
from trn_jax.chips.paths import get_leaf, leaves_by_path
from trn_jax.timing.bound import bound
from trn_jax.timing.latency import latency
from trn_jax.timing.schedule import schedule

CHIP = load_chip("trainium2")
PROGRAM = program(
    [
        (dma(2 * MIB), ()),
        (matmul(512, 512, 512), (0,)),
        (vector(512 * 512, "tensor_copy", 1, "evacuate"), (1,)),
        (scalar(512 * 512), (2,)),
        (all_reduce(MIB), (3,)),
        (vector(512 * 512), (0, 3, 4)),
        (None, (5,)),
        (dma(MIB), (6,)),
    ],
    [(1, 6, [((1,), 5)])],
    trips={6: 12},
)
# No product: its relaxed cost is by far the largest to compile.
SMALL = program(
    [(dma(2 * MIB), ()), (scalar(512 * 512), (0,)), (vector(512 * 512), (0, 1)), (None, (2,)), (all_reduce(MIB), (3,))],
    [(1, 3, [((1,), 2)])],
    trips={3: 12},
)
TINY = program([(dma(2 * MIB), ()), (scalar(512 * 512), (0,)), (vector(512 * 512), (0, 1))])
FREE = ("tensor.clock_hz", "vector.lanes", "dma.bandwidth_bytes_per_s", "hbm.bandwidth_bytes_per_s", "link.latency_s", "tensor.rows")


def perturbed(exponents):
    """The chip with FREE parameters times 2 ** exponents."""
    return CHIP.replace({path: get_leaf(CHIP, path) * 2.0**e for path, e in zip(FREE, exponents, strict=True)})


EXPONENTS = np.random.default_rng(0).uniform(-0.5, 0.5, (len(FREE), 4)).astype(np.float32)


def test_latency_is_the_schedules_total_and_above_the_bound():
    assert latency(PROGRAM, CHIP) == schedule(PROGRAM, CHIP).total_s
    assert 0 < bound(PROGRAM, CHIP) <= latency(PROGRAM, CHIP, overlap=1.0)


def test_batched_leaves_vmap_and_a_loop_agree():
    batched = latency(PROGRAM, perturbed(jnp.asarray(EXPONENTS)))
    mapped = jax.vmap(lambda e: latency(PROGRAM, perturbed(e)))(EXPONENTS.T)
    looped = [float(latency(PROGRAM, perturbed([float(x) for x in e]))) for e in EXPONENTS.T]
    assert batched.shape == (4,)
    np.testing.assert_allclose(batched, mapped, rtol=3e-7)
    np.testing.assert_allclose(batched, looped, rtol=3e-6)


def test_leaves_broadcast_as_numpy_does():
    chips = CHIP.replace({"tensor.clock_hz": jnp.array([[1e9], [2e9]]), "vector.clock_hz": jnp.array([1e9, 2e9, 3e9])})
    times_s = latency(PROGRAM, chips)
    assert times_s.shape == (2, 3)
    single = CHIP.replace({"tensor.clock_hz": 2e9, "vector.clock_hz": 1e9})
    np.testing.assert_allclose(times_s[1, 0], latency(PROGRAM, single), rtol=1e-6)


@pytest.mark.parametrize("smoothing", [0.0, pytest.param(0.05, marks=pytest.mark.slow)])
def test_jit_vmap_and_grad_commute(smoothing):
    def time_s(e):
        return latency(TINY, perturbed(e), smoothing=smoothing)

    points, gradient = jnp.asarray(EXPONENTS.T), jax.jit(jax.grad(time_s))
    mapped = jax.jit(jax.vmap(jax.grad(time_s)))(points)
    outside = jax.vmap(gradient)(points)
    batched = jax.jit(jax.grad(lambda e: time_s(e).sum()))(points.T).T
    looped = jnp.stack([gradient(point) for point in points])
    scale = float(jnp.abs(mapped).max())
    for other in (outside, batched, looped):
        np.testing.assert_allclose(other, mapped, rtol=1e-5, atol=1e-6 * scale)


def test_gradient_is_a_chip_shaped_record():
    gradient = jax.grad(latency, argnums=1)(PROGRAM, CHIP)
    slopes = leaves_by_path(gradient)
    assert slopes["tensor.clock_hz"] < 0
    assert slopes["dma.latency_s"] > 0
    assert gradient.name == "trainium2"


@pytest.mark.parametrize("smoothing", [0.0, pytest.param(0.03, marks=pytest.mark.slow)])
def test_gradient_equals_finite_differences(smoothing):
    with jax.enable_x64(True):

        def time_us(e):
            return 1e6 * latency(PROGRAM, perturbed(e), smoothing=smoothing)

        for point in (np.zeros(len(FREE)), np.float64(EXPONENTS[:, 0])):
            point = jnp.asarray(point).at[-1].set(0.0)  # rows stay at the multiple that divides all sizes
            gradient = jax.jit(jax.grad(time_us))(point)
            steps = 1e-5 * jnp.eye(len(FREE))
            batch = jax.jit(time_us)(jnp.concatenate([point[None] + steps, point[None] - steps]).T)
            np.testing.assert_allclose(gradient, (batch[: len(FREE)] - batch[len(FREE) :]) / 2e-5, rtol=1e-5, atol=1e-7)


@pytest.mark.slow
def test_every_parameter_that_counts_matters_under_smoothing():
    resident = program([(dma(4 * MIB), ()), (matmul(512, 640, 512), (0,)), (dma(4 * MIB), (1,))], reuse_bytes={2: 8 * MIB})
    slopes = leaves_by_path(jax.jit(jax.grad(lambda chip: latency(resident, chip, smoothing=0.01)))(CHIP))
    hard = leaves_by_path(jax.jit(jax.grad(lambda chip: latency(resident, chip)))(CHIP))
    for path in ("tensor.rows", "tensor.cols", "sbuf.size_bytes", "dma.bandwidth_bytes_per_s", "hbm.bandwidth_bytes_per_s"):
        assert slopes[path] < 0, path
    assert hard["tensor.rows"] == hard["sbuf.size_bytes"] == 0.0


@pytest.mark.slow
def test_second_derivatives_in_reverse_equal_finite_differences():
    with jax.enable_x64(True):

        def time_us(e):
            return 1e6 * latency(TINY, perturbed([0.0, e, *[0.0] * (len(FREE) - 2)]), smoothing=0.05)

        slope = jax.jit(jax.grad(time_us))
        curvature = jax.jit(jax.grad(jax.grad(time_us)))(0.1)
        np.testing.assert_allclose(curvature, (slope(0.1001) - slope(0.0999)) / 2e-4, rtol=1e-4)


@pytest.mark.slow
def test_overlap_and_smoothing_are_differentiable():
    slope = jax.jit(jax.grad(lambda o: latency(SMALL, CHIP, overlap=o)))(0.5)
    np.testing.assert_allclose(slope, latency(SMALL, CHIP, overlap=1.0) - latency(SMALL, CHIP, overlap=0.0), rtol=1e-4)
    slope = jax.jit(jax.grad(lambda s: latency(SMALL, CHIP, smoothing=s)))
    assert slope(0.1) > 0
    assert np.isfinite(slope(0.0))


def test_traced_zero_smoothing_is_exact():
    np.testing.assert_allclose(jax.jit(lambda s: latency(SMALL, CHIP, smoothing=s))(0.0), latency(SMALL, CHIP), rtol=1e-6)


def test_float32_agrees_and_the_callers_precision_stays():
    exact = latency(PROGRAM, CHIP)
    assert exact.dtype == jnp.float32
    np.testing.assert_allclose(latency(PROGRAM, CHIP, dtype="float32"), exact, rtol=1e-5)
    assert jnp.zeros(1).dtype == jnp.float32
    with jax.enable_x64(True):
        assert latency(PROGRAM, CHIP).dtype == jnp.float64


def test_gradients_compiled_outside_the_x64_context_are_exact():
    def time_s(clock_ghz):
        return latency(SMALL, CHIP.replace({"scalar.clock_hz": clock_ghz * 1e9}), overlap=1.0)

    with jax.enable_x64(True):
        exact = jax.grad(time_s)(1.2)
    np.testing.assert_allclose(jax.jit(jax.grad(time_s))(1.2), exact, rtol=1e-5)
    np.testing.assert_allclose(jax.grad(jax.jit(time_s))(1.2), exact, rtol=1e-5)


def test_workloads_of_one_structure_form_a_batch():
    larger = program([(dma(4 * MIB), ()), (matmul(512, 512, 512), (0,))])
    smaller = program([(dma(MIB), ()), (matmul(128, 512, 512), (0,))])
    batch = jax.tree.map(lambda a, b: jnp.stack([a, b]), larger, smaller)
    expected = [float(latency(larger, CHIP)), float(latency(smaller, CHIP))]
    np.testing.assert_allclose(latency(batch, CHIP), expected, rtol=1e-6)
    np.testing.assert_allclose(jax.vmap(latency, in_axes=(0, None))(batch, CHIP), expected, rtol=1e-6)
    per_chip = latency(batch, CHIP.replace({"tensor.clock_hz": jnp.array([2.4e9, 1.2e9])}))
    np.testing.assert_allclose(per_chip[0], expected[0], rtol=1e-6)
    assert per_chip[1] > expected[1]


def test_whole_number_leaves_are_taken_as_floats():
    whole = dataclasses.replace(CHIP, tensor=dataclasses.replace(CHIP.tensor, rows=128, cols=128))
    assert latency(PROGRAM, whole) == latency(PROGRAM, CHIP)


def test_wrong_arguments_say_what_to_give():
    with pytest.raises(ProgramError, match=r"a function where a Program is needed.*trn_jax\.trace"):
        latency(lambda x: x, CHIP)
    with pytest.raises(ChipError, match=r"Got a str where a chip is needed.*load_chip"):
        latency(PROGRAM, "trainium2")
    with pytest.raises(ChipError, match=r"tensor\.rows is None"):
        latency(PROGRAM, dataclasses.replace(CHIP, tensor=dataclasses.replace(CHIP.tensor, rows=None)))
    with pytest.raises(ProgramError, match=r"'float64' \(exact\) or 'float32'"):
        latency(PROGRAM, CHIP, dtype="float16")
    with pytest.raises(ProgramError, match=r"smoothing = -0\.1: give 0 for exact"):
        latency(PROGRAM, CHIP, smoothing=-0.1)
    unknown = program([(vector(1.0, "tensor_tensr"), ())])
    with pytest.raises(ProgramError, match=r"vector\.tensor_tensr.*Did you mean 'vector\.tensor_tensor'"):
        latency(unknown, CHIP)


@pytest.mark.parametrize("time", [latency, bound])
def test_a_format_that_the_chip_lacks_has_no_time_on_it(time):
    blocks = trace(lambda x: x @ x, jnp.ones((4, 4)), autocast=AutoCast("matmult", "mxfp8_e4m3fn"))
    with pytest.raises(FormatError, match=r"trainium2 has no mxfp8_e4m3fn operands.*dot_general at .*test_latency\.py.*it takes fp32"):
        time(blocks, CHIP)
    assert time(blocks, load_chip("trainium3")) > 0
    assert time(blocks, load_chip("ideal")) > 0


@pytest.mark.slow
def test_forward_over_reverse_gives_second_derivatives_too():
    def time_us(e, dtype):
        return 1e6 * latency(TINY, perturbed([0.0, e, *[0.0] * (len(FREE) - 2)]), smoothing=0.05, dtype=dtype)

    with jax.enable_x64(True):
        exact = jax.jit(jax.jacfwd(jax.grad(lambda e: time_us(e, "float64"))))(0.1)
        reverse = jax.jit(jax.grad(jax.grad(lambda e: time_us(e, "float64"))))(0.1)
    np.testing.assert_allclose(exact, reverse, rtol=1e-9)
    np.testing.assert_allclose(jax.jit(jax.jacfwd(jax.grad(lambda e: time_us(e, "float32"))))(0.1), exact, rtol=1e-3)
