"""MX block formats: one power of two for 32 neighbours, elements rounded once; against an oracle in float64 and ml_dtypes."""

import dataclasses

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import trn_jax as trn
from trn_jax.numerics import BLOCK_FORMATS

# name -> element type, exponent of the largest magnitude after scaling, largest element
MX = {
    "mxfp8_e4m3fn": (ml_dtypes.float8_e4m3fn, 7, 448.0),
    "mxfp8_e5m2": (ml_dtypes.float8_e5m2, 14, 57344.0),
    "mxfp4_e2m1fn": (ml_dtypes.float4_e2m1fn, 2, 6.0),
}
OCP_E4M3FN = dataclasses.replace(BLOCK_FORMATS["mxfp8_e4m3fn"], peak_exponent=8)


def oracle(x, name, peak_exponent=None):
    """Blocks along the last axis: exponents by frexp, elements by the casts of ml_dtypes, products in float64."""
    element, peak, largest = MX[name]
    peak = peak if peak_exponent is None else peak_exponent
    out = np.empty(x.shape, np.float32)
    for row in np.ndindex(*x.shape[:-1]):
        for start in range(0, x.shape[-1], 32):
            block = x[row][start : start + 32].astype(np.float64)
            amax = np.abs(block).max()
            if not np.isfinite(amax):
                out[row][start : start + 32] = np.nan
                continue
            exponent = -127 if amax == 0 else max(int(np.frexp(amax)[1]) - 1 - peak, -127)
            scaled = np.clip(np.ldexp(block, -exponent), -largest, largest).astype(np.float32)
            with np.errstate(over="ignore"):  # the top element of the top block is infinite in float32
                out[row][start : start + 32] = np.ldexp(scaled.astype(element).astype(np.float64), exponent)
    return out


def same(got, want):
    got = np.asarray(got)
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got.view(np.uint32)[~np.isnan(want)], want.view(np.uint32)[~np.isnan(want)])
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))


@pytest.mark.parametrize("name", MX)
def test_equal_to_the_oracle_bit_for_bit_over_the_whole_range(name):
    rng = np.random.default_rng(0)
    spread = rng.normal(size=(60, 70)) * np.exp2(rng.integers(-149, 126, (60, 1))) * np.exp2(rng.integers(-30, 2, (60, 70)))
    x = spread.astype(np.float32)
    want = oracle(x, name)
    same(trn.round_to(x, name), want)
    same(jax.jit(lambda x: trn.round_to(x, name))(x), want)
    same(trn.round_to(x.T, name, axis=0).T, want)
    assert ((want != 0) & (np.abs(want) < 2.0**-126)).any()  # float32's subnormal values are among them


@pytest.mark.parametrize("name", MX)
@given(st.lists(st.floats(width=32), min_size=1, max_size=80))
@example([3.190147189883798e38])
@settings(max_examples=60, deadline=None)
def test_any_values_follow_the_oracle_and_saturate_at_the_top(name, values):
    x = np.array([values], np.float32)
    x = np.pad(x, ((0, 0), (0, 80 - x.size)))
    once = trn.round_to(x, name)
    want = oracle(x, name)
    want = np.where(np.isinf(want), np.copysign(np.float32((2 - 2.0 ** -BLOCK_FORMATS[name].element.mantissa_bits) * 2.0**127), want), want)
    same(once, want)


def test_the_scale_comes_from_the_values_as_given():
    """957 needs 2^2 under Trainium3's rule and 2^1 under OCP's, which saturates; 255.9 has exponent 7 although bf16 has 256."""
    assert trn.round_to(jnp.array([957.0]), "mxfp8_e4m3fn")[0] == 960
    assert trn.round_to(jnp.array([957.0]), OCP_E4M3FN)[0] == 896
    small = 2.0**-9
    block = jnp.array([255.9, small])
    assert trn.round_to(block, "mxfp8_e4m3fn").tolist() == [256.0, small]  # with exponent 8 the second would be half way to 0
    same(trn.round_to(block, OCP_E4M3FN), oracle(np.asarray(block)[None], "mxfp8_e4m3fn", 8)[0])


