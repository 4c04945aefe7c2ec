import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from trn_jax.models import MASKED_SCORE, GPTConfig, mask_scores
from trn_jax.models.attention import Attention, rotate

CONFIG = GPTConfig(d_model=16, n_heads=4, n_layers=1, max_tokens=8)


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16, ml_dtypes.float8_e5m2])
def test_the_mask_stays_finite_in_narrow_formats(dtype):
    assert np.isfinite(np.float32(dtype(MASKED_SCORE)))


def test_a_row_masked_everywhere_is_uniform_and_not_nan():
    weights = jax.nn.softmax(mask_scores(jnp.asarray([[1.0, 5.0, -2.0]], jnp.bfloat16), jnp.zeros((1, 3), bool)))
    np.testing.assert_array_equal(weights, jnp.full((1, 3), 1 / 3, jnp.bfloat16))


def test_masked_places_get_neither_weight_nor_gradient():
    allowed = jnp.asarray([[True, False, True]])

    def first_weight(scores):
        return jax.nn.softmax(mask_scores(scores, allowed))[0, 0]

    scores = jnp.asarray([[0.5, 100.0, -0.5]])
    assert jax.nn.softmax(mask_scores(scores, allowed))[0, 1] == 0.0
    assert jax.grad(first_weight)(scores)[0, 1] == 0.0


def test_rotary_scores_depend_on_the_distance_only():
    q, k = jax.random.normal(jax.random.key(0), (2, 8))
    turned_q, turned_k = (rotate(jnp.broadcast_to(x, (1, 6, 1, 8)))[0, :, 0] for x in (q, k))
    scores = turned_q @ turned_k.T
    for distance in range(-3, 4):
        diagonal = jnp.diagonal(scores, distance)
        np.testing.assert_allclose(diagonal, jnp.full_like(diagonal, diagonal[0]), atol=1e-4)
    assert abs(scores[0, 0] - scores[0, 3]) > 1e-3


def test_rotary_keeps_lengths():
    x = jax.random.normal(jax.random.key(1), (1, 6, 2, 8))
    np.testing.assert_allclose(jnp.linalg.norm(rotate(x), axis=-1), jnp.linalg.norm(x, axis=-1), rtol=1e-5)


def test_grouped_queries_equal_full_attention_with_repeated_keys_and_values():
    grouped = Attention(CONFIG.replace(n_kv_heads=2), key=jax.random.key(2))
    full = Attention(CONFIG, key=jax.random.key(2))
    for name in ("query", "out"):
        getattr(full, name).kernel_IO[...] = getattr(grouped, name).kernel_IO[...]
    for name in ("key", "value"):
        kernel = getattr(grouped, name).kernel_IO[...].reshape(16, 2, 4)
        getattr(full, name).kernel_IO[...] = jnp.repeat(kernel, 2, axis=1).reshape(16, 16)
    x = jax.random.normal(jax.random.key(3), (2, 5, 16))
    np.testing.assert_allclose(jax.jit(grouped)(x), jax.jit(full)(x), atol=1e-5)
