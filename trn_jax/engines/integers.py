"""32-bit integers on engines that compute in fp32: converted, computed, converted back modulo 2^32.

2^24 + 1 -> 2^24        65537 * 65537 -> 4295098368 -> 131072        2^31 - 1 -> 2^31 -> -2^31
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float32, Int

_WORDS = np.float32(2**32)


def through_fp32(function: Callable[..., list[Any]], operands: Sequence[Any]) -> list[Any]:
    """`function` on fp32 operands; results that are numbers come back in the operands' dtype, flags as they are.

    Basis: documented (NKI reference: Vector Engine arithmetic converts integers to fp32); assumed (results beyond 32 bits wrap, as
        users report; AWS's CPU simulator saturates).
    """
    dtype = jnp.result_type(operands[0])
    results = function(*(jnp.asarray(x).astype(jnp.float32) for x in operands))
    return [_wrapped(x, dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x for x in results]


def _wrapped(x: Float32[Array, "*dims"], dtype: Any) -> Int[Array, "*dims"]:
    """Whole numbers modulo 2^32; every step is exact, also for a product of 2^64."""
    magnitude = jnp.abs(x)
    word = (magnitude - jnp.floor(magnitude / _WORDS) * _WORDS).astype(jnp.uint32)
    return jnp.where(x < 0, np.uint32(0) - word, word).astype(dtype)
