"""Rounding of float32 magnitudes to the nearest value of a format, ties to the even mantissa, as if the exponent had no top.

Above `min_normal` the distance between neighbours follows the exponent, and on bits

    rounded = (magnitude + half - 1 + lowest kept bit) with the discarded bits cleared.

Below it neighbours are a constant `min_subnormal` apart: adding 2^23 min_subnormal makes float32's own addition round to a
whole number of them, which is then read from the bits of the sum (no optimisation of floating-point sums can undo it).
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, UInt32

from trn_jax.numerics import bits
from trn_jax.numerics.formats import Format


def round_magnitude(magnitude: UInt32[Array, "*dims"], fmt: Format) -> UInt32[Array, "*dims"]:
    """Bits of the nearest value; infinity stays, the bits of a NaN come out as anything."""
    discarded = bits.MANTISSA_BITS - fmt.mantissa_bits
    half_less_one = bits.low_mask(discarded - 1)
    lowest_kept = (magnitude >> np.uint32(discarded)) & np.uint32(1)
    normal = (magnitude + half_less_one + lowest_kept) & ~bits.low_mask(discarded)
    if fmt.min_normal <= float(np.finfo(np.float32).tiny):  # float32's own subnormals: the same formula holds
        return normal
    shifter = np.float32(2.0**bits.MANTISSA_BITS * fmt.min_subnormal)
    steps = bits.to_bits(bits.to_float(magnitude) + shifter) - bits.bits_of(shifter)
    subnormal = bits.to_bits(steps.astype(jnp.int32).astype(jnp.float32) * np.float32(fmt.min_subnormal))
    return jnp.where(magnitude < bits.bits_of(fmt.min_normal), subnormal, normal)
