"""Soft maxima and ceilings: hard at smoothing 0, never below the hard value, growing with smoothing, without kinks.

    smooth_max(a, b, w) = (a + b + sqrt((a - b)^2 + w^2)) / 2          w = smoothing * (a time that scales with a and b)
    smooth_ceil(x, s)   = R(x) + s x                                   R: a staircase with its steps rounded off

So a relaxed time is an upper bound of the exact one. Where everything that goes in is a time (or is divided by a rate), what comes
out scales with the unit of time, which is what the elasticity law rests on: a width must never be a constant in seconds.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np


def is_hard(smoothing: Any) -> bool:
    """Whether smoothing (or a width) is a concrete zero, so that the exact operator can be used; False for traced values."""
    return isinstance(smoothing, (int, float, np.generic)) and float(smoothing) == 0.0


def width(smoothing: Any, scale: Any) -> Any:
    """Width of a soft maximum: smoothing times a scale in the unit of what is compared; a Python 0.0 where smoothing is one."""
    return 0.0 if is_hard(smoothing) else smoothing * scale


def smooth_max(a: Any, b: Any, width: Any) -> Any:
    """Larger of two values, rounded off where they are closer than about `width`.

    Args:
        a: Array or number.
        b: Array or number in the same unit.
        width: Non-negative, in the same unit; 0 gives `jnp.maximum` exactly.

    Returns:
        At least max(a, b) and at most max(a, b) + width / 2, which it is at a tie.

    Gradient: between 0 and 1 for each side and never exactly 0 for width > 0; half and half at a tie, also for width 0.
    """
    hard = jnp.maximum(a, b)
    return hard if is_hard(width) else hard + _excess(a - b, width) / 2


def smooth_min(a: Any, b: Any, width: Any) -> Any:
    """Smaller of two values from above: at least min(a, b) and less than min(a, b) + width / 2, reached far from a tie.

    Gradient: between 0 and 1 for each side; half and half at a tie.
    """
    hard = jnp.minimum(a, b)
    return hard if is_hard(width) else hard + (width - _excess(a - b, width)) / 2


def smooth_max_over(values: Any, width: Any) -> Any:
    """Largest of `values` along its first axis, pair by pair; at most width / 2 above the hard one.

    Gradient: shared by equal values; never exactly 0 for width > 0.
    """
    levels = max(1, (len(values) - 1).bit_length())
    width = width if is_hard(width) else jnp.broadcast_to(width / levels, values.shape[1:])[None]
    while len(values) > 1:
        half = len(values) // 2
        paired = smooth_max(values[:half], values[half : 2 * half], width)
        values = paired if len(values) == 2 * half else jnp.concatenate([paired, values[2 * half :]])
    return values[0]


def smooth_relu(x: Any, width: Any) -> Any:
    """max(x, 0), rounded off at zero as `smooth_max` does."""
    return smooth_max(x, jnp.zeros_like(x), width)


def smooth_ceil(x: Any, smoothing: Any, resolution: Any = 1.0) -> Any:
    """Number of pieces that x is cut into: exact for whole sizes, with a gradient under smoothing.

    A size K in pieces of `rows` gives x = K / rows. Whole numbers K and rows can leave a remainder of no less than
    `resolution` = 1 / rows, so the step from n to n + 1 is put where no whole size falls: x in [n + r/4, n + 3r/4], a cubic ramp
    for smoothing > 0 and a jump at its end for smoothing 0. Exact multiples of `rows` lie on a flat stretch on both sides, and
    rounding errors of the division do no harm. The term smoothing * x is what makes the array size matter between the steps.

    Args:
        x: Size over piece size, any shape.
        smoothing: 0 for the exact count; the relaxed count lies at most smoothing * (exact count) above it.
        resolution: Smallest remainder of x, at most 1.

    Returns:
        Float array: ceil(x) at smoothing 0, for whole sizes; elsewhere the step lies at n + 3r/4.

    Gradient: 0 at smoothing 0; the smoothing at whole sizes otherwise, equal to finite differences.
    """
    quarter = resolution / 4
    hard = jnp.ceil(x - 3 * quarter)
    if is_hard(smoothing):
        return hard
    floor = jnp.floor(x)
    ramp = jnp.clip((x - floor - quarter) / (2 * quarter), 0.0, 1.0)
    staircase = floor + ramp * ramp * (3 - 2 * ramp)
    return jnp.where(smoothing > 0, staircase, hard) + smoothing * x


def _excess(difference: Any, width: Any) -> Any:
    """sqrt(d^2 + w^2) - |d|, with a finite gradient (zero) where d and w are both zero."""
    square = difference * difference + width * width
    positive = square > 0
    root = jnp.where(positive, jnp.sqrt(jnp.where(positive, square, 1.0)), 0.0)
    return root - jnp.maximum(difference, -difference)  # jnp.abs would have slope 1 at zero
