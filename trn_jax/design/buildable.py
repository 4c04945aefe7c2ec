"""What can be built: counts are whole numbers, memories whole KiB, everything else a number of three digits."""

from __future__ import annotations

import math

import numpy as np

from trn_jax.units import KIB

COUNTS = frozenset(
    {
        "cores",
        "tensor.rows",
        "tensor.cols",
        "tensor.min_columns",
        "tensor.max_moving_columns",
        "vector.lanes",
        "scalar.lanes",
        "gpsimd.lanes",
        "psum.banks",
        "dma.engines",
        "hbm.stacks",
        "hbm.active_cores",
    }
)
DIGITS = 3


def step_of(path: str) -> float | None:
    """The step between values of a leaf that can be built, in its unit; None where any number of `DIGITS` digits can."""
    if path in COUNTS:
        return 1.0
    return KIB if path.endswith(".size_bytes") else None


def rounded(path: str, values: np.ndarray, low: float, high: float) -> np.ndarray:
    """The nearest values inside the range that can be built; for leaves without a step its ends always can.

    Args:
        path: Dotted path of the leaf.
        values: Any shape, in the leaf's unit.
        low: Least value allowed.
        high: Largest value allowed.
    """
    step = step_of(path)
    if step is not None:
        return np.clip(np.round(values / step), math.ceil(low / step), math.floor(high / step)) * step
    digits = np.array([float(f"{value:.{DIGITS}g}") for value in np.ravel(values)]).reshape(np.shape(values))
    return np.clip(digits, low, high)


def has_buildable(path: str, low: float, high: float) -> bool:
    """Whether any value of the range can be built."""
    step = step_of(path)
    return step is None or math.ceil(low / step) <= math.floor(high / step)
