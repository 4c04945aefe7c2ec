"""Block formats: 32 neighbours share one power of two (E8M0), and each is stored as an element of a narrow scalar format.

    X = 2^max(floor(log2 max |x|) - p, -127)        value_i = X round(x_i / X)        p: `peak_exponent`

Scaling by X is exact, so every value is rounded once. The exponent is that of the values given, not of rounded ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float32, Shaped

from trn_jax.numerics import bits, nearest, stochastic
from trn_jax.numerics.formats import FORMATS, Format, scalar_format
from trn_jax.numerics.stream import random_bits

SCALE_BITS = 8  # E8M0: exponents -127 to 127, one code for NaN. Documented: OCP Microscaling (MX) specification 1.0
SMALLEST_SCALE_EXPONENT = -127


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockFormat:
    """A block-scaled (MX) format.

    Attributes:
        name: As `round_to` and `AutoCast` take it.
        element: Format of the elements.
        block: Elements that share a scale.
        peak_exponent: Exponent of the block's largest magnitude once divided by the scale: OCP's rule has the element's largest
            exponent here, Trainium3's quantize_mx one less, so that nothing is cut off.
        source: Where the layout and the rule come from.
    """

    name: str
    element: Format
    block: int = 32
    peak_exponent: int
    source: str

    @property
    def storage_bits(self) -> float:
        """Bits an element occupies in memory, with its share of the scale."""
        return self.element.storage_bits + SCALE_BITS / self.block


_QUANTIZE = "documented: NKI reference, nc_matmul_mx (blocks of 32) and quantize_mx (scale, twice that of OCP since SDK 2.31)"

BLOCK_FORMATS: Mapping[str, BlockFormat] = MappingProxyType(
    {
        fmt.name: fmt
        for fmt in (
            BlockFormat(name="mxfp8_e4m3fn", element=FORMATS["fp8_e4m3fn"], peak_exponent=7, source=_QUANTIZE),
            BlockFormat(name="mxfp8_e5m2", element=FORMATS["fp8_e5m2"], peak_exponent=14, source=_QUANTIZE),
            BlockFormat(
                name="mxfp4_e2m1fn",
                element=scalar_format("fp4_e2m1fn", 2, 1, "none", storage="float4_e2m1fn", source="documented: OCP MX specification 1.0"),
                peak_exponent=2,
                source="documented: OCP MX specification 1.0 (the chip multiplies MXFP4, but does not quantise to it)",
            ),
        )
    }
)


def round_blocks(x: Float32[Array, "*dims"], *key: Array, fmt: BlockFormat, axis: int, container: Format) -> Float32[Array, "*dims"]:
    """Rounds blocks along `axis` (not negative): to nearest without a key, stochastically with one.

    Elements past the largest one saturate. A block with an infinity or NaN has no scale and becomes NaN. The last block may
    be shorter.

    Basis: documented (OCP MX 1.0: E8M0 scale, whose NaN code makes the whole block NaN); saturation as quantize_mx; the rule for
        infinities chosen here.
    """
    word = bits.to_bits(x)
    magnitude = _cut(word & bits.MAGNITUDE, axis, fmt.block)
    peak = jnp.max(magnitude, axis=axis + 1, keepdims=True)
    exponent = lax.convert_element_type(peak >> bits.MANTISSA_BITS, jnp.int32) - (127 + fmt.peak_exponent)
    exponent = jnp.maximum(exponent, SMALLEST_SCALE_EXPONENT)  # subnormal peaks, too, lie below the smallest scale
    scaled = bits.times_power_of_two(magnitude, -exponent)
    if key:
        rounded = stochastic.round_magnitude(scaled, fmt.element, _cut(random_bits(x.shape, *key), axis, fmt.block))
    else:
        rounded = nearest.round_magnitude(scaled, fmt.element)
    rounded = jnp.minimum(rounded, bits.bits_of(fmt.element.max_finite))
    value = jnp.minimum(bits.times_power_of_two(rounded, exponent), bits.bits_of(_largest(fmt.element, container)))
    value = jnp.where(peak >= bits.INF, bits.NAN, value)
    value = value.reshape(*x.shape[:axis], -1, *x.shape[axis + 1 :]) if x.size else word
    return bits.to_float(lax.slice_in_dim(value, 0, x.shape[axis], axis=axis) | (word & bits.SIGN))


def _cut(x: Shaped[Array, "*dims"], axis: int, block: int) -> Shaped[Array, "*cut"]:
    """`axis` as two axes, block and element of the block; zeros fill up the last block."""
    missing = -x.shape[axis] % block
    x = lax.pad(x, np.zeros((), x.dtype), [(0, missing if i == axis else 0, 0) for i in range(x.ndim)])
    return x.reshape(*x.shape[:axis], x.shape[axis] // block, block, *x.shape[axis + 1 :])


def _largest(element: Format, container: Format) -> float:
    """The largest finite value of the container with no more mantissa bits than an element."""
    step = math.ldexp(1.0, math.frexp(container.max_finite)[1] - 1 - min(element.mantissa_bits, container.mantissa_bits))
    return math.floor(container.max_finite / step) * step
