"""Our own tables for the Scalar Engine: cubics fitted in float64, segments halved until the cubic is close enough.

AWS publishes the input ranges of some functions, not the coefficients of its tables, their number or their error. Ranges here
are the documented ones where there are any; elsewhere the function is constant beyond the table's ends.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np

from trn_jax.numerics.activation_table import ActivationTable

TOLERANCE = 2.0**-23  # of a cubic, relative to the function. Assumed: about as good as fp32 itself
SMALLEST = 2.0**-12  # octaves of a range around zero begin here; inside is one segment
_SAMPLES = 16  # points of a segment at which the cubic is compared


class Source(NamedTuple):
    """What a table is fitted to.

    function: in float64. low, high: range. anchors: points where the fit is exact (zeros, above all). below, above: as in
    `ActivationTable`. basis: of the range.
    """

    function: Callable[[np.ndarray], np.ndarray]
    low: float
    high: float
    anchors: tuple[float, ...] = (0.0,)
    below: float | None = None
    above: float | None = None
    basis: str = "documented: NKI reference, supported activation functions"


_ASSUMED = "assumed: where fp32 has nothing beyond"
_PI = float(np.float32(math.pi))  # rounds up: sin is evaluated a little past its zero

SOURCES: dict[str, Source] = {
    "exp": Source(np.exp, -87.25, 88.5, (0.0,), 0.0, math.inf, _ASSUMED),
    "tanh": Source(np.tanh, -9.0, 9.0, (0.0,), -1.0, 1.0, _ASSUMED),
    "logistic": Source(lambda x: 1 / (1 + np.exp(-x)), -87.25, 17.0, (0.0,), 0.0, 1.0, _ASSUMED),
    "erf": Source(np.vectorize(math.erf), -3.9375, 3.9375, (0.0,), -1.0, 1.0, _ASSUMED),
    "log": Source(np.log, 2.0**-64, 2.0**64, (1.0,)),
    "sqrt": Source(np.sqrt, 2.0**-116, 2.0**118, ()),
    "rsqrt": Source(lambda x: 1 / np.sqrt(x), 2.0**-87, 2.0**97, ()),
    "sin": Source(np.sin, -_PI, _PI, (-_PI, 0.0, _PI)),
    "atan": Source(np.arctan, -math.pi / 2, math.pi / 2, (0.0,)),
}


@cache
def fitted_table(name: str) -> ActivationTable:
    """The table of one of `SOURCES`."""
    source = SOURCES[name]
    edges = _octaves(source.low, source.high)
    while True:
        bases, widths, coefficients, errors = _fit(source, edges)
        if (errors <= TOLERANCE).all():
            break
        middles = ((edges[:-1] + edges[1:]) / 2)[errors > TOLERANCE]
        finer = np.unique(np.concatenate([edges, middles]).astype(np.float32)).astype(np.float64)
        if finer.size == edges.size:
            raise AssertionError(f"no cubics are within {TOLERANCE} of {name}")
        edges = finer
    scales = _power_of_two(np.abs(coefficients).max(1))  # keeps coefficients away from the ends of fp32's range
    return ActivationTable(
        function=name,
        edges=edges,
        bases=bases,
        coefficients=coefficients / scales[:, None],
        widths=widths,
        scales=scales,
        below=source.below,
        above=source.above,
    )


def _power_of_two(x: np.ndarray) -> np.ndarray:
    """The largest power of two up to x."""
    return np.exp2(np.floor(np.log2(x)))


def _octaves(low: float, high: float) -> np.ndarray:
    """Powers of two inside a range, of both signs, and its ends: in each segment a float lies within a factor 2 of any other."""
    powers = 2.0 ** np.arange(math.floor(math.log2(low if low > 0 else SMALLEST)), 128)
    inside = np.concatenate([-powers, powers]) if low < 0 else powers
    return np.unique(np.concatenate([[low, high], inside[(inside > low) & (inside < high)]]).astype(np.float32)).astype(np.float64)


def _fit(source: Source, edges: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Base, width, cubic and largest relative error of every segment.

    The cubic goes through the function at its base, and through three Chebyshev points of the slope from there: so zeros stay zeros and
    the error is small relative to the function next to them.
    """
    left, right = edges[:-1, None], edges[1:, None]
    bases = ((left + right) / 2).astype(np.float32).astype(np.float64)
    for anchor in source.anchors:
        bases = np.where((left <= anchor) & (anchor <= right), anchor, bases)
    at_base = source.function(bases)
    points = (left + right) / 2 + (right - left) / 2 * np.cos(np.pi * (np.arange(3) + 0.5) / 3)
    points = np.where(points == bases, points + (right - left) / 64, points)
    widths = _power_of_two(right - left)
    t = (points - bases) / widths
    slopes = (source.function(points) - at_base) / t
    coefficients = np.concatenate([at_base, np.linalg.solve(t[:, :, None] ** np.arange(3), slopes[:, :, None])[:, :, 0]], axis=1)
    x = left + (right - left) * np.linspace(0, 1, _SAMPLES)
    fitted = np.zeros_like(x)
    for column in coefficients.T[::-1]:
        fitted = fitted * (x - bases) / widths + column[:, None]
    exact = source.function(x)
    nonzero = np.where(exact == 0, 1.0, np.abs(exact))
    return bases[:, 0], widths[:, 0], coefficients, (np.abs(fitted - exact) / nonzero).max(1)
