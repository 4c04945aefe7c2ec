"""Rounding of float32 magnitudes to the nearest value of a format, ties to the even mantissa, as if the exponent had no top.

    rounded = (magnitude + half - 1 + lowest kept bit) with the discarded bits cleared

where half is the highest discarded bit alone; the lowest kept bit makes exact ties go up only from an odd mantissa.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, UInt32

from trn_jax.numerics import bits
from trn_jax.numerics.formats import Format


def round_magnitude(magnitude: UInt32[Array, "*dims"], fmt: Format) -> UInt32[Array, "*dims"]:
    """Bits of the nearest value; infinity stays, the bits of a NaN come out as anything."""
    if bits.has_float32_exponents(fmt):
        return _round(magnitude, bits.MANTISSA_BITS - np.uint32(fmt.mantissa_bits), magnitude)
    smallest = bits.bits_of(fmt.min_subnormal)
    # Between one and two smallest values only the leading one is kept. It is not stored: in its place stands the exponent's
    # lowest bit, which is flipped for the test of oddness if it is not one there.
    parity = magnitude ^ (~smallest & bits.ONE_BINADE)
    rounded = _round(magnitude, jnp.minimum(bits.discarded_bits(magnitude, fmt), bits.MANTISSA_BITS), parity)
    half_smallest = smallest - bits.ONE_BINADE
    below = jnp.where(magnitude > half_smallest, smallest, np.uint32(0))
    return jnp.where(magnitude < smallest, below, rounded)


def _round(magnitude: Array, count: Array | np.uint32, parity: Array) -> Array:
    """Discards `count` bits; the bit of `parity` above them says whether the kept part is odd."""
    half_less_one = (np.uint32(1) << (count - np.uint32(1))) - np.uint32(1)
    return bits.cleared(magnitude + half_less_one + ((parity >> count) & np.uint32(1)), count)
