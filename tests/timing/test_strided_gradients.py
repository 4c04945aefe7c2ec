"""Gradients of strided convolutions: a schedule multiplies no zeros that JAX inserts between the cotangents."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from traced_programs import shape

from trn_jax.chips import load_chip
from trn_jax.emulate import emulate
from trn_jax.report.estimate import estimate
from trn_jax.timing.latency import latency
from trn_jax.timing.trace import trace

NHWC = ("NHWC", "HWIO", "NHWC")
CHIP = load_chip("trainium2")


def convolution(stride, padding, x, w):
    return lax.conv_general_dilated(x, w, (stride, stride), padding, dimension_numbers=NHWC)


def input_gradient(stride, padding):
    """The cotangent as an argument, so that the product of the forward pass is dead."""

    def f(cotangent, x, w):
        return jax.vjp(lambda x: convolution(stride, padding, x, w), x)[1](cotangent)[0]

    return f


@pytest.mark.parametrize(("window", "stride"), [(1, 2), (2, 2), (3, 2), (3, 3), (7, 4)])
def test_the_gradient_has_the_flops_of_the_convolution(window, stride):
    x, w = shape(8, 56, 56, 128, dtype=jnp.bfloat16), shape(window, window, 128, 256, dtype=jnp.bfloat16)
    forward = lambda x, w: convolution(stride, "SAME", x, w)
    y = jax.eval_shape(forward, x, w)
    program = trace(input_gradient(stride, "SAME"), y, x, w)
    assert program.flops == pytest.approx(trace(forward, x, w).flops, rel=0.1)  # edges differ


def test_no_taps_are_lost_where_windows_do_not_overlap():
    x, w = shape(8, 56, 56, 128), shape(2, 2, 128, 256)
    forward = lambda x, w: convolution(2, "VALID", x, w)
    assert trace(input_gradient(2, "VALID"), shape(8, 28, 28, 256), x, w).flops == trace(forward, x, w).flops


def test_a_strided_gradient_takes_no_longer_than_its_phases():
    """A window of 3 by 3 in steps of 2 has phases of 4, 2, 2 and 1 positions."""
    x, w, y = (
        shape(8, 56, 56, 128, dtype=jnp.bfloat16),
        shape(3, 3, 128, 128, dtype=jnp.bfloat16),
        shape(8, 28, 28, 128, dtype=jnp.bfloat16),
    )
    tensor_s = estimate(trace(input_gradient(2, "SAME"), y, x, w), CHIP).engines["tensor"].busy_s
    rows = 8 * 28 * 28
    phases_s = sum(
        estimate(trace(jnp.matmul, shape(rows, taps * 128, dtype=jnp.bfloat16), shape(taps * 128, 128, dtype=jnp.bfloat16)), CHIP)
        .engines["tensor"]
        .busy_s
        for taps in (4, 2, 2, 1)
    )
    assert tensor_s == pytest.approx(phases_s, rel=0.02)


def test_a_larger_step_is_never_slower():
    """The same image and window: fewer outputs, fewer multiplications in both directions."""
    x, w = shape(8, 48, 48, 128, dtype=jnp.bfloat16), shape(4, 4, 128, 128, dtype=jnp.bfloat16)
    seconds = []
    for stride in (1, 2, 4):
        y = jax.eval_shape(lambda x, w: convolution(stride, "SAME", x, w), x, w)  # noqa: B023
        seconds.append(float(latency(trace(input_gradient(stride, "SAME"), y, x, w), CHIP)))
    assert seconds == sorted(seconds, reverse=True)


def test_values_are_as_before():
    x = jax.random.normal(jax.random.key(0), (2, 7, 7, 3))
    w = jax.random.normal(jax.random.key(1), (3, 3, 3, 4))
    f = jax.grad(lambda x, w: jnp.sum(jnp.sin(convolution(2, "SAME", x, w))))
    ideal = emulate(f, load_chip("ideal"), fidelity="fused")
    np.testing.assert_allclose(ideal(x, w), f(x, w), rtol=1e-5, atol=1e-5)
