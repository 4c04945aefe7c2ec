"""What the Tensor Engine needs to know of a contraction: its operands as matrices, lhs [B, M, K] times rhs [B, K, N].

    out[b, m, n] = sum over k of lhs[b, m, k] rhs[b, k, n]

The order of k is the order in which the array's rows are filled and PSUM accumulates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from jaxtyping import Array, Shaped

DotDimensionNumbers = tuple[tuple[tuple[int, ...], tuple[int, ...]], tuple[tuple[int, ...], tuple[int, ...]]]
Shape = Sequence[int]
MATRICES: DotDimensionNumbers = (((2,), (1,)), ((0,), (0,)))


class Sizes(NamedTuple):
    """A contraction as `batch` products of [m, k] by [k, n]; static integers."""

    batch: int
    m: int
    k: int
    n: int


class OneAxis(NamedTuple):
    """Operands with exactly one contracted axis each, and the dot_general that contracts it."""

    lhs: Array
    rhs: Array
    lhs_axis: int
    rhs_axis: int
    dimension_numbers: DotDimensionNumbers


class Layout(Protocol):
    """What the Tensor Engine needs to know about an operation to run it as a matmul."""

    @property
    def walked(self) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
        """Axes of lhs and of rhs that a loop over slices of `one_axis` cuts or reorders; None for all."""
        ...

    def sizes(self, lhs_shape: Shape, rhs_shape: Shape) -> Sizes:
        """Batch, M, K, N of operands with these shapes."""
        ...

    def split(self, lhs: Array, rhs: Array) -> tuple[Shaped[Array, "B M K"], Shaped[Array, "B K N"]]:
        """The operands as matrices."""
        ...

    def join(self, out_BMN: Shaped[Array, "B M N"], lhs_shape: Shape, rhs_shape: Shape) -> Array:
        """The product with the operation's own output axes, given the original operands' shapes."""
        ...

    def one_axis(self, lhs: Array, rhs: Array) -> OneAxis:
        """The operands with K as one axis, moving as little data as possible."""
        ...

    def finish(self, out: Array, lhs_shape: Shape, rhs_shape: Shape) -> Array:
        """The output axes of the operation, given a sum of products over slices of `one_axis`."""
        ...
