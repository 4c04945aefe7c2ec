"""Layer and RMS normalisation of the residual stream, in float32 whatever the activations are.

`y = (x - mean(x)) / sqrt(var(x) + eps) * scale + bias`; RMS leaves out the mean and the bias.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from trn_jax.models.config import GPTConfig

_EPS = 1e-5


class Normalise(nnx.Module):
    """Normalises the last axis."""

    def __init__(self, config: GPTConfig) -> None:
        dtype = jnp.dtype(config.param_dtype)
        self.centred = config.norm == "layer"
        self.scale_D = nnx.Param(jnp.ones((config.d_model,), dtype))
        self.bias_D = nnx.Param(jnp.zeros((config.d_model,), dtype)) if self.centred else None

    def __call__(self, x_BTD: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        """Returns the normalised stream in the dtype of `x_BTD`."""
        with jax.named_scope("norm"):
            x = x_BTD.astype(jnp.float32)
            if self.centred:
                x = x - jnp.mean(x, axis=-1, keepdims=True)
            y = (
                x
                * jax.lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + _EPS)
                * self.scale_D[...].astype(jnp.float32)[None, None, :]
            )
            if self.bias_D is not None:
                y = y + self.bias_D[...].astype(jnp.float32)[None, None, :]
            return y.astype(x_BTD.dtype)
