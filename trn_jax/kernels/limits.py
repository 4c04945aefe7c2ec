"""Sizes that a kernel has to keep to, with NKI's names; checks whose messages have the arithmetic.

Basis: documented (NKI guide, Trainium/Inferentia2 architecture; `nki.language.tile_size`), the same for all generations.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from trn_jax.errors import ShapeError
from trn_jax.graph.instruction import PARTITIONS
from trn_jax.kernels.tile import Tile

STATIONARY_COLUMNS = 128
MOVING_COLUMNS = 512
PSUM_BANK_BYTES = 2048
PSUM_BANKS = 8

tile_size = SimpleNamespace(
    pmax=PARTITIONS,
    psum_fmax=PSUM_BANK_BYTES // 4,
    gemm_stationary_fmax=STATIONARY_COLUMNS,
    gemm_moving_fmax=MOVING_COLUMNS,
)


def check_partitions(what: str, shape: tuple[int, ...]) -> None:
    """Raises ShapeError unless a tile of this shape fits on chip."""
    if len(shape) < 2:
        raise ShapeError(
            f"{what} has shape {list(shape)}, but a tile on chip has partitions first and free axes behind: [partitions, free]. "
            "Reshape the array in HBM to two axes, or cut it with slices instead of integers."
        )
    if shape[0] > PARTITIONS:
        raise ShapeError(
            f"{what} has shape {list(shape)}, which needs {shape[0]} partitions, but SBUF and PSUM have {PARTITIONS}. Loop over tiles of "
            f"{PARTITIONS} rows: -(-{shape[0]} // {PARTITIONS}) = {-(-shape[0] // PARTITIONS)} of them."
        )
    if min(shape) < 1:
        raise ShapeError(f"{what} has shape {list(shape)}; every size has to be at least 1.")


def check_matmul(stationary: Tile, moving: Tile) -> None:
    """Raises ShapeError unless nc_matmul takes these operands."""
    for role, tile, columns in (("stationary", stationary, STATIONARY_COLUMNS), ("moving", moving, MOVING_COLUMNS)):
        if tile.memory != "sbuf":
            raise ShapeError(
                f"nc_matmul reads its operands from SBUF, but {role} is {tile}. Copy it there first (nc.load, nc.tensor_copy)."
            )
        if tile.free_size > columns:
            raise ShapeError(
                f"nc_matmul takes at most {columns} {role} columns, but {tile} has {tile.free_size}: cut it into "
                f"-(-{tile.free_size} // {columns}) = {-(-tile.free_size // columns)} pieces."
            )
    if stationary.partitions != moving.partitions:
        raise ShapeError(
            f"nc_matmul contracts over partitions, but stationary {stationary} has {stationary.partitions} and moving {moving} has "
            f"{moving.partitions}. Both are [K, columns], and the result is [stationary columns, moving columns]."
        )


def check_bank(tile: Tile) -> None:
    """Raises ShapeError unless one instruction's result fits in a PSUM bank."""
    if tile.memory != "psum":
        raise ShapeError(f"The Tensor Engine writes to PSUM, but dst is {tile}. Allocate it with nc.ndarray(..., buffer='psum').")
    size_bytes = tile.free_size * tile.dtype.itemsize
    if size_bytes > PSUM_BANK_BYTES:
        raise ShapeError(
            f"{tile} has {tile.free_size} x {tile.dtype.itemsize} = {size_bytes} bytes in each partition, but a PSUM bank has "
            f"{PSUM_BANK_BYTES}, and a result of the Tensor Engine cannot cross banks."
        )


def check_same_shape(what: str, *tiles: Tile) -> None:
    """Raises ShapeError unless all tiles have one shape."""
    if len({tile.shape for tile in tiles}) > 1:
        raise ShapeError(f"{what} takes tiles of one shape, but got {', '.join(map(str, tiles))}.")


def check_column(what: str, operand: Tile, data: Tile) -> None:
    """Raises ShapeError unless the operand has one number for each partition of the data."""
    if operand.free_size != 1 or operand.partitions != data.partitions:
        raise ShapeError(f"{what} takes one number per partition, [{data.partitions}, 1], but got {operand} for {data}.")


def is_narrow(dtype: np.dtype) -> bool:
    """Whether elements are 16 bits wide or less."""
    return dtype.itemsize <= 2
