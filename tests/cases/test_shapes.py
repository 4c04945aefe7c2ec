"""Troubles that users reported about shapes, tails and limits, each with the right answer."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import trn_jax
from trn_jax.engines.systolic import systolic
from trn_jax.models.attention import mask_scores
from trn_jax.models.heads import shard_heads

TRN2 = trn_jax.load_chip("trainium2")
BF16 = trn_jax.AutoCast("matmult", "bf16")
EDGES = (1, 64, 127, 128, 129, 513)


def shape(*sizes, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(sizes, dtype)


@pytest.mark.parametrize("k", EDGES)
def test_shp_01_sizes_next_to_a_tile_are_products_tile_by_tile(k):
    """Sizes that are no multiple of 128 crashed or had wrong tails: https://github.com/NVlabs/timeloop/issues/300."""
    rng = np.random.default_rng(0)
    for m, n in ((127, 513), (1, 1), (129, 64)):
        a, b = (jnp.asarray(rng.standard_normal(sizes), jnp.float32) for sizes in ((m, k), (k, n)))
        got = trn_jax.emulate(jnp.matmul, TRN2)(a, b)
        tiles = [a[:, start : start + 128] @ b[start : start + 128] for start in range(0, k, 128)]
        np.testing.assert_allclose(got, sum(tiles[1:], tiles[0]), rtol=1e-5, atol=1e-4)
        np.testing.assert_allclose(got, np.float64(a) @ np.float64(b), rtol=1e-4, atol=1e-3)


def test_shp_09_a_large_product_is_one_record_of_half_a_million_instructions():
    """Tracing took as long as there were tiles, and counts overflowed: https://github.com/aws-neuron/aws-neuron-sdk/issues/663."""
    start = time.perf_counter()
    program = trn_jax.trace(jnp.matmul, shape(16_000, 16_000, dtype=jnp.bfloat16), shape(16_000, 16_000, dtype=jnp.bfloat16))
    seconds = float(trn_jax.latency(program, TRN2))
    assert time.perf_counter() - start < 20  # a second or two; many tiles would take hours
    (product,) = [i for i in program.instructions if i.kind == "nc_matmul"]
    assert (product.work.m, product.work.k, product.work.n) == (16_000, 16_000, 16_000)
    assert float(program.flops) == 8.192e12
    assert seconds > 8.192e12 / (2 * 128 * 128 * 2.4e9 * 4)


def test_shp_10_heads_that_do_not_divide_are_refused():
    """Floor division dropped heads silently: https://github.com/aws-neuron/aws-neuron-sdk/issues/1289."""
    assert shard_heads(32, 8, 2).kv_heads == 4
    assert shard_heads(32, 8, 16).kv_copies == 2
    for heads, kv_heads, ranks in ((33, 2, 1), (3, 2, 1), (32, 8, 3)):
        with pytest.raises(trn_jax.ModelError, match="query heads (cannot share|do not divide)"):
            shard_heads(heads, kv_heads, ranks)


def test_shp_13_a_query_that_may_look_nowhere_is_uniform_or_zero_but_never_garbage():
    """Rows without a key were NaN or uninitialised memory: https://github.com/ROCm/aiter/issues/5556. Decision 0010."""
    q, k = jax.random.normal(jax.random.key(0), (1, 300, 1, 64)), jax.random.normal(jax.random.key(1), (1, 1, 1, 64))
    attend = trn_jax.emulate(lambda q, k: jax.nn.dot_product_attention(q, k, k, is_causal=True), TRN2, autocast=BF16)
    out = attend(q, k)
    np.testing.assert_array_equal(out[0, 0, 0], trn_jax.round_to(k[0, 0, 0], "bf16"))
    assert jnp.isfinite(out).all()
    nowhere = jnp.zeros((2, 5), bool)
    uniform = trn_jax.emulate(lambda x: jax.nn.softmax(mask_scores(x, nowhere)), TRN2)(jnp.arange(10.0).reshape(2, 5))
    np.testing.assert_allclose(uniform, 0.2, rtol=1e-6)
    zero = trn_jax.emulate(lambda x: jax.nn.softmax(x, where=nowhere), TRN2)(jnp.arange(10.0).reshape(2, 5))
    np.testing.assert_array_equal(zero, np.zeros((2, 5)))


