"""Primitives that call other functions keep what they promise around interpreted bodies: rules, policies, platforms, lanes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import trn_jax

from programs import arrays, scanned  # isort: skip

IDEAL, TRN2 = trn_jax.load_chip("ideal"), trn_jax.load_chip("trainium2")
ALL_BF16 = trn_jax.AutoCast("all", "bf16")


def lowered(fn, *args):
    return jax.jit(fn).lower(*args).as_text()


@jax.custom_batching.custom_vmap
def sine(x):
    return jnp.sin(x)


@sine.def_vmap
def _(axis_size, batched, x):
    return jnp.cos(x), batched[0]


def tripled(x):
    return jax.custom_derivatives.linear_call(lambda r, x: r * x, lambda r, ct: 3 * r * ct, jnp.linspace(0.1, 1.1, 4), x)


def doubling(x):
    return lax.while_loop(lambda s: jnp.abs(s).sum() < 20, lambda s: s * 1.5 + 0.1, x)


def solve(a, b):
    return jnp.linalg.solve(a + 4 * jnp.eye(4), b)


MATRIX, ROWS = arrays((4, 4), (3, 4))
PROGRAMS = {
    "calls in calls": (lambda x: jax.random.beta(jax.random.key(1), jnp.exp(x), 2.0), (ROWS,)),
    "recomputation": (jax.grad(lambda w, x: scanned(x, w / 4)), arrays((3, 16, 16), (4, 16))),
    "solver": (solve, (MATRIX, ROWS[0])),
    "gradient of a solver": (jax.grad(lambda a, b: solve(a, b).sum()), (MATRIX, ROWS[0])),
    "platforms": (jnp.linalg.det, (MATRIX,)),
    "batching rule": (jax.vmap(sine), (ROWS,)),
    "linear call": (jax.grad(lambda x: tripled(x).sum()), (ROWS[0],)),
    "composite": (lax.composite(lambda x: jnp.tanh(x) + 1, name="trn.test"), (ROWS,)),
    "batched loop": (jax.vmap(doubling), (ROWS,)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_call_reaches_the_compiler_as_from_plain_jax(name):
    fn, args = PROGRAMS[name]
    emulated = trn_jax.emulate(fn, IDEAL, fidelity="fused")
    if name in ("batched loop", "composite"):  # the same values by other operations: an explicit select, an inlined call
        np.testing.assert_array_equal(jax.jit(emulated)(*args), jax.jit(fn)(*args))
    else:
        assert lowered(emulated, *args) == lowered(fn, *args)


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_call_runs_on_a_rounding_chip(name):
    fn, args = PROGRAMS[name]
    rounded = jax.jit(trn_jax.emulate(fn, TRN2, autocast=ALL_BF16, rounding="stochastic", seed=jnp.uint32(3)))(*args)
    error = jnp.linalg.norm(rounded - fn(*args)) / jnp.linalg.norm(fn(*args))
    assert 0 < error < 0.1


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_call_is_instructions_for_time(name):
    fn, args = PROGRAMS[name]
    assert {i.engine for i in trn_jax.trace(fn, *args, trip_count=3).instructions} & {"tensor", "vector", "scalar", "gpsimd"}


def test_a_loop_batched_inside_ends_in_each_lane_by_itself():
    x = jnp.array([[0.1, 0.2], [8.0, 9.0]])
    outside = jax.vmap(trn_jax.emulate(doubling, IDEAL))(x)
    np.testing.assert_array_equal(outside, jnp.stack([doubling(row) for row in x]))
    np.testing.assert_array_equal(trn_jax.emulate(jax.vmap(doubling), IDEAL)(x), outside)


@pytest.mark.parametrize("mode", ["grad", "jvp"])
def test_a_solver_keeps_implicit_derivatives_through_rounding(mode):
    loss = lambda a: jnp.sum(solve(a, ROWS[0]) ** 2)
    emulated = trn_jax.emulate(loss, TRN2, autocast=ALL_BF16)
    if mode == "grad":
        got, expected = jax.grad(emulated)(MATRIX), jax.grad(loss)(MATRIX)
    else:
        got, expected = (jax.jvp(f, (MATRIX,), (MATRIX,))[1] for f in (emulated, loss))
    np.testing.assert_allclose(got, expected, rtol=0.1, atol=0.02)


def test_a_transpose_of_the_users_own_survives():
    slope = jax.grad(lambda x: trn_jax.emulate(tripled, TRN2, autocast=ALL_BF16)(x).sum())(ROWS[0])
    np.testing.assert_allclose(slope, jax.grad(lambda x: tripled(x).sum())(ROWS[0]), rtol=2**-6, atol=2**-6)


def test_a_batching_rule_of_the_users_own_survives_a_vmap_outside():
    emulated = trn_jax.emulate(sine, TRN2, autocast=ALL_BF16, rounding="stochastic", seed=1)
    np.testing.assert_allclose(jax.vmap(emulated)(ROWS), jnp.cos(ROWS), atol=2**-7)
    with_seeds = lambda seed, x: trn_jax.emulate(sine, TRN2, autocast=ALL_BF16, rounding="stochastic", seed=seed)(x)
    np.testing.assert_allclose(jax.vmap(with_seeds)(jnp.arange(3, dtype=jnp.uint32), ROWS), jnp.cos(ROWS), atol=2**-7)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: jnp.sum(jnp.frexp(x)[0] ** 2),
        lambda x: jnp.sum(jnp.ldexp(x, jnp.arange(3)) ** 2),
        lambda x: jnp.sum(jnp.interp(jnp.array([1.5, 2.7]), x, x**2)),
        lambda x: jnp.sum(jax.lax.custom_root(lambda y: y - x / 3, x, lambda f, y: y - f(y), lambda g, y: y / g(jnp.ones_like(y))) ** 2),
    ],
    ids=["frexp", "ldexp", "interp", "custom_root"],
)
def test_functions_with_rules_of_their_own_keep_their_derivatives_in_every_jax(fn):
    x = jnp.array([1.0, 2.5, 3.0])
    emulated = trn_jax.emulate(fn, trn_jax.load_chip("trainium2"))
    for derivative in (jax.grad, jax.jacfwd):
        np.testing.assert_allclose(derivative(emulated)(x), derivative(fn)(x), rtol=1e-6)


def test_a_custom_rule_that_captures_an_array_is_differentiated_in_every_jax():
    scale = jnp.array([2.0, 3.0])

    @jax.custom_vjp
    def scaled(x):
        return x * scale

    scaled.defvjp(lambda x: (x * scale, None), lambda _, cotangent: (5 * cotangent * scale,))
    loss = jax.jit(lambda x: jnp.sum(jax.jit(scaled)(x) ** 2))
    x = jnp.array([1.0, -1.0])
    np.testing.assert_array_equal(jax.grad(trn_jax.emulate(loss, TRN2))(x), jax.grad(loss)(x))
    shifted = lambda shift: jnp.sum(scaled(x + shift))
    np.testing.assert_array_equal(jax.jit(jax.grad(trn_jax.emulate(shifted, TRN2)))(1.0), jax.grad(shifted)(1.0))
