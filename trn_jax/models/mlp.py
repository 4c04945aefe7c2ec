"""The feed-forward half of a block: `out(gelu(in(x)))`, or SwiGLU `out(silu(gate(x)) * in(x))`."""

from __future__ import annotations

import jax
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from trn_jax.models.config import GPTConfig
from trn_jax.models.linear import Linear


class MLP(nnx.Module):
    """Two matrices around GELU, or three around a gated SiLU."""

    def __init__(self, config: GPTConfig, *, key: PRNGKeyArray) -> None:
        up_key, gate_key, down_key = jax.random.split(key, 3)
        self.up = Linear(config.d_model, config.hidden, config, key=up_key)
        self.gate = Linear(config.d_model, config.hidden, config, key=gate_key) if config.activation == "swiglu" else None
        self.down = Linear(config.hidden, config.d_model, config, key=down_key, gain=(2 * config.n_layers) ** -0.5)

    def __call__(self, x_BTD: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        """Returns what the MLP adds to the residual stream."""
        with jax.named_scope("mlp"):
            up_BTF = self.up(x_BTD)
            hidden_BTF = jax.nn.gelu(up_BTF, approximate=True) if self.gate is None else jax.nn.silu(self.gate(x_BTD)) * up_BTF
            return self.down(hidden_BTF)
