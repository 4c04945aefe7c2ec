"""32-bit integers through fp32: exact to 2^24, wrapped beyond 32 bits; bits, shifts, copies and keys untouched."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import trn_jax as trn

TRN2 = trn.load_chip("trainium2")


@cache
def compiled(function):
    return jax.jit(trn.emulate(function, TRN2, integer="fp32"))


def fp32(function, *args):
    return compiled(function)(*args)


def word(value, dtype):
    """A whole number modulo 2^32, in Python's integers."""
    return np.array(int(value) % 2**32, np.uint32).astype(dtype)


OPERATIONS = {"add": lambda a, b: a + b, "subtract": lambda a, b: a - b, "multiply": lambda a, b: a * b}


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("dtype", [np.int32, np.uint32])
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_arithmetic_is_that_of_fp32_modulo_two_to_the_32(name, dtype, data):
    numbers = st.integers(int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)) | st.integers(0, 2**25)
    a, b = data.draw(numbers), data.draw(numbers)
    want = word(np.float32(OPERATIONS[name](np.float32(a).astype(np.float64), np.float32(b).astype(np.float64))), dtype)
    got = fp32(OPERATIONS[name], jnp.asarray(a, dtype), jnp.asarray(b, dtype))
    assert got.dtype == dtype
    assert got == want


def test_the_published_examples():
    assert fp32(lambda x: x + 1, jnp.int32(2**24)) == 2**24
    assert fp32(lambda x: x * x, jnp.uint32(65537)) == 131072
    assert fp32(lambda x: jnp.maximum(x, 0), jnp.int32(0x7FFF_FFFF)) == -(2**31)
    for options in ({}, {"integer": "exact"}):
        exact = trn.emulate(lambda x: (x + 1, x * x), TRN2, **options)
        assert [int(x) for x in exact(jnp.uint32(65537))] == [65538, 131073]
    ideal = trn.emulate(lambda x: x + 1, trn.load_chip("ideal"), integer="fp32")
    assert ideal(jnp.int32(2**24)) == 2**24 + 1


def test_comparisons_and_reductions_see_fp32_too():
    x = jnp.array([2**24, 2**24 + 1], jnp.int32)
    assert fp32(lambda x: x[0] == x[1], x)
    assert not fp32(lambda x: x[0] < x[1], x)
    assert fp32(jnp.sum, jnp.array([2**24, 1], jnp.int32)) == 2**24
    assert fp32(lambda x: jnp.cumsum(x)[-1], jnp.array([2**24, 1], jnp.int32)) == 2**24
    small = jnp.arange(-2000, 2000)
    for function in (jnp.sum, jnp.max, jnp.min, jnp.cumsum, lambda x: x * 3 - 1, lambda x: (x > 5) & (x != 7)):
        np.testing.assert_array_equal(fp32(function, small), function(small))


def test_bits_copies_and_random_numbers_stay_exact():
    x = jnp.array([0x7FFF_FFFF, 2**24 + 1, -5], jnp.int32)
    bits = lambda x: (x ^ 0x55, x & 0x0FFF_FFFF, x | 1, ~x, x << 3, x >> 2, jnp.copy(x), x[::-1], jnp.sort(x))
    for got, want in zip(fp32(bits, x), bits(x), strict=True):
        np.testing.assert_array_equal(got, want)

    def draws(seed):
        key = jax.random.fold_in(jax.random.key(seed), 2**30 + 1)
        a, b = jax.random.split(key)
        return jax.random.normal(a, (50,)), jax.random.randint(b, (50,), 0, 2**30), jax.random.bits(a, (5,)), jax.random.key_data(b)

    for got, want in zip(fp32(draws, 7), draws(7), strict=True):
        np.testing.assert_array_equal(got, want)


def test_unknown_arithmetic_is_refused():
    with pytest.raises(trn.FormatError, match="Did you mean 'fp32'"):
        trn.emulate(jnp.sum, TRN2, integer="fp23")
