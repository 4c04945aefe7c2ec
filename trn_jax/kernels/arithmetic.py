"""Names of operations, as NKI has them, and what they compute in fp32."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from trn_jax.errors import ProgramError, did_you_mean

# of two operands, on the Vector Engine
ALU: dict[str, Callable[[Any, Any], Any]] = {
    "add": jnp.add,
    "subtract": jnp.subtract,
    "multiply": jnp.multiply,
    "divide": jnp.divide,
    "maximum": jnp.maximum,
    "minimum": jnp.minimum,
    "power": jnp.power,
    "equal": jnp.equal,
    "not_equal": jnp.not_equal,
    "greater": jnp.greater,
    "greater_equal": jnp.greater_equal,
    "less": jnp.less,
    "less_equal": jnp.less_equal,
}

REDUCTIONS: dict[str, Callable[..., Any]] = {"add": jnp.sum, "maximum": jnp.max, "minimum": jnp.min, "multiply": jnp.prod}

# of one operand, on the Scalar Engine
ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "copy": lambda x: x,
    "exp": jnp.exp,
    "log": jnp.log,
    "sqrt": jnp.sqrt,
    "rsqrt": jax.lax.rsqrt,
    "reciprocal": lambda x: 1 / x,
    "square": jnp.square,
    "abs": jnp.abs,
    "sign": jnp.sign,
    "tanh": jnp.tanh,
    "sigmoid": jax.nn.sigmoid,
    "erf": jax.lax.erf,
    "relu": jax.nn.relu,
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "gelu_apprx_tanh": lambda x: jax.nn.gelu(x, approximate=True),
    "silu": jax.nn.silu,
    "softplus": jax.nn.softplus,
    "mish": lambda x: x * jnp.tanh(jax.nn.softplus(x)),
    "sin": jnp.sin,
    "arctan": jnp.arctan,
}


def named(table: Mapping[str, Callable[..., Any]], name: str, what: str) -> Callable[..., Any]:
    """The function of a name.

    Raises:
        ProgramError: An unknown name; has the closest match.
    """
    if not isinstance(name, str) or name not in table:
        raise ProgramError(f"{what} has no operation {name!r}. {did_you_mean(str(name), table)}")
    return table[name]
