"""The sizes and choices of a GPT, checked once, before anything is built.

Parameters of a block: attention `d (h + 2 k) e + h e d` (h heads, k key/value heads of width e = d / h) and an MLP of
`2 d f` (GELU) or `3 d f` (SwiGLU) weights.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, get_args

import jax.numpy as jnp

from trn_jax.errors import ModelError, did_you_mean

Positions = Literal["learned", "rotary"]
Activation = Literal["gelu", "swiglu"]
Norm = Literal["layer", "rms"]
_CHOICES = {"positions": get_args(Positions), "activation": get_args(Activation), "norm": get_args(Norm)}
_SIZES = ("vocab_size", "d_model", "n_layers", "n_heads", "n_kv_heads", "d_ff", "max_tokens")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class GPTConfig:
    """What a GPT is made of.

    Attributes:
        vocab_size: Number of tokens the model reads and predicts.
        d_model: Width of the residual stream.
        n_layers: Number of blocks.
        n_heads: Query heads; `d_model` is a multiple of it.
        n_kv_heads: Key/value heads (grouped-query attention); `n_heads` is a multiple of it. None means one per query head.
        d_ff: Hidden width of the MLP. None means 4 d_model for GELU and the multiple of 8 nearest 8/3 d_model for SwiGLU, so that
            both have about as many weights.
        max_tokens: Longest sequence.
        positions: "learned" position vectors, or "rotary" rotation of queries and keys.
        rotary_base: Of the wavelengths of rotary positions.
        activation: "gelu" (tanh form) or "swiglu".
        norm: "layer" (scale and bias) or "rms" (scale).
        tied_embeddings: The head uses the embedding table.
        bias: Linear maps of the blocks have a bias.
        dropout: Probability of dropping an embedding, attention or MLP output; used only when the call gets a key.
        scan_layers: One `lax.scan` over stacked blocks instead of a chain of blocks: same values, shorter programs.
        remat: Recompute each block in the backward pass instead of keeping its activations.
        param_dtype: Dtype of the weights.
        compute_dtype: Dtype of activations and matrix operands. Norms, softmax and logits are float32 in any case.

    Raises:
        ModelError: A size is not a positive integer or does not divide as it must, or a choice is unknown.
    """

    vocab_size: int = 256
    d_model: int = 128
    n_layers: int = 4
    n_heads: int = 4
    n_kv_heads: int | None = None
    d_ff: int | None = None
    max_tokens: int = 128
    positions: Positions = "rotary"
    rotary_base: float = 10_000.0
    activation: Activation = "gelu"
    norm: Norm = "rms"
    tied_embeddings: bool = False
    bias: bool = False
    dropout: float = 0.0
    scan_layers: bool = False
    remat: bool = False
    param_dtype: str = "float32"
    compute_dtype: str = "float32"

    def __post_init__(self) -> None:
        for name in _SIZES:
            size = getattr(self, name)
            if size is None and name in ("n_kv_heads", "d_ff"):
                continue
            if not isinstance(size, int) or isinstance(size, bool) or size < 1:
                raise ModelError(f"GPTConfig.{name} is {size!r}; it must be an integer of at least 1.")
        if self.d_model % self.n_heads:
            raise ModelError(f"d_model {self.d_model} does not divide into {self.n_heads} heads; make d_model a multiple of n_heads.")
        if self.n_heads % self.kv_heads:
            raise ModelError(
                f"{self.n_heads} query heads cannot share {self.kv_heads} key/value heads evenly; make n_heads a multiple of n_kv_heads."
            )
        for name, known in _CHOICES.items():
            if getattr(self, name) not in known:
                raise ModelError(f"GPTConfig.{name} is {getattr(self, name)!r}. " + did_you_mean(str(getattr(self, name)), known))
        if self.positions == "rotary" and self.d_head % 2:
            raise ModelError(
                f"Rotary positions turn pairs of features, and a head has {self.d_head} (d_model {self.d_model} / n_heads {self.n_heads}); "
                "make it even or use learned positions."
            )
        if not self.rotary_base > 1.0:
            raise ModelError(f"GPTConfig.rotary_base is {self.rotary_base!r}; it must be greater than 1, as 10000.0.")
        if not 0.0 <= self.dropout < 1.0:
            raise ModelError(f"GPTConfig.dropout is {self.dropout!r}; it must be at least 0 and below 1.")
        for name in ("param_dtype", "compute_dtype"):
            try:
                floating = jnp.issubdtype(jnp.dtype(getattr(self, name)), jnp.floating)
            except TypeError:
                floating = False
            if not floating:
                raise ModelError(
                    f"GPTConfig.{name} is {getattr(self, name)!r}; it must name a floating dtype such as 'float32' or 'bfloat16'."
                )

    @property
    def kv_heads(self) -> int:
        """Key/value heads, with the default filled in."""
        return self.n_heads if self.n_kv_heads is None else self.n_kv_heads

    @property
    def d_head(self) -> int:
        """Width of one head."""
        return self.d_model // self.n_heads

    @property
    def hidden(self) -> int:
        """Hidden width of the MLP, with the default filled in."""
        if self.d_ff is not None:
            return self.d_ff
        return 4 * self.d_model if self.activation == "gelu" else max(8, 8 * round(self.d_model / 3))

    def replace(self, **changes: Any) -> GPTConfig:
        """This configuration with some fields changed, checked again."""
        return dataclasses.replace(self, **changes)

    def parameter_count(self) -> int:
        """Number of weights of `GPT(self)`, without building it."""
        width, norm = self.d_model, self.d_model * (2 if self.norm == "layer" else 1)
        attention = width * self.d_head * (2 * self.n_heads + 2 * self.kv_heads)
        mlp = width * self.hidden * (2 if self.activation == "gelu" else 3)
        if self.bias:
            attention += self.d_head * (self.n_heads + 2 * self.kv_heads) + width
            mlp += self.hidden * (1 if self.activation == "gelu" else 2) + width
        embedding = self.vocab_size * width * (1 if self.tied_embeddings else 2)
        positions = self.max_tokens * width if self.positions == "learned" else 0
        return embedding + positions + self.n_layers * (attention + mlp + 2 * norm) + norm
