"""Any program: exactly plain JAX on the ideal chip; on others it runs in every mode, keeps shapes and dtypes, and becomes instructions."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import trn_jax

from random_programs import arguments, inputs, is_float, program, steps  # isort: skip

IDEAL = trn_jax.load_chip("ideal")
SMALL = trn_jax.load_chip("trainium2").replace({"tensor.rows": 4.0, "tensor.cols": 4.0})
OPTIONS = (
    {},
    {"fidelity": "fused", "writes": "instruction"},
    {"autocast": trn_jax.AutoCast("matmult", "fp8_e5m2"), "fidelity": "systolic"},
    {"autocast": trn_jax.AutoCast("all", "bf16"), "rounding": "stochastic", "seed": np.uint32(3)},
    {"autocast": trn_jax.AutoCast("all", "fp16"), "rounding": "stochastic", "seed": np.uint32(3), "writes": "instruction"},
)
MODES = ("forward", "gradient", "vmapped")
few = {"deadline": None, "suppress_health_check": list(HealthCheck), "database": None}


def in_mode(mode, recipe, kinds):
    """The program, its gradient or its map over a new leading axis, and arguments."""
    fn, args = program(recipe), arguments(kinds)
    floats = tuple(position for position, x in enumerate(args) if is_float(x))
    if mode == "gradient" and floats:
        total = lambda *args: sum(jnp.sum(jnp.tanh(x.astype(jnp.float32))) for x in fn(*args) if is_float(x)) + jnp.float32(0)
        return jax.grad(total, argnums=floats), args
    if mode == "vmapped":
        return jax.vmap(fn), tuple(jnp.stack([x, x]) for x in args)
    return fn, args


def assert_equal_to_plain_jax(fn, args):
    emulated = trn_jax.emulate(fn, IDEAL, fidelity="fused")
    assert jax.eval_shape(emulated, *args) == jax.eval_shape(fn, *args)
    if jax.jit(emulated).lower(*args).as_text() == jax.jit(fn).lower(*args).as_text():
        return  # one program for the compiler is one result
    got, expected = jax.jit(emulated)(*args), jax.jit(fn)(*args)
    assert [np.asarray(x).tobytes() for x in jax.tree.leaves(got)] == [np.asarray(x).tobytes() for x in jax.tree.leaves(expected)]


def assert_runs_on_a_rounding_chip(fn, args, options):
    expected = jax.eval_shape(fn, *args)
    got = jax.eval_shape(trn_jax.emulate(fn, SMALL, **options), *args)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), got) == jax.tree.map(lambda x: (x.shape, x.dtype), expected)
    with contextlib.suppress(trn_jax.ProgramError):  # a program of views and constants runs no instruction
        trn_jax.trace(fn, *args)


@given(st.sampled_from(MODES), steps, inputs)
@settings(max_examples=25, **few)
def test_a_random_program_is_plain_jax_on_the_ideal_chip(mode, recipe, kinds):
    with jax.numpy_rank_promotion("allow"):
        assert_equal_to_plain_jax(*in_mode(mode, recipe, kinds))


@given(st.sampled_from(MODES), st.sampled_from(OPTIONS), steps, inputs)
@settings(max_examples=20, **few)
def test_a_random_program_runs_on_a_rounding_chip(mode, options, recipe, kinds):
    with jax.numpy_rank_promotion("allow"):
        assert_runs_on_a_rounding_chip(*in_mode(mode, recipe, kinds), options)


@pytest.mark.slow
@given(st.sampled_from(MODES), st.sampled_from(OPTIONS), steps, inputs)
@settings(max_examples=100, **few)
def test_many_random_programs(mode, options, recipe, kinds):
    with jax.numpy_rank_promotion("allow"):
        fn, args = in_mode(mode, recipe, kinds)
        assert_equal_to_plain_jax(fn, args)
        assert_runs_on_a_rounding_chip(fn, args, options)
