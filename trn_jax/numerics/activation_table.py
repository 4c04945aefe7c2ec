"""A function as the Scalar Engine has it: a table of segments, each a polynomial in the distance from its own base point.

    f(x) = s (c_0 + t (c_1 + t (c_2 + t c_3))),    t = (x - base) / width        base, width, s, c: of the segment that x lies in

Outside the table the end segments go on, as on the hardware: no range is reduced, sin(9) is the cubic around pi at 9.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float32

from trn_jax.errors import FormatError


@dataclass(frozen=True, kw_only=True, eq=False)
class ActivationTable:
    """One function of the Scalar Engine as piecewise polynomials; compared by content.

    Attributes:
        function: JAX primitive it stands for: "exp", "tanh", "logistic", "log", "sqrt", "rsqrt", "erf", "sin", "atan", or any
            other of one operand that the Scalar Engine evaluates.
        edges: Ends of the segments, ascending: one more than there are segments.
        bases: A point for each segment.
        coefficients: For each segment those of 1, t, t^2, ...
        widths: What the distance from the base is divided by, for each segment; None is 1. Powers of two lose nothing.
        scales: What the polynomial is multiplied by, for each segment; None is 1.
        below: Value left of the first edge; None goes on with the first segment.
        above: Value right of the last edge.

    Everything is kept in fp32, in which it is evaluated.

    Raises:
        FormatError: What is no finite number, edges that do not ascend, or numbers of segments that do not agree.
    """

    function: str
    edges: Sequence[float] | np.ndarray
    bases: Sequence[float] | np.ndarray
    coefficients: Sequence[Sequence[float]] | np.ndarray
    widths: Sequence[float] | np.ndarray | None = None
    scales: Sequence[float] | np.ndarray | None = None
    below: float | None = None
    above: float | None = None
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        segments = np.size(self.edges) - 1
        for name in ("edges", "bases", "coefficients", "widths", "scales"):
            given = getattr(self, name)
            try:
                numbers = np.ones(max(segments, 0), np.float32) if given is None else np.array(given, np.float32)
            except (TypeError, ValueError):  # rows of different lengths, or no numbers
                numbers = np.array(np.nan, np.float32)
            if not np.isfinite(numbers).all():
                raise FormatError(f"The {name} of a table for {self.function!r} must be a full array of finite numbers; got {given}.")
            object.__setattr__(self, name, numbers)
        if np.ndim(self.edges) != 1 or segments < 1 or not (np.diff(self.edges) > 0).all():
            raise FormatError(f"The edges of a table for {self.function!r} must be two or more ascending fp32 numbers; got {self.edges}.")
        shapes = {name: np.shape(getattr(self, name)) for name in ("bases", "widths", "scales", "coefficients")}
        if any(shape[:1] != (segments,) or len(shape) != 1 + (name == "coefficients") for name, shape in shapes.items()):
            raise FormatError(
                f"A table for {self.function!r} with {segments + 1} edges has {segments} segments and needs as many bases, widths and "
                f"scales, and [{segments}, terms] coefficients; got {', '.join(f'{name} {list(shape)}' for name, shape in shapes.items())}."
            )
        content = repr((self.function, self.below, self.above)).encode()
        content += b"".join(np.asarray(x).tobytes() for x in (self.edges, self.bases, self.coefficients, self.widths, self.scales))
        object.__setattr__(self, "digest", hashlib.sha256(content).hexdigest()[:16])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ActivationTable) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        low, high = self.edges[0], self.edges[-1]
        return f"ActivationTable({self.function!r}, {len(self.bases)} segments from {low:g} to {high:g}, {self.digest})"

    def __call__(self, x: Float32[Array, "*dims"]) -> Float32[Array, "*dims"]:
        """The table at fp32 values; NaN stays NaN.

        Gradient: that of the polynomials; `emulate` takes the function's own.
        """
        x = jnp.asarray(x, jnp.float32)
        segment = jnp.searchsorted(jnp.asarray(self.edges[1:-1]), x, side="right", method="scan_unrolled")
        widths = np.asarray(self.widths)
        t = x / _at(widths, segment) - _at(self.bases / widths, segment)  # divided first: small differences may be flushed to zero
        y = jnp.zeros_like(x)
        for coefficients in reversed(np.asarray(self.coefficients).T):
            y = y * t + _at(coefficients, segment)
        y = y * _at(self.scales, segment)
        y = y if self.below is None else jnp.where(x < self.edges[0], jnp.float32(self.below), y)
        y = y if self.above is None else jnp.where(x > self.edges[-1], jnp.float32(self.above), y)
        return jnp.where(jnp.isnan(x), x, y)


def _at(values: Any, segment: Array) -> Array:
    return jnp.take(jnp.asarray(values), segment, mode="clip")
