"""Products on an array with broken PEs: the columns they spoil are made again as the broken PEs make them, the others stay.

Down a column runs a partial sum. A stuck PE in row r leaves the sum of rows 0 .. r with its bit stuck, and the rows below add to it:

    column = sum over K tiles of  stuck(lhs[:, :r+1] @ w[:r+1]) + lhs[:, r+1:] @ w[r+1:]

At systolic fidelity the array is simulated with the bits stuck in every clock cycle.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from trn_jax.engines.accumulate import dot
from trn_jax.engines.contraction import MATRICES, Layout
from trn_jax.engines.derivative import Product
from trn_jax.engines.dot_layout import DotLayout
from trn_jax.engines.kind import Execution
from trn_jax.engines.systolic import Stuck, contract, stick
from trn_jax.errors import UnsupportedError
from trn_jax.faults import DeadColumn, Fault, StuckPE, live_columns

_DEAD = (0, 0)  # masks of a partial sum that is zero whatever arrives


def faulty(product: Product, layout: Layout, execution: Execution) -> Product:
    """`product` on an array with the faults of `execution`.

    Gradient: none of its own; `engines.tensor` gives it that of the sound product.
    Basis: derived (weight-stationary dataflow, as `systolic`); assumed (which bit of a PE breaks).
    """
    masks = column_masks(execution.array_faults)
    live = live_columns(execution.array_faults, execution.cols)

    def compute(lhs: Array, rhs: Array) -> Array:
        lhs_BMK, rhs_BKN = layout.split(lhs.astype(jnp.float32), rhs.astype(jnp.float32))
        column_N = np.resize(live, rhs_BKN.shape[2])  # column of the array that each output column is placed on
        spoilt_N = np.isin(column_N, list(masks))
        if not spoilt_N.any() or 0 in (lhs_BMK.size, rhs_BKN.size):
            return product(lhs, rhs)
        if execution.fidelity == "systolic":
            return layout.join(_simulated(lhs_BMK, rhs_BKN, column_N, execution), lhs.shape, rhs.shape)
        out_BMN = jnp.zeros((*lhs_BMK.shape[:2], rhs_BKN.shape[2]), jnp.float32)
        for column, stuck in masks.items():
            (here,) = np.nonzero(column_N == column)
            if here.size:
                out_BMN = out_BMN.at[:, :, here].set(_column(lhs_BMK, rhs_BKN[:, :, here], stuck, execution.rows))
        spoilt_BMN = jnp.broadcast_to(spoilt_N, out_BMN.shape)
        spoilt, out = (layout.join(x, lhs.shape, rhs.shape) for x in (spoilt_BMN, out_BMN))
        return jnp.where(spoilt, out, product(lhs, rhs))

    return compute


def check_layout(layout: Layout | None, execution: Execution) -> None:
    """Refuses a product of which it is not known what lies where in the array.

    Raises:
        UnsupportedError: A product without a layout (ragged) on a broken array.
    """
    if layout is None and execution.array_faults:
        raise UnsupportedError(
            f"{execution.array_faults[0]} is not modelled in a ragged product, whose rows meet different matrices. Use faults of memories "
            "and engines, or a dense product."
        )


def column_masks(faults: Sequence[Fault]) -> dict[int, dict[int, tuple[int, int]]]:
    """For every broken column and row: the bits of the partial sum that stay, and those that are set."""
    masks: dict[int, dict[int, tuple[int, int]]] = {}
    for fault in faults:
        if isinstance(fault, StuckPE):
            keep, put = masks.setdefault(fault.col, {}).get(fault.row, (0xFFFF_FFFF, 0))
            bit = 1 << fault.bit
            masks[fault.col][fault.row] = (keep & ~bit, (put & ~bit) | (bit if fault.value else 0))
    for fault in faults:
        if isinstance(fault, DeadColumn):
            masks[fault.col] = {-1: _DEAD}
    return masks


def _column(lhs_BMK: Array, rhs_BKN: Array, stuck: dict[int, tuple[int, int]], rows: int) -> Array:
    """Output columns that lie on one broken column of the array."""
    (batch, m, k), n = lhs_BMK.shape, rhs_BKN.shape[2]
    if -1 in stuck:
        return jnp.zeros((batch, m, n), jnp.float32)
    tiles = -(-k // rows)
    fill = lambda x, axis: lax.pad(x, np.float32(0), [(0, tiles * rows - k if a == axis else 0, 0) for a in range(3)])
    lhs_TBMR = fill(lhs_BMK, 2).reshape(batch, m, tiles, rows).transpose(2, 0, 1, 3)
    rhs_TBRN = fill(rhs_BKN, 1).reshape(batch, tiles, rows, n).transpose(1, 0, 2, 3)

    def tile(psum: Array | None, operands: tuple[Array, Array]) -> tuple[Array, None]:
        lhs_BMR, rhs_BRN = operands
        total, start = jnp.zeros((batch, m, n), jnp.float32), 0
        for row in [*sorted(stuck), rows - 1]:
            if row + 1 > start:
                total = total + dot(lhs_BMR[:, :, start : row + 1], rhs_BRN[:, start : row + 1], MATRICES)
                start = row + 1
            if row in stuck:
                total = stick(total, *(np.uint32(mask) for mask in stuck[row]))
        return total if psum is None else psum + total, None

    first, _ = tile(None, (lhs_TBMR[0], rhs_TBRN[0]))
    return lax.scan(tile, first, (lhs_TBMR[1:], rhs_TBRN[1:]))[0] if tiles > 1 else first


def _simulated(lhs_BMK: Array, rhs_BKN: Array, column_N: np.ndarray, execution: Execution) -> Array:
    """All columns, clock by clock, each where it is placed in the array."""
    rows, cols = execution.rows, execution.cols
    live = live_columns(execution.array_faults, cols)
    place_N = np.arange(len(column_N)) // len(live) * cols + column_N
    placed = jnp.zeros((*rhs_BKN.shape[:2], -(-(int(place_N[-1]) + 1) // cols) * cols), jnp.float32).at[:, :, place_N].set(rhs_BKN)
    keep, put = np.full((cols, rows), 0xFFFF_FFFF, np.uint32), np.zeros((cols, rows), np.uint32)
    for column, stuck in column_masks(execution.array_faults).items():
        for row, masks in stuck.items():
            where = (column, slice(None) if row < 0 else row)
            keep[where], put[where] = masks
    return contract(lhs_BMK, placed, DotLayout(MATRICES), rows, cols, Stuck(jnp.asarray(keep), jnp.asarray(put)))[:, :, place_N]
