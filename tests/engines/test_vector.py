"""Vector Engine: long and short instructions (their cycles are in test_documented_cycles), and softmax in the chip's instructions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from stream_costs import CHIP, cost, cycles

from trn_jax import FormatError, engines, load_chip
from trn_jax.engines.vector import KINDS

N = 512


def test_a_short_instruction_takes_the_shortest_interval():
    assert cycles("vector", "tensor_scalar", 1) == CHIP.vector.min_cycles


@pytest.mark.parametrize(("function", "widest"), [("cast", 2048), ("evacuate", 512)])
def test_long_data_are_several_instructions(function, widest):
    many = cycles("vector", "tensor_copy", 8 * widest, function=function)
    assert many == pytest.approx(8 * widest + 8 * CHIP.vector.overhead_cycles)
    assert cost("vector", "tensor_copy", function=function, elements=8 * widest * 128)[2] == 8


def test_results_are_visible_a_fixed_latency_later():
    occupancy_s, latency_s, _ = cost("vector", "tensor_tensor", elements=N * 128, operands=2)
    assert latency_s - occupancy_s == pytest.approx(CHIP.vector.latency_cycles / CHIP.vector.clock_hz)


@pytest.mark.parametrize("kind", KINDS)
def test_more_lanes_and_clock_are_never_slower_and_no_tile_comes_later(kind):
    for elements in (1.0, 1e4, 1e6, 3e6):
        before = cost("vector", kind, elements=elements, operands=2)
        for path, factor in (("vector.lanes", 1.3), ("vector.lanes", 2.0), ("vector.clock_hz", 1.5)):
            unit = getattr(CHIP.vector, path.split(".")[1])
            after = cost("vector", kind, chip=CHIP.replace({path: factor * unit}), elements=elements, operands=2)
            assert after[0] <= before[0] * (1 + 1e-12)
            assert after[1] - after[0] <= (before[1] - before[0]) * (1 + 1e-9)
            assert after[0] / after[2] <= before[0] / before[2] * (1 + 1e-12)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_softmax_is_that_of_jax_rounded_once(dtype):
    x = jax.random.normal(jax.random.key(0), (3, 5, 200)).astype(dtype)
    y = engines.vector.softmax(x, CHIP)
    assert y.dtype == dtype
    exact = jax.nn.softmax(x.astype(jnp.float32))
    tolerance = 2.0**-8 if dtype == jnp.bfloat16 else 1e-6
    np.testing.assert_allclose(y.astype(jnp.float32), exact, rtol=tolerance)
    np.testing.assert_array_equal(engines.vector.softmax(x, load_chip("ideal")), y)


def test_softmax_stays_finite_where_exponentials_would_overflow_and_has_its_gradient():
    x = jnp.array([[1e4, 1e4 - 1.0, -1e4]])
    np.testing.assert_allclose(engines.vector.softmax(x, CHIP), jax.nn.softmax(x), rtol=1e-6)
    y = jnp.array([0.3, -1.0, 2.0])
    gradient = jax.jacobian(lambda y: engines.vector.softmax(y, CHIP))(y)
    np.testing.assert_allclose(gradient, jax.jacobian(jax.nn.softmax)(y), atol=1e-6)


def test_softmax_names_what_it_does_not_take():
    with pytest.raises(TypeError, match="Got 'trainium2' where a Chip is needed.*load_chip"):
        engines.vector.softmax(jnp.ones(3), "trainium2")
    with pytest.raises(FormatError, match="floating point values, but got int32"):
        engines.vector.softmax(jnp.arange(3), CHIP)
