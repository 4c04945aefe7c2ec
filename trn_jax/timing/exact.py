"""float64 inside, the caller's precision outside: values and gradients of any order, under jit, grad and vmap.

An array of 64 bits cannot be made outside `jax.enable_x64`, and the backward pass of a function runs long after the function has
returned. So value and pullback are both wrapped, and the pullback of the pullback, and so on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def precision(dtype: Any) -> Any:
    """A context in which arrays of this dtype can be made, whatever the caller's jax_enable_x64; float32 needs none."""
    return jax.enable_x64(True) if jnp.dtype(dtype) == np.float64 else contextlib.nullcontext()


def in_float64(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, always evaluated and differentiated with 64 bit floats enabled.

    Args:
        function: Takes arrays in the caller's precision, widens them itself, and returns arrays in the caller's precision.

    Returns:
        A function of the same arguments. The pullback evaluates `function` again.

    Gradient: that of `function`, in reverse mode.
    """

    @jax.custom_vjp
    def exact(*args: Any) -> Any:
        with jax.enable_x64(True):
            return function(*args)

    def pullback(args: tuple[Any, ...], cotangent: Any) -> Any:
        return jax.vjp(function, *args)[1](cotangent)

    exact.defvjp(lambda *args: (exact(*args), args), lambda args, cotangent: in_float64(pullback)(args, cotangent))
    return exact
