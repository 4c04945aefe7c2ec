"""Causal multi-head attention, with key/value heads shared by groups of query heads.

`out = softmax(mask(Q K^T / sqrt(e))) V` per head of width e. The softmax is taken in float32. A decode step has one query and looks
at a cache of the keys and values before it.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from trn_jax.models.config import GPTConfig
from trn_jax.models.linear import Linear

# Finite in bf16, fp16 and fp8_e5m2, and far enough below any score that its exponential is 0 in float32. The minimum of float32
# would become -inf when written in bf16, and a fully masked row of -inf is NaN where this one is uniform.
MASKED_SCORE = -3.0e4


def mask_scores(scores: Float[Array, "*shape"], allowed: Bool[Array, "*allowed"]) -> Float[Array, "*shape"]:
    """Scores with every place that is not `allowed` set to `MASKED_SCORE`.

    Masks combine with `&` before the call: adding two large negative numbers is what overflows.

    Args:
        scores: Attention scores, any floating dtype.
        allowed: True where attention may look; broadcast against `scores`.

    Returns:
        Array like `scores`. Gradient: that of `scores` where allowed, 0 elsewhere.
    """
    return jnp.where(jnp.broadcast_to(allowed, scores.shape), scores, jnp.asarray(MASKED_SCORE, scores.dtype))


class KVCache(NamedTuple):
    """Keys and values of one layer, for every place of a sequence; places not yet decoded are never looked at."""

    key_BSKE: Float[Array, "B S K E"]
    value_BSKE: Float[Array, "B S K E"]


def rotate(x_BTHE: Float[Array, "B T H E"], base: float = 10_000.0, first: int | Int[Array, ""] = 0) -> Float[Array, "B T H E"]:
    """Rotary positions: feature pair i of position t turns by the angle `t base^(-2 i / e)`; the first token is at place `first`."""
    tokens, half = x_BTHE.shape[1], x_BTHE.shape[3] // 2
    turns = _known_turns(first, tokens, half, base) if isinstance(first, int) else _turns(jnp, first, tokens, half, base)
    cos_1T1E, sin_1T1E = (jnp.asarray(turn_TE[None, :, None, :], jnp.float32) for turn_TE in turns)
    first, second = jnp.split(x_BTHE.astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate([first * cos_1T1E - second * sin_1T1E, second * cos_1T1E + first * sin_1T1E], axis=-1)
    return turned.astype(x_BTHE.dtype)


def _turns(numpy: Any, first: Any, tokens: int, half: int, base: float) -> tuple[Any, Any]:
    """Cosine and sine of every place and feature pair, [tokens, half] each."""
    frequency_E = base ** (-np.arange(half) / half)
    angle_TE = (first + numpy.arange(tokens))[:, None] * numpy.asarray(frequency_E)[None]
    return numpy.cos(angle_TE), numpy.sin(angle_TE)


# Places known beforehand are turned in float64, once for all layers.
_known_turns = functools.lru_cache(maxsize=4)(functools.partial(_turns, np))


class Attention(nnx.Module):
    """Causal self-attention of one block."""

    def __init__(self, config: GPTConfig, *, key: PRNGKeyArray) -> None:
        q_key, k_key, v_key, out_key = jax.random.split(key, 4)
        self.config = config
        heads, kv_heads = config.n_heads * config.d_head, config.kv_heads * config.d_head
        self.query = Linear(config.d_model, heads, config, key=q_key)
        self.key = Linear(config.d_model, kv_heads, config, key=k_key)
        self.value = Linear(config.d_model, kv_heads, config, key=v_key)
        # 2 n_layers outputs add up in the residual stream: this keeps its variance near one at the start.
        self.out = Linear(heads, config.d_model, config, key=out_key, gain=(2 * config.n_layers) ** -0.5)

    def __call__(self, x_BTD: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        """Returns what attention adds to the residual stream."""
        with jax.named_scope("attention"):
            q_BTHE, k_BTKE, v_BTKE = self._heads(x_BTD, 0)
            tokens = x_BTD.shape[1]
            causal_TS = jnp.arange(tokens)[:, None] >= jnp.arange(tokens)[None, :]
            return self._attend(q_BTHE, k_BTKE, v_BTKE, causal_TS)

    def decode(self, x_B1D: Float[Array, "B 1 D"], cache: KVCache, position: Int[Array, ""]) -> tuple[Float[Array, "B 1 D"], KVCache]:
        """What attention adds for the token at `position`, and the cache with that token in it."""
        with jax.named_scope("attention"):
            q_B1HE, k_B1KE, v_B1KE = self._heads(x_B1D, position)
            cache = KVCache(*(_written(old, new, position) for old, new in zip(cache, (k_B1KE, v_B1KE), strict=True)))
            seen_1S = jnp.arange(cache.key_BSKE.shape[1])[None, :] <= position
            return self._attend(q_B1HE, *cache, seen_1S), cache

    def _heads(self, x_BTD: Float[Array, "B T D"], first: int | Int[Array, ""]) -> tuple[Array, Array, Array]:
        """Queries, keys and values by head, turned by their positions."""
        config, (batch, tokens, _) = self.config, x_BTD.shape
        q_BTHE = self.query(x_BTD).reshape(batch, tokens, config.n_heads, config.d_head)
        k_BTKE = self.key(x_BTD).reshape(batch, tokens, config.kv_heads, config.d_head)
        v_BTKE = self.value(x_BTD).reshape(batch, tokens, config.kv_heads, config.d_head)
        if config.positions == "rotary":
            q_BTHE, k_BTKE = (rotate(x, config.rotary_base, first) for x in (q_BTHE, k_BTKE))
        return q_BTHE, k_BTKE, v_BTKE

    def _attend(self, q_BTHE: Array, k_BSKE: Array, v_BSKE: Array, allowed_TS: Bool[Array, "T S"]) -> Float[Array, "B T D"]:
        config, (batch, tokens, _, _) = self.config, q_BTHE.shape
        group = config.n_heads // config.kv_heads
        q_BTKGE = (q_BTHE * config.d_head**-0.5).reshape(batch, tokens, config.kv_heads, group, config.d_head)
        scores_BKGTS = jnp.einsum("btkge,bske->bkgts", q_BTKGE, k_BSKE).astype(jnp.float32)
        weights_BKGTS = jax.nn.softmax(mask_scores(scores_BKGTS, allowed_TS), axis=-1).astype(v_BSKE.dtype)
        out_BTKGE = jnp.einsum("bkgts,bske->btkge", weights_BKGTS, v_BSKE)
        return self.out(out_BTKGE.reshape(batch, tokens, config.n_heads * config.d_head))


def _written(old_BSKE: Array, new_B1KE: Array, position: Int[Array, ""]) -> Array:
    """The cache of keys or of values with one more place filled in."""
    return jax.lax.dynamic_update_slice_in_dim(old_BSKE, new_B1KE.astype(old_BSKE.dtype), position, axis=1)
