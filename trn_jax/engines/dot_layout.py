"""A dot_general as a matmul: batch axes, free axes and contracted axes are grouped into B, M or N, and K."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from jax import lax
from jaxtyping import Array, Shaped

from trn_jax.engines.contraction import DotDimensionNumbers, OneAxis, Shape, Sizes


@dataclass(frozen=True, slots=True)
class DotLayout:
    """lax.dot_general with these dimension numbers: any rank, several contracted or batch axes, or none.

    K runs over the contracted axes in the order in which they are listed, the last one fastest.
    """

    dimension_numbers: DotDimensionNumbers

    def __post_init__(self):
        (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = self.dimension_numbers
        hashable = ((tuple(lhs_contract), tuple(rhs_contract)), (tuple(lhs_batch), tuple(rhs_batch)))
        object.__setattr__(self, "dimension_numbers", hashable)

    @property
    def walked(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The contracted axes."""
        return self.dimension_numbers[0]

    def _free(self, side: int, rank: int) -> tuple[int, ...]:
        taken = {*self.dimension_numbers[0][side], *self.dimension_numbers[1][side]}
        return tuple(axis for axis in range(rank) if axis not in taken)

    def sizes(self, lhs_shape: Shape, rhs_shape: Shape) -> Sizes:
        """Batch, M, K, N of operands with these shapes; an outer product has K = 1."""
        (contract, _), (batch, _) = self.dimension_numbers
        return Sizes(
            batch=math.prod(lhs_shape[axis] for axis in batch),
            m=math.prod(lhs_shape[axis] for axis in self._free(0, len(lhs_shape))),
            k=math.prod(lhs_shape[axis] for axis in contract),
            n=math.prod(rhs_shape[axis] for axis in self._free(1, len(rhs_shape))),
        )

    def split(self, lhs: Array, rhs: Array) -> tuple[Shaped[Array, "B M K"], Shaped[Array, "B K N"]]:
        """The operands as matrices, by transposing and reshaping."""
        (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = self.dimension_numbers
        batch, m, k, n = self.sizes(lhs.shape, rhs.shape)
        lhs_BMK = lax.transpose(lhs, (*lhs_batch, *self._free(0, lhs.ndim), *lhs_contract)).reshape(batch, m, k)
        rhs_BKN = lax.transpose(rhs, (*rhs_batch, *rhs_contract, *self._free(1, rhs.ndim))).reshape(batch, k, n)
        return lhs_BMK, rhs_BKN

    def join(self, out_BMN: Shaped[Array, "B M N"], lhs_shape: Shape, rhs_shape: Shape) -> Array:
        """The product as dot_general orders it: batch axes, free axes of lhs, free axes of rhs."""
        batch = [lhs_shape[axis] for axis in self.dimension_numbers[1][0]]
        lhs_free = [lhs_shape[axis] for axis in self._free(0, len(lhs_shape))]
        rhs_free = [rhs_shape[axis] for axis in self._free(1, len(rhs_shape))]
        return out_BMN.reshape(*batch, *lhs_free, *rhs_free)

    def one_axis(self, lhs: Array, rhs: Array) -> OneAxis:
        """The operands as they are if one axis is contracted; else with the contracted axes merged into one."""
        (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = self.dimension_numbers
        lhs, lhs_axis, lhs_batch = _merge(lhs, lhs_contract, lhs_batch)
        rhs, rhs_axis, rhs_batch = _merge(rhs, rhs_contract, rhs_batch)
        return OneAxis(lhs, rhs, lhs_axis, rhs_axis, (((lhs_axis,), (rhs_axis,)), (lhs_batch, rhs_batch)))

    def finish(self, out: Array, lhs_shape: Shape, rhs_shape: Shape) -> Array:
        """`out` itself: merging contracted axes leaves the output's axes alone."""
        return out


def _merge(x: Array, contract: Sequence[int], batch: Sequence[int]) -> tuple[Array, int, tuple[int, ...]]:
    """`x` with its `contract` axes merged into one, where that one is, and where the batch axes are now."""
    if len(contract) == 1:
        return x, contract[0], tuple(batch)
    first = min(contract, default=x.ndim)
    if tuple(contract) != tuple(range(first, first + len(contract))):
        # Not next to each other in memory order: bring them together in front of the first of them.
        order = [axis for axis in range(x.ndim) if axis not in contract]
        first = sum(axis < first for axis in order)
        order[first:first] = contract
        x, batch = lax.transpose(x, order), [order.index(axis) for axis in batch]
    end = first + len(contract)
    merged = x.reshape(*x.shape[:first], math.prod(x.shape[first:end]), *x.shape[end:])
    return merged, first, tuple(axis if axis < first else axis - len(contract) + 1 for axis in batch)
