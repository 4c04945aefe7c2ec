"""The bits of float32: sign, magnitude and the constants that rounding on bits needs.

Non-negative float32 values are ordered as their bits are, so one integer addition rounds a value, its carry moving into the
exponent by itself. Integer operations also keep subnormal values, which float32 arithmetic may flush to zero.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float32, UInt32

SIGN = np.uint32(0x8000_0000)
MAGNITUDE = np.uint32(0x7FFF_FFFF)
INF = np.uint32(0x7F80_0000)  # magnitudes above are NaN
NAN = np.uint32(0x7FC0_0000)
MANTISSA_BITS = 23


def to_bits(x: Float32[Array, "*dims"]) -> UInt32[Array, "*dims"]:
    """The bits of float32 values."""
    return lax.bitcast_convert_type(x, jnp.uint32)


def to_float(bits: UInt32[Array, "*dims"]) -> Float32[Array, "*dims"]:
    """The float32 values of bits."""
    return lax.bitcast_convert_type(bits, jnp.float32)


def bits_of(value: float | np.float32) -> np.uint32:
    """The bits of one known float32 value."""
    return np.float32(value).view(np.uint32)


def low_mask(count: int) -> np.uint32:
    """A word whose lowest `count` bits are set."""
    return np.uint32((1 << count) - 1)
