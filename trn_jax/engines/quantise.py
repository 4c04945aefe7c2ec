"""Operands of a product in a narrow format: rounded as they are, in MX blocks, or as multiples of a scale.

    code = round(x / scale)        scale = max(max |x| / largest value of the format, 2^-126)

"tensor" has one scale for the whole operand, "block" one for every row (lhs) or column (rhs) and K tile.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Float32

from trn_jax.engines.kind import Execution
from trn_jax.numerics import BLOCK_FORMATS, block_rounder, get_format, rounder

SMALLEST_SCALE = 2.0**-126  # the smallest normal number: smaller ones may be flushed to zero on the way


class Quantised(NamedTuple):
    """An operand as the array takes it, and what its products are to be multiplied by (None for 1).

    codes: [B, M, K] or [B, K, N]. scale: [1, 1, 1], or with one entry per K tile along K's axis.
    """

    codes: Float32[Array, "B R C"]
    scale: Float32[Array, "#B #R #C"] | None = None

    def values(self, k_axis: int, tile: int) -> Float32[Array, "B R C"]:
        """What the codes stand for."""
        if self.scale is None:
            return self.codes
        if self.scale.size == 1:
            return self.codes * self.scale
        return self.codes * lax.slice_in_dim(jnp.repeat(self.scale, tile, axis=k_axis), 0, self.codes.shape[k_axis], axis=k_axis)


def largest_magnitude(x: Float[Array, "*shape"]) -> Float32[Array, "1 1 1"]:
    """Largest magnitude of an operand, as `quantise` takes it; 0 of an empty one. Gradient: none."""
    return jnp.max(jnp.abs(lax.stop_gradient(x)), initial=0).astype(jnp.float32).reshape(1, 1, 1)


def quantise(
    x: Float32[Array, "B R C"],
    k_axis: int,
    fmt: str,
    scaling: str,
    tile: int,
    execution: Execution,
    key: Any,
    peak: Float32[Array, "1 1 1"] | None = None,
) -> Quantised:
    """`x` in `fmt` ("" leaves it).

    Zeros have a positive scale, and no finite operand reaches past the format's largest value. With an infinity or NaN the scale is 1,
    so that it stays visible.

    Args:
        x: Matrices.
        k_axis: Contracted axis: along it lie MX blocks and K tiles.
        fmt: Scalar or block format.
        scaling: "" (none), "tensor" or "block".
        tile: Length of a K tile.
        execution: Rounding and overflow.
        key: Random stream, or None.
        peak: Largest magnitude of the operand; needed for "tensor".

    Gradient: none of its own; `engines.recipe` passes it straight through.
    """
    if not fmt or not x.size:
        return Quantised(x)
    if fmt in BLOCK_FORMATS:
        return Quantised(block_rounder(fmt, execution.rounding, axis=k_axis)(x, key))
    round_x = rounder(fmt, execution.rounding, execution.overflow)
    if not scaling:
        return Quantised(round_x(x, key))
    largest = get_format(fmt).max_finite
    if peak is not None:
        scale = _scale(peak, largest)
        return Quantised(round_x(_divided(x, scale, largest), key), scale)
    length = x.shape[k_axis]
    tiles = -(-length // tile)
    padded = lax.pad(x, np.float32(0), [(0, tiles * tile - length if axis == k_axis else 0, 0) for axis in range(x.ndim)])
    cut = padded.reshape(*x.shape[:k_axis], tiles, tile, *x.shape[k_axis + 1 :])
    scale = _scale(jnp.max(jnp.abs(cut), axis=k_axis + 1, keepdims=True), largest)
    divided = lax.slice_in_dim(_divided(cut, scale, largest).reshape(padded.shape), 0, length, axis=k_axis)
    return Quantised(round_x(divided, key), jnp.squeeze(scale, k_axis + 1))


def _scale(peak: Array, largest: float) -> Array:
    scale = jnp.maximum(peak / np.float32(largest), np.float32(SMALLEST_SCALE))
    return jnp.where(jnp.isfinite(peak), scale, np.float32(1))


def _divided(x: Array, scale: Array, largest: float) -> Array:
    """x / scale; the division may end one bit past the largest value, from where stochastic rounding could go up."""
    return jnp.where(jnp.isinf(x), x, jnp.clip(x / scale, -np.float32(largest), np.float32(largest)))