def test_shp_14_a_depthwise_convolution_counts_its_own_products_only():
    """Depthwise convolutions were wrong or unsupported: https://github.com/scalesim-project/SCALE-Sim/issues/9."""

    def depthwise(x, w):
        return jax.lax.conv_general_dilated(
            x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=x.shape[-1]
        )

    program = trn_jax.trace(depthwise, shape(1, 112, 112, 32), shape(3, 3, 1, 32))
    assert float(program.flops) == 2 * 3_612_672
    (product,) = [i for i in program.instructions if i.kind == "nc_matmul"]
    assert product.work.k / TRN2.tensor.rows == pytest.approx(0.0703, abs=1e-4)


def test_shp_16_idle_rows_of_a_last_tile_are_no_work():
    """Padding was counted as work: https://github.com/NVlabs/timeloop/issues/328."""
    run = systolic(jnp.ones((1, 8)), jnp.ones((8, 1)), rows=6, cols=1)
    folds, slots = 2, 2 * 6
    assert run.activity.sum() == 8
    assert run.activity.sum() / slots == pytest.approx(0.667, abs=1e-3)
    assert run.utilisation == 8 / (folds * (6 + 1 + 6 + 1 - 2) * 6)


def test_shp_17_lengths_in_one_bucket_trace_once():
    """Every new length compiled anew: https://github.com/aws-neuron/aws-neuron-sdk/issues/564."""
    traces = []

    def layer(x, length):
        traces.append(1)
        kept = jnp.arange(x.shape[0]) < length
        return jnp.where(kept[:, None], jnp.tanh(x), 0.0).sum(0) / length.astype(x.dtype)

    step = jax.jit(trn_jax.emulate(layer, TRN2))
    for length in range(97, 129):
        row = step(jnp.ones((128, 4)).at[length:].set(jnp.nan), jnp.int32(length))
        np.testing.assert_allclose(row, np.tanh(1.0), rtol=1e-5)
    assert len(traces) == 1


def test_shp_19_a_token_outside_the_vocabulary_is_found_and_not_quietly_another_one():
    """Indices out of range were clamped silently: https://github.com/aws-neuron/aws-neuron-sdk/issues/872. Decision 0010."""
    table, tokens = jnp.ones((5, 3)), jnp.array([0, 5])
    look_up = lambda table, tokens: jnp.take(table, tokens, axis=0)
    looked_up = trn_jax.emulate(look_up, TRN2)(table, tokens)
    assert "NaN is made by gather" in str(trn_jax.find_nonfinite(look_up, TRN2)(table, tokens))
    np.testing.assert_array_equal(jnp.isnan(looked_up).all(-1), [False, True])
    np.testing.assert_array_equal(trn_jax.emulate(lambda table, tokens: table[tokens], TRN2)(table, tokens), table[jnp.array([0, 4])])
    from trn_jax.models import GPT, GPTConfig, split_model

    apply, params = split_model(GPT(GPTConfig(vocab_size=5, d_model=8, n_heads=2, n_layers=1, max_tokens=4)))
    logits = apply(params, jnp.array([[0, 5], [0, 4]]))
    np.testing.assert_array_equal(jnp.isnan(logits).any((1, 2)), [True, False])


def test_shp_20_numbers_that_32_bits_cannot_hold_are_refused():
    """int64 token numbers were cut to 32 bits without a word: https://github.com/aws-neuron/aws-neuron-sdk/issues/785."""
    double = trn_jax.emulate(lambda batch: batch["tokens"] * 2, TRN2)
    np.testing.assert_array_equal(double({"tokens": np.array([1, 2**30 - 1])}), [2, 2**31 - 2])
    for values in (np.array([2**32]), np.array([-(2**31) - 1]), np.array([2**32], np.uint64), np.array([1e300])):
        with pytest.raises(trn_jax.FormatError, match=r"\['tokens'\] is (u?int|float)64 .*cannot hold.*jax.enable_x64"):
            double({"tokens": values})
        with pytest.raises(trn_jax.FormatError, match="cannot hold"):
            trn_jax.trace(lambda batch: batch["tokens"] * 2, {"tokens": values})
    np.testing.assert_array_equal(double({"tokens": np.array([np.inf, 0.5])}), [np.inf, 1.0])
