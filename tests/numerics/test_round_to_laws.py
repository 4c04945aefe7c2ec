"""Laws that hold for every format and every float32 value: idempotent, monotone, odd, never far away."""

import jax.numpy as jnp
import numpy as np
import pytest
import rounding_oracle as oracle
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from trn_jax.numerics import FORMATS, round_to

finite = st.floats(width=32, allow_nan=False, allow_infinity=False, allow_subnormal=True)
some_values = hnp.arrays(np.float32, 24, elements=finite)
each_format = pytest.mark.parametrize("name", FORMATS)
few = settings(deadline=None, max_examples=15)


def same(got, want):
    want = np.asarray(want)
    oracle.assert_same_bits(got, want, want)


@each_format
@few
@given(x=some_values, seed=st.integers(0, 2**32 - 1))
def test_rounding_twice_is_rounding_once(name, x, seed):
    for rounding in ("nearest", "stochastic"):
        for overflow in (None, "saturate", "nan"):
            once = round_to(x, name, rounding=rounding, seed=seed, overflow=overflow)
            same(round_to(once, name, rounding="stochastic", seed=seed ^ 1, overflow=overflow), once)
            same(round_to(once, name, overflow=overflow), once)


@each_format
@few
@given(x=some_values, seed=st.integers(0, 2**32 - 1))
def test_order_is_kept(name, x, seed):
    ascending = np.sort(x)
    assert (np.diff(round_to(ascending, name, overflow="saturate")) >= 0).all()
    # With the same random bits, stochastic rounding is monotone too.
    pairs = [round_to(np.full(24, v), name, rounding="stochastic", seed=seed, overflow="saturate") for v in (ascending[0], ascending[-1])]
    assert (pairs[0] <= pairs[1]).all()


@each_format
@few
@given(x=some_values, seed=st.integers(0, 2**32 - 1))
def test_sign_comes_out_unchanged(name, x, seed):
    same(round_to(-x, name), -np.asarray(round_to(x, name)))
    mirrored = round_to(-x, name, rounding="stochastic", seed=seed)
    same(mirrored, -np.asarray(round_to(x, name, rounding="stochastic", seed=seed)))


@pytest.mark.parametrize("fmt", oracle.NARROW, ids=lambda fmt: fmt.name)
@few
@given(unit=hnp.arrays(np.float32, 16, elements=st.floats(0, 1, width=32)), exponent=st.integers(-12, 0), seed=st.integers(0, 2**32 - 1))
def test_error_is_at_most_half_a_step_or_one(fmt, unit, exponent, seed):
    x = jnp.asarray(unit * np.float32(fmt.max_finite * 2.0**exponent))
    step = np.maximum(2.0 ** (np.floor(np.log2(np.maximum(x, 1e-45))) - fmt.mantissa_bits), fmt.min_subnormal)
    assert (np.abs(np.asarray(round_to(x, fmt.name), np.float64) - np.asarray(x, np.float64)) <= step / 2).all()
    drawn = np.asarray(round_to(x, fmt.name, rounding="stochastic", seed=seed), np.float64)
    assert (np.abs(drawn - np.asarray(x, np.float64)) < step).all()
