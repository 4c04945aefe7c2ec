"""A matrix of weights and the one way it is applied: `y_..O = x_..I @ kernel_IO (+ bias_O)`, all in the compute dtype."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from trn_jax.models.config import GPTConfig


class Linear(nnx.Module):
    """A linear map; weights start normal with standard deviation `gain / sqrt(inputs)`, a bias at 0."""

    def __init__(
        self, inputs: int, outputs: int, config: GPTConfig, *, key: PRNGKeyArray, gain: float = 1.0, bias: bool | None = None
    ) -> None:
        kernel_IO = jax.random.normal(key, (inputs, outputs)) * (gain / inputs**0.5)
        self.kernel_IO = nnx.Param(kernel_IO.astype(config.param_dtype))
        self.bias_O = nnx.Param(jnp.zeros((outputs,), config.param_dtype)) if (config.bias if bias is None else bias) else None
        self.compute_dtype = config.compute_dtype

    def __call__(self, x: Float[Array, "*batch I"]) -> Float[Array, "*batch O"]:
        """Returns `x @ kernel`, plus the bias if there is one, in the compute dtype."""
        y = jnp.dot(x.astype(self.compute_dtype), self.kernel_IO[...].astype(self.compute_dtype))
        return y if self.bias_O is None else y + jnp.expand_dims(self.bias_O[...].astype(self.compute_dtype), tuple(range(x.ndim - 1)))
