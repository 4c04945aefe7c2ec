"""A decoder-only transformer in Flax NNX: embedding, pre-norm blocks, head.

`x = x + attention(norm(x)); x = x + mlp(norm(x))`, `n_layers` times. Every part runs in a named scope, because NNX itself leaves no
names in the jaxpr and reports are read by part.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from trn_jax.errors import ModelError
from trn_jax.models.attention import Attention, KVCache
from trn_jax.models.config import GPTConfig
from trn_jax.models.linear import Linear
from trn_jax.models.mlp import MLP
from trn_jax.models.norm import Normalise


def drop(x: Float[Array, "*shape"], rate: float, key: PRNGKeyArray | None) -> Float[Array, "*shape"]:
    """Dropout: each element is 0 with probability `rate`, the others are scaled up; without a key nothing happens."""
    if key is None or rate == 0.0:
        return x
    with jax.named_scope("dropout"):
        return jnp.where(jax.random.bernoulli(key, 1.0 - rate, x.shape), x / (1.0 - rate), 0.0).astype(x.dtype)


class Block(nnx.Module):
    """Attention and MLP around one stretch of the residual stream."""

    def __init__(self, config: GPTConfig, key: PRNGKeyArray) -> None:
        attention_key, mlp_key = jax.random.split(key)
        self.dropout = config.dropout
        self.attention_norm = Normalise(config)
        self.attention = Attention(config, key=attention_key)
        self.mlp_norm = Normalise(config)
        self.mlp = MLP(config, key=mlp_key)

    def __call__(self, x_BTD: Float[Array, "B T D"], key: PRNGKeyArray | None = None) -> Float[Array, "B T D"]:
        """Returns the stream after this block; `key` turns dropout on."""
        attention_key, mlp_key = (None, None) if key is None else jax.random.split(key)
        x_BTD = x_BTD + drop(self.attention(self.attention_norm(x_BTD)), self.dropout, attention_key)
        return x_BTD + drop(self.mlp(self.mlp_norm(x_BTD)), self.dropout, mlp_key)

    def decode(self, x_B1D: Float[Array, "B 1 D"], cache: KVCache, position: Int[Array, ""]) -> tuple[Float[Array, "B 1 D"], KVCache]:
        """The stream of one more token after this block, and the block's cache with that token in it."""
        attended_B1D, cache = self.attention.decode(self.attention_norm(x_B1D), cache, position)
        x_B1D = x_B1D + attended_B1D
        return x_B1D + self.mlp(self.mlp_norm(x_B1D)), cache