@pytest.mark.parametrize("name", MX)
def test_zero_tiny_and_huge_blocks_stay_finite(name):
    zeros = trn.round_to(jnp.array([[0.0, -0.0] * 64]), name)
    assert np.signbit(zeros).tolist() == [[False, True] * 64]
    assert not zeros.any()
    for amax in (1e-38, 1e-45, 3.4e38):
        x = jnp.full((128,), amax).at[0].set(-amax)
        rounded = np.asarray(trn.round_to(x, name))
        assert np.isfinite(rounded).all()
        assert rounded[0] == -rounded[1]
        np.testing.assert_allclose(rounded, np.asarray(x), rtol=2**-2, atol=2.0**-127)


@pytest.mark.parametrize("name", MX)
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_a_block_with_an_infinity_or_nan_is_nan_and_its_neighbours_are_not(name, bad):
    rounded = np.asarray(trn.round_to(jnp.ones(96).at[40].set(bad), name))
    assert np.isnan(rounded).tolist() == [False] * 32 + [True] * 32 + [False] * 32


@pytest.mark.parametrize("name", MX)
def test_the_gradient_is_the_identity_and_transformations_agree(name):
    x = jnp.asarray(np.random.default_rng(1).normal(size=(3, 40)), jnp.float32) * 1e3
    slope = jax.grad(lambda x: (trn.round_to(x, name, axis=0) * 0.001).sum())(x)
    assert (slope == np.float32(0.001)).all()
    whole = trn.round_to(x, name)
    np.testing.assert_array_equal(jax.vmap(lambda row: trn.round_to(row, name))(x), whole)
    np.testing.assert_array_equal(trn.round_to(whole, name), whole)
    for dtype in (jnp.bfloat16, jnp.float16):
        narrow = x.astype(dtype)
        rounded = trn.round_to(narrow, name)
        assert rounded.dtype == dtype
        np.testing.assert_array_equal(rounded.astype(jnp.float32), trn.round_to(narrow.astype(jnp.float32), name))
    assert np.isfinite(trn.round_to(jnp.full(4, 65504, jnp.float16), name)).all()


@pytest.mark.parametrize("name", MX)
def test_stochastic_rounding_picks_a_neighbour_and_is_right_on_average(name):
    x = jnp.linspace(0.3, 3.9, 32)
    draws = jax.vmap(lambda seed: trn.round_to(x, name, rounding="stochastic", seed=seed))(jnp.arange(4000, dtype=jnp.uint32))
    distance = float(jnp.max(jnp.abs(draws - x[None])))
    step = 2.0 ** (1 - BLOCK_FORMATS[name].element.mantissa_bits)
    assert step / 4 < distance < step
    saturated = x > BLOCK_FORMATS[name].element.max_finite * 2.0 ** (1 - BLOCK_FORMATS[name].peak_exponent)
    error = jnp.abs(draws.mean(0) - x)
    assert (error < 5 * step / 4000**0.5)[~saturated].all()


def test_errors_name_what_is_accepted():
    with pytest.raises(trn.FormatError, match="its elements saturate"):
        trn.round_to(jnp.ones(4), "mxfp8_e5m2", overflow="inf")
    with pytest.raises(trn.FormatError, match=r"axis=-1 does not exist: .* x has 0"):
        trn.round_to(1.0, "mxfp8_e5m2")
    with pytest.raises(trn.FormatError, match="axis=2 does not exist"):
        trn.round_to(jnp.ones((4, 4)), "mxfp8_e5m2", axis=2)
    with pytest.raises(trn.FormatError, match="not a scalar format"):
        trn.numerics.rounder("mxfp8_e4m3fn")
    with pytest.raises(trn.FormatError, match="seed="):
        trn.round_to(jnp.ones(4), "mxfp8_e5m2", rounding="stochastic")


def test_bits_in_memory_include_the_scale():
    assert {name: fmt.storage_bits for name, fmt in BLOCK_FORMATS.items()} == {
        "mxfp8_e4m3fn": 8.25,
        "mxfp8_e5m2": 8.25,
        "mxfp4_e2m1fn": 4.25,
    }
