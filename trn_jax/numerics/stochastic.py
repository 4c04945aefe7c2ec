"""Rounding of float32 magnitudes to one of the two neighbours in a format, the nearer one more often.

With lower and upper the neighbours of x, P(upper) = (x - lower) / (upper - lower), so that the mean of many roundings is x.
On bits this is one addition: uniform random bits are added to the bits that will be discarded, and a carry decides.

    rounded = (magnitude + random) with the discarded bits cleared

As many random bits are used as are discarded: 16 for bf16, 13 to 21 for the others, more in their subnormal range. From 24
on, below the smallest value, P(upper) = x / smallest is cut to a multiple of 2^-24, which biases the mean by less than
2^-24 of the smallest value. Basis: derived (how the hardware draws its bits, and how many, is not published).
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, UInt32

from trn_jax.numerics import bits
from trn_jax.numerics.formats import Format


def round_magnitude(magnitude: UInt32[Array, "*dims"], fmt: Format, random: UInt32[Array, "*dims"]) -> UInt32[Array, "*dims"]:
    """Bits of one of the two neighbours, as if the exponent had no top; infinity stays, NaN comes out as anything.

    Args:
        magnitude: Bits of non-negative float32 values.
        fmt: The format.
        random: Words whose upper 24 bits are random.
    """
    if bits.has_float32_exponents(fmt):
        return _round(magnitude, bits.MANTISSA_BITS - np.uint32(fmt.mantissa_bits), random)
    discarded = bits.discarded_bits(magnitude, fmt)
    rounded = _round(magnitude, jnp.minimum(discarded, bits.MANTISSA_BITS), random)
    smallest = bits.bits_of(fmt.min_subnormal)
    significand = (magnitude & (bits.ONE_BINADE - np.uint32(1))) | bits.ONE_BINADE
    fraction = significand >> jnp.minimum(discarded - np.uint32(24), np.uint32(31))  # of the smallest value, in units of 2^-24
    below = jnp.where(fraction + (random >> np.uint32(8)) >= np.uint32(2**24), smallest, np.uint32(0))
    return jnp.where(magnitude < smallest, below, rounded)


def _round(magnitude: Array, count: Array | np.uint32, random: Array) -> Array:
    """Discards `count` bits after adding as many random ones."""
    return bits.cleared(magnitude + (random >> (np.uint32(32) - count)), count)
