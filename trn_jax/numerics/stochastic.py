"""Rounding of float32 magnitudes to one of the two neighbours in a format, the nearer one more often.

With lower and upper the neighbours of x, P(upper) = (x - lower) / (upper - lower), so that the mean of many roundings is x.
On bits this is one addition: uniform random bits are added to the bits that will be discarded, and a carry decides.

    rounded = (magnitude + random) with the discarded bits cleared

All discarded bits decide, from 13 (fp16, tf32) to 21 (fp8_e5m2). Below `min_normal`, where ever more bits are discarded, the
distance to the lower neighbour is first cut to a multiple of 2^-24 steps (2^-21 for fp16), which biases the mean by less
than that. Basis: derived (the hardware's random source and the number of bits it uses are not published).
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
    discarded = bits.MANTISSA_BITS - fmt.mantissa_bits
    normal = (magnitude + (random >> np.uint32(32 - discarded))) & ~bits.low_mask(discarded)
    if fmt.min_normal <= float(np.finfo(np.float32).tiny):  # float32's own subnormals: the same formula holds
        return normal
    fraction_bits = min(24, 31 - fmt.mantissa_bits)
    fixed_point = (bits.to_float(magnitude) * np.float32(2.0**fraction_bits / fmt.min_subnormal)).astype(jnp.int32).astype(jnp.uint32)
    steps = (fixed_point + (random >> np.uint32(32 - fraction_bits))) >> np.uint32(fraction_bits)
    subnormal = bits.to_bits(steps.astype(jnp.int32).astype(jnp.float32) * np.float32(fmt.min_subnormal))
    return jnp.where(magnitude < bits.bits_of(fmt.min_normal), subnormal, normal)
