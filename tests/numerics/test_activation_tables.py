"""Tables of the Scalar Engine: close to the function inside their range, and as wrong as the hardware outside."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import trn_jax as trn
from trn_jax.numerics import fitted_table
from trn_jax.numerics.activation_fit import SOURCES

TRN2 = trn.load_chip("trainium2")
# name -> (function in float64, low, high): written down again, with the ranges of the NKI reference where it has them
FUNCTIONS = {
    "exp": (np.exp, -87.0, 88.0),
    "tanh": (np.tanh, -20.0, 20.0),
    "logistic": (lambda x: 1 / (1 + np.exp(-x)), -80.0, 80.0),
    "erf": (np.vectorize(math.erf), -6.0, 6.0),
    "log": (np.log, 2.0**-64, 2.0**64),
    "sqrt": (np.sqrt, 2.0**-116, 2.0**118),
    "rsqrt": (lambda x: x**-0.5, 2.0**-87, 2.0**97),
    "sin": (np.sin, -math.pi, math.pi),
    "atan": (np.arctan, -math.pi / 2, math.pi / 2),
}
TABLE = {"activation": "table"}


def inputs(low, high, count=20_000):
    rng = np.random.default_rng(0)
    exponents = rng.uniform(np.log2(low) if low > 0 else -30, np.log2(high), count)
    spread = np.exp2(exponents) * (1 if low > 0 else rng.choice([-1, 1], count))
    near_one = 1 + rng.normal(size=count) * np.exp2(-rng.uniform(2, 20, count))
    x = np.concatenate([spread, rng.uniform(low, high, count), near_one]).astype(np.float32)
    return x[(x >= low) & (x <= high)]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_within_four_ulp_over_the_documented_range(name):
    function, low, high = FUNCTIONS[name]
    x = inputs(low, high)
    got = np.asarray(jax.jit(trn.emulate(getattr(jax.lax, name), TRN2, **TABLE))(x), np.float64)
    exact = function(x.astype(np.float64))
    error = np.abs(got - exact) / np.spacing(np.abs(exact).astype(np.float32))
    assert error.max() < 4
    assert (got != np.asarray(jax.jit(getattr(jax.lax, name))(x))).any()


def test_every_fitted_function_is_tested():
    assert set(FUNCTIONS) == set(SOURCES)


def test_outside_its_range_sine_is_the_last_cubic_as_on_the_hardware():
    """AWS: the Scalar Engine gives about 27.65 for sin(9)."""
    sine = trn.emulate(jnp.sin, TRN2, **TABLE)
    assert float(sine(9.0)) == pytest.approx(27.65, abs=0.05)
    assert float(sine(-9.0)) == pytest.approx(-27.65, abs=0.05)
    assert float(trn.emulate(jnp.sin, TRN2)(9.0)) == pytest.approx(math.sin(9.0), abs=1e-6)


def test_special_values():
    at = lambda name, *x: np.asarray(jax.jit(fitted_table(name))(jnp.float32(x))).tolist()
    assert at("exp", 0.0, -np.inf, -200.0, 200.0, np.inf) == [1.0, 0.0, 0.0, np.inf, np.inf]
    assert at("tanh", 0.0, -np.inf, np.inf, 30.0) == [0.0, -1.0, 1.0, 1.0]
    assert at("logistic", 0.0, -200.0, 200.0) == [0.5, 0.0, 1.0]
    assert at("log", 1.0) == [0.0]
    assert at("sin", 0.0) == [0.0]
    assert all(np.isnan(at(name, np.nan)[0]) for name in SOURCES)


def test_a_users_table_replaces_its_function_and_only_that():
    steps = trn.ActivationTable(function="tanh", edges=[-1, 0, 1], bases=[0, 0], coefficients=[[-1.0], [1.0]])
    line = trn.ActivationTable(function="tanh", edges=[-1, 1], bases=[0], coefficients=[[0, 2]], widths=[2], scales=[3], above=7)
    run = lambda table, x: trn.emulate(lambda x: jnp.tanh(x) + jnp.exp(x), TRN2, activation=[table])(x) - jnp.exp(x)
    x = jnp.array([-3.0, -0.5, 0.5, 3.0])
    np.testing.assert_allclose(run(steps, x), [-1, -1, 1, 1], atol=1e-5)
    np.testing.assert_allclose(run(line, x), [-9, -1.5, 1.5, 7], atol=1e-5)
    assert line != steps
    assert line == trn.ActivationTable(function="tanh", edges=[-1, 1], bases=[0], coefficients=[[0, 2]], widths=[2], scales=[3], above=7)
    assert "1 segments from -1 to 1" in repr(line)


def test_gradients_are_the_functions_own_and_transformations_apply():
    x = jnp.linspace(-2.0, 2.0, 7)
    emulated = trn.emulate(lambda x: jnp.tanh(x), TRN2, **TABLE)
    np.testing.assert_allclose(jax.vmap(jax.grad(emulated))(x), 1 - jnp.tanh(x) ** 2, rtol=1e-6)
    np.testing.assert_allclose(trn.emulate(jax.vmap(jax.grad(jnp.tanh)), TRN2, **TABLE)(x), 1 - jnp.tanh(x) ** 2, atol=1e-6)
    np.testing.assert_array_equal(jax.jit(jax.vmap(emulated))(x), emulated(x))
    bf16 = trn.emulate(jnp.tanh, TRN2, **TABLE)(x.astype(jnp.bfloat16))
    assert bf16.dtype == jnp.bfloat16
    ideal = trn.emulate(jnp.sin, trn.load_chip("ideal"), **TABLE)
    assert float(ideal(9.0)) == pytest.approx(math.sin(9.0), abs=1e-6)


def test_bad_tables_are_refused():
    with pytest.raises(trn.FormatError, match="must be two or more ascending"):
        trn.ActivationTable(function="exp", edges=[1, 0], bases=[0], coefficients=[[1]])
    with pytest.raises(trn.FormatError, match=r"has 2 segments .* bases \[1\]"):
        trn.ActivationTable(function="exp", edges=[0, 1, 2], bases=[0], coefficients=[[1], [1]])
    with pytest.raises(trn.FormatError, match="Did you mean 'table'"):
        trn.emulate(jnp.exp, TRN2, activation="tables")
    with pytest.raises(trn.FormatError, match="list of trn_jax.ActivationTable"):
        trn.emulate(jnp.exp, TRN2, activation=[1])
    with pytest.raises(trn.FormatError, match="coefficients of a table for 'exp' must be a full array of finite numbers"):
        trn.ActivationTable(function="exp", edges=[0, 1, 2], bases=[0, 1], coefficients=[[1, 2], [1]])
    with pytest.raises(trn.FormatError, match=r"no function 'tanhh'.*Did you mean 'tanh'"):
        trn.emulate(jnp.tanh, TRN2, activation=[trn.ActivationTable(function="tanhh", edges=[0, 1], bases=[0], coefficients=[[1]])])
