"""Transposes and shuffles move bits; a transpose by an identity is a product, and spreads what is not finite."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import trn_jax as trn

TRN2 = trn.load_chip("trainium2")


def with_one(value):
    return jnp.asarray(np.random.default_rng(0).normal(size=(16, 16)), jnp.float32).at[3, 5].set(value)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1 + 2.0**-20, 1e-45])
def test_a_transpose_is_bit_exact(value):
    x = with_one(value)
    options = {"autocast": trn.AutoCast("matmult", "bf16")}
    moved = trn.emulate(lambda x: x.T, TRN2, **options)(x)
    assert np.asarray(moved).tobytes() == np.ascontiguousarray(np.asarray(x).T).tobytes()
    shuffled = trn.emulate(lambda x: x[::-1, jnp.arange(16) ^ 1], TRN2, **options)(x)
    assert np.asarray(shuffled).tobytes() == np.asarray(x)[::-1, np.arange(16) ^ 1].tobytes()


@pytest.mark.parametrize("fidelity", ["fused", "tiled", "systolic"])
def test_a_product_with_an_identity_spreads_nan_and_infinity_along_their_row(fidelity):
    product = trn.emulate(lambda x: x.T @ jnp.eye(16), TRN2, fidelity=fidelity)
    nan, inf = np.asarray(product(with_one(np.nan))), np.asarray(product(with_one(np.inf)))
    assert np.isnan(nan).sum() == 16
    assert np.isnan(nan[5]).all()
    assert np.isnan(inf).sum() == 15
    assert np.isinf(inf[5, 3])
    assert product(with_one(1 + 2.0**-20))[5, 3] == np.float32(1 + 2.0**-20)


def test_fast_modes_change_time_and_no_value():
    x = jnp.asarray(np.random.default_rng(1).normal(size=(64, 64)), jnp.bfloat16)
    slow = TRN2.replace({"vector.copy_speedup_16bit": 1.0, "vector.tensor_tensor_speedup_16bit": 1.0})
    function = lambda x: (x * x + x, x.sum(0), x.max(1))
    for a, b in zip(trn.emulate(function, TRN2)(x), trn.emulate(function, slow)(x), strict=True):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
    program = trn.trace(lambda x: x * x, jax.ShapeDtypeStruct((1024, 1024), jnp.bfloat16))
    busy_s = [trn.estimate(program, chip).engines["vector"].busy_s for chip in (TRN2, slow)]
    assert busy_s[0] < 0.8 * busy_s[1]


def test_a_bf16_sum_is_made_in_fp32_and_rounded_once():
    x = jnp.asarray(np.random.default_rng(2).normal(size=5000), jnp.bfloat16)
    wide = np.asarray(x, np.float64)
    got = trn.emulate(lambda x: jnp.sum(x), TRN2)(x)
    bound = len(wide) * 2.0**-24 * np.abs(wide).sum()
    low, high = (np.asarray(trn.round_to(jnp.float32(wide.sum() + sign * bound), "bf16")) for sign in (-1, 1))
    assert low <= float(got) <= high
