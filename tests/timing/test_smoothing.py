"""Soft operators: hard at zero, never below, monotone in smoothing, finite gradients that equal finite differences."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trn_jax.timing.smoothing import smooth_ceil, smooth_max, smooth_max_over, smooth_min, smooth_relu, width

times = st.integers(0, 10000).map(lambda n: n / 1000)
widths = st.integers(0, 5000).map(lambda n: n / 1000)


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


@settings(deadline=None, max_examples=50)
@given(times, times, widths, widths)
def test_soft_maximum_and_minimum_bound_the_hard_one_from_above_and_grow_with_width(a, b, low, more):
    high = low + more
    for soft, hard in ((smooth_max, max), (smooth_min, min)):
        values = [float(soft(jnp.float64(a), jnp.float64(b), w)) for w in (0.0, low, high)]
        assert values[0] == hard(a, b)
        assert values[0] - 1e-12 <= values[1] <= values[2] + 1e-12
        assert values[2] <= hard(a, b) + high / 2 + 1e-12


@settings(deadline=None, max_examples=50)
@given(times, times, widths)
def test_soft_maximum_scales_with_the_unit(a, b, w):
    np.testing.assert_allclose(smooth_max(3e-6 * a, 3e-6 * b, 3e-6 * w), 3e-6 * smooth_max(a, b, w), rtol=1e-12, atol=1e-18)


@pytest.mark.parametrize("w", [0.0, 0.3])
@pytest.mark.parametrize("operator", [smooth_max, smooth_min])
def test_gradient_at_a_tie_is_half_and_half_also_for_a_traced_width(operator, w):
    gradient = jax.jit(jax.grad(operator, argnums=(0, 1)))(2.0, 2.0, w)
    np.testing.assert_array_equal(gradient, (0.5, 0.5))


def test_relu_at_zero_has_a_finite_gradient_for_a_traced_zero_width():
    assert jax.jit(jax.grad(smooth_relu))(0.0, 0.0) == 0.5


@settings(deadline=None, max_examples=100)
@given(st.integers(1, 5000), st.integers(1, 300), st.floats(0.0, 1.0))
def test_ceiling_is_exact_for_whole_sizes_and_within_smoothing_of_it(size, rows, smoothing):
    hard = -(-size // rows)
    assert float(smooth_ceil(size * (1.0 / rows), 0.0, 1.0 / rows)) == hard  # the reciprocal adds a rounding error
    soft = float(smooth_ceil(jnp.float64(size / rows), jnp.float64(smoothing), 1.0 / rows))
    assert hard - 1e-9 <= soft <= hard * (1 + smoothing) + 1e-9


def test_ceiling_is_exact_in_float32_for_whole_sizes():
    size = np.arange(1, 20000, dtype=np.float32)
    for rows in (96, 128, 130, 384):
        counts = smooth_ceil(jnp.asarray(size) * np.float32(1 / rows), 0.0, np.float32(1 / rows))
        np.testing.assert_array_equal(counts, np.ceil(size.astype(np.float64) / rows))


@pytest.mark.parametrize("size", [128, 384, 300, 127, 129])
def test_ceiling_gradient_equals_the_finite_difference_also_at_exact_multiples(size):
    def pieces(rows, smoothing):
        return smooth_ceil(size / rows, smoothing, 1.0 / rows)

    for smoothing in (0.0, 0.1):
        step = 1e-4
        difference = (pieces(128.0 + step, smoothing) - pieces(128.0 - step, smoothing)) / (2 * step)
        gradient = jax.grad(pieces)(128.0, smoothing)
        np.testing.assert_allclose(gradient, difference, rtol=1e-6, atol=1e-12)
        assert (gradient < 0) == (smoothing > 0)


def test_ceiling_has_no_jump_under_smoothing_and_never_falls():
    x = jnp.linspace(0.0, 4.0, 40001)
    relaxed, hard = smooth_ceil(x, 1e-9, 0.25), smooth_ceil(x, 0.0, 0.25)
    assert float(jnp.max(jnp.diff(relaxed))) < 2e-3
    assert float(jnp.min(jnp.diff(relaxed))) >= 0.0
    assert float(jnp.min(relaxed - hard)) >= -1e-12
    slope = jax.vmap(jax.grad(lambda y: smooth_ceil(y, 1e-9, 0.25)))(x)
    assert float(jnp.max(jnp.abs(jnp.diff(slope)))) < 0.01 * float(jnp.max(slope))


@settings(deadline=None, max_examples=20)
@given(st.lists(times, min_size=1, max_size=9), widths)
def test_maximum_over_many_lies_within_half_a_width(values, w):
    soft = float(smooth_max_over(jnp.array(values), w))
    assert max(values) - 1e-12 <= soft <= max(values) + w / 2 + 1e-12
    assert float(smooth_max_over(jnp.array(values), 0.0)) == max(values)


def test_width_of_a_concrete_zero_stays_concrete():
    assert width(0.0, jnp.float64(3.0)) == 0.0
    assert isinstance(width(0, jnp.float64(3.0)), float)
    assert float(width(0.5, jnp.float64(3.0))) == 1.5