class GPT(nnx.Module):
    """The model. `split_model(model)` gives it as a pure function of its weights.

    Args:
        config: Sizes and choices.
        seed: Seed of the initial weights; scanned and unscanned models of one seed have equal weights.
    """

    def __init__(self, config: GPTConfig, *, seed: int = 0) -> None:
        self.config = config
        table_key, position_key, head_key, blocks_key = jax.random.split(jax.random.key(seed), 4)
        dtype = jnp.dtype(config.param_dtype)
        rows = lambda key, count: nnx.Param((jax.random.normal(key, (count, config.d_model)) * config.d_model**-0.5).astype(dtype))
        self.table_VD = rows(table_key, config.vocab_size)
        self.position_TD = rows(position_key, config.max_tokens) if config.positions == "learned" else None
        keys = jax.random.split(blocks_key, config.n_layers)
        if config.scan_layers:
            self.blocks = nnx.vmap(lambda key: Block(config, key))(keys)
        else:
            self.blocks = nnx.List([Block(config, key) for key in keys])
        self.final_norm = Normalise(config)
        self.head = None if config.tied_embeddings else Linear(config.d_model, config.vocab_size, config, key=head_key, bias=False)

    def __call__(self, tokens_BT: Int[Array, "B T"], *, dropout_key: PRNGKeyArray | None = None) -> Float[Array, "B T V"]:
        """Logits of the next token at every place.

        Args:
            tokens_BT: Token numbers in [0, vocab_size).
            dropout_key: Turns dropout on; None (evaluation, sampling) leaves it off.

        Returns:
            Float32 logits; those at place t depend on tokens 0..t only.

        Raises:
            ModelError: The sequence is longer than `max_tokens`, or tokens are not a batch of sequences.
        """
        config = self.config
        if tokens_BT.ndim != 2 or tokens_BT.shape[1] > config.max_tokens:
            raise ModelError(
                f"tokens have shape {tokens_BT.shape}; expected (batch, tokens) with at most max_tokens = {config.max_tokens} tokens."
            )
        keys = None if dropout_key is None else jax.random.split(dropout_key, config.n_layers + 1)
        x_BTD = drop(self._embed(tokens_BT, None), config.dropout, None if keys is None else keys[-1])
        return self._logits(self._run_blocks(x_BTD, None if keys is None else keys[:-1]))

    def decode(
        self, tokens_B1: Int[Array, "B 1"], caches: Sequence[KVCache], position: Int[Array, ""]
    ) -> tuple[Float[Array, "B 1 V"], tuple[KVCache, ...]]:
        """Logits after one more token, given the keys and values of those before it.

        Args:
            tokens_B1: The token at `position`, for each sequence.
            caches: Of every layer; `empty_caches` makes them.
            position: Its place, from 0; the same in all sequences. Past the end of the caches it counts as their last place.

        Returns:
            Logits of the next token, as the whole sequence would give them, and the caches with this token in them.

        Raises:
            ModelError: A model with `scan_layers`, or another number of caches than layers.
        """
        if isinstance(self.blocks, Block):
            raise ModelError("decode needs its layers one by one; build the model with scan_layers=False, or use unstack_blocks.")
        if len(caches) != len(self.blocks):
            raise ModelError(f"decode got {len(caches)} caches for {len(self.blocks)} layers; make them with empty_caches(config, ...).")
        x_B1D, updated = self._embed(tokens_B1, position), []
        for index, (block, cache) in enumerate(zip(self.blocks, caches, strict=True)):
            with jax.named_scope(f"block{index}"):
                x_B1D, cache = block.decode(x_B1D, cache, position)
            updated.append(cache)
        return self._logits(x_B1D), tuple(updated)

    def _embed(self, tokens_BT: Int[Array, "B T"], first: Int[Array, ""] | None) -> Float[Array, "B T D"]:
        """Tokens as vectors; `first` is the place of the first one, None for a sequence from its beginning."""
        config, tokens = self.config, tokens_BT.shape[1]
        with jax.named_scope("embedding"):
            # Rows of length one, scaled so that each element of the stream starts near one.
            x_BTD = jnp.take(self.table_VD[...], tokens_BT, axis=0).astype(config.compute_dtype) * config.d_model**0.5
            if self.position_TD is None:
                return x_BTD
            table_TD = self.position_TD[...]
            place_TD = table_TD[:tokens] if first is None else jax.lax.dynamic_slice_in_dim(table_TD, first, tokens)
            return x_BTD + place_TD[None].astype(config.compute_dtype) * config.d_model**0.5

    def _logits(self, x_BTD: Float[Array, "B T D"]) -> Float[Array, "B T V"]:
        config, x_BTD = self.config, self.final_norm(x_BTD)
        with jax.named_scope("head"):
            if self.head is not None:
                logits_BTV = self.head(x_BTD)
            else:
                # Scaled down; otherwise each token would begin by predicting itself.
                logits_BTV = jnp.dot(x_BTD, self.table_VD[...].astype(config.compute_dtype).T) * config.d_model**-0.5
            return logits_BTV.astype(jnp.float32)

    def _run_blocks(self, x_BTD: Float[Array, "B T D"], keys: PRNGKeyArray | None) -> Float[Array, "B T D"]:
        """The chain of blocks, as a scan over stacked weights or written out."""

        def apply(block: Block, x: Array, key: PRNGKeyArray | None) -> Array:
            return block(x, key)

        run = jax.checkpoint(apply) if self.config.remat else apply
        if isinstance(self.blocks, Block):
            with jax.named_scope("blocks"):
                return jax.lax.scan(lambda x, each: (run(each[0], x, each[1]), None), x_BTD, (self.blocks, keys))[0]
        for index, block in enumerate(self.blocks):
            with jax.named_scope(f"block{index}"):
                x_BTD = run(block, x_BTD, None if keys is None else keys[index])
        return x_BTD


def empty_caches(config: GPTConfig, batch: int, tokens: int) -> tuple[KVCache, ...]:
    """Caches of all layers for `batch` sequences of up to `tokens` tokens, in the compute dtype; zeros, which nothing looks at."""
    shape = (batch, tokens, config.kv_heads, config.d_head)
    return tuple(KVCache(*(jnp.zeros(shape, config.compute_dtype) for _ in range(2))) for _ in range(config.n_layers))
