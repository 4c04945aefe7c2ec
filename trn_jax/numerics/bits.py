"""The bits of float32, and how many of them a format discards.

Magnitudes are ordered as their bits are, so adding an integer to the bits rounds a value, and its carry moves into the
exponent by itself. A format keeps `mantissa_bits` of float32's 23 above `min_normal`, and one fewer in each binade below:

    discarded = 23 - mantissa_bits + max(0, exponent(min_normal) - exponent(x))

Integer operations also keep float32's own subnormal values, which its arithmetic may flush to zero.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float32, Int32, UInt32

from trn_jax.numerics.formats import Format

SIGN = np.uint32(0x8000_0000)
MAGNITUDE = np.uint32(0x7FFF_FFFF)
INF = np.uint32(0x7F80_0000)  # magnitudes above are NaN
NAN = np.uint32(0x7FC0_0000)
ONE_BINADE = np.uint32(0x0080_0000)  # the exponent's lowest bit, just above the 23 mantissa bits
MANTISSA_BITS = np.uint32(23)


def to_bits(x: Float32[Array, "*dims"]) -> UInt32[Array, "*dims"]:
    """The bits of float32 values."""
    return lax.bitcast_convert_type(x, jnp.uint32)


def to_float(bits: UInt32[Array, "*dims"]) -> Float32[Array, "*dims"]:
    """The float32 values of bits."""
    return lax.bitcast_convert_type(bits, jnp.float32)


def bits_of(value: float) -> np.uint32:
    """The bits of one known float32 value."""
    return np.float32(value).view(np.uint32)


def has_float32_exponents(fmt: Format) -> bool:
    """Whether exponents are float32's own: then equally many bits are discarded everywhere, float32's subnormals included."""
    return fmt.exponent_bits == 8 and fmt.specials == "ieee"


def discarded_bits(magnitude: UInt32[Array, "*dims"], fmt: Format) -> UInt32[Array, "*dims"]:
    """How many low bits of each significand (its leading one included) lie below the distance between neighbours."""
    lowest_exponent = bits_of(fmt.min_normal) >> MANTISSA_BITS
    return lowest_exponent + MANTISSA_BITS - np.uint32(fmt.mantissa_bits) - jnp.minimum(magnitude >> MANTISSA_BITS, lowest_exponent)


def cleared(word: UInt32[Array, "*dims"], count: UInt32[Array, "*dims"] | np.uint32) -> UInt32[Array, "*dims"]:
    """The word with its lowest `count` bits (at most 31) set to zero."""
    return word & (np.uint32(0xFFFF_FFFF) << count)


def times_power_of_two(magnitude: UInt32[Array, "*dims"], exponent: Int32[Array, "*#dims"]) -> UInt32[Array, "*dims"]:
    """Bits of a finite magnitude times 2^exponent, float32's subnormal values included; what is below those is cut off.

    Past the largest finite value comes infinity.
    """
    field = (magnitude >> MANTISSA_BITS).astype(jnp.int32)
    significand = jnp.where(field > 0, magnitude & (ONE_BINADE - np.uint32(1)) | ONE_BINADE, magnitude)
    missing = lax.clz(significand) - np.uint32(8)  # leading zeros of a subnormal value
    significand = significand << jnp.minimum(missing, np.uint32(31))
    field = jnp.maximum(field, 1) - missing.astype(jnp.int32) + exponent
    normal = jnp.where(field > 254, INF, (field.astype(jnp.uint32) << MANTISSA_BITS) + (significand - ONE_BINADE))
    subnormal = significand >> jnp.clip(1 - field, 0, 31).astype(jnp.uint32)
    return jnp.where(significand == 0, np.uint32(0), jnp.where(field > 0, normal, subnormal))
