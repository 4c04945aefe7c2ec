"""Memory of a NeuronCore, as a kernel sees it: loops over tiles, buffers, and the DMA queues between HBM and SBUF."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from trn_jax.errors import FormatError, ShapeError
from trn_jax.graph.instruction import Work
from trn_jax.kernels.affine import Affine
from trn_jax.kernels.limits import check_partitions, tile_size
from trn_jax.kernels.recorder import Recorder
from trn_jax.kernels.tile import Tile


class Memory:
    """The part of `NeuronCore` that moves data and computes nothing."""

    tile_size = tile_size

    def __init__(self, recorder: Recorder):
        self._recorder = recorder

    def affine_range(self, trips: int) -> Iterator[Affine]:
        """A loop whose iterations do not need each other; sums in PSUM may run on through it.

        The body is recorded once, and its index can only be added, subtracted and multiplied by integers.
        """
        return self._recorder.loop(trips, carries=False)

    def sequential_range(self, trips: int) -> Iterator[Affine]:
        """A loop whose iterations may use what earlier ones left in tiles allocated before the loop."""
        return self._recorder.loop(trips, carries=True)

    def ndarray(
        self, shape: Sequence[int], dtype: Any = jnp.float32, buffer: str = "sbuf", *, buffers: int | None = None, name: str = ""
    ) -> Tile:
        """Memory without values.

        Args:
            shape: [partitions, free, ...] in "sbuf" and "psum"; anything in "hbm".
            dtype: Of the elements.
            buffer: "sbuf", "psum" or "hbm".
            buffers: Copies used in turn when this is in a loop; None is the kernel's number.
            name: For messages.

        Returns:
            A tile. A new tile in PSUM is empty: the first product overwrites, further ones add.

        Raises:
            ShapeError: More than 128 partitions, or fewer than two axes on chip.
            ProgramError: An unknown buffer, or HBM inside a loop.
        """
        return self._recorder.allocate(shape, dtype, buffer, name or f"{buffer}_tile", buffers)

    def load(
        self,
        src: Tile,
        dst: Tile | None = None,
        *,
        partitions: int | None = None,
        queue: str = "sync",
        buffers: int | None = None,
        name: str = "",
    ) -> Tile:
        """Copies a part of an array in HBM to SBUF.

        Args:
            src: Part of an argument, [partitions, free, ...].
            dst: Where to; same shape and dtype.
            partitions: Copies a single row, [1, free, ...], to that many partitions.
            queue: DMA queue: who triggers it ("sync", "scalar", "gpsimd", ...), and a number for further queues, as "sync:1". Transfers
                of one queue are in order; one triggered by an engine waits for the instruction before it on that engine.
            buffers: As for `ndarray`.
            name: For messages.

        Returns:
            The tile in SBUF.
        """
        self._in("load", src, "hbm")
        check_partitions(f"load: {src}", src.shape)
        shape = src.shape if partitions is None else (partitions, *src.shape[1:])
        if partitions is not None and src.partitions != 1:
            raise ShapeError(f"load: partitions={partitions} copies one row to many partitions, but {src} has {src.partitions} rows.")
        dst = self._destination("load", dst, shape, src.dtype, "sbuf", buffers, name or f"{src.buffer.name}_tile")
        self._dma("dma_copy", "load", lambda x: jnp.broadcast_to(x, shape), src, dst, queue, min(src.run_bytes, dst.run_bytes))
        return dst

    def store(self, dst: Tile, src: Tile, *, queue: str = "sync:1") -> None:
        """Copies a tile of SBUF to a part of an array in HBM, of the same shape and dtype; `queue` as for `load`."""
        self._in("store", src, "sbuf")
        self._in("store", dst, "hbm")
        check_partitions(f"store: {dst}", dst.shape)
        self._destination("store", dst, src.shape, src.dtype, "hbm")
        self._dma("dma_copy", "store", lambda x: x, src, dst, queue, min(src.run_bytes, dst.run_bytes))

    def dma_transpose(self, src: Tile, dst: Tile | None = None, *, queue: str = "sync", buffers: int | None = None, name: str = "") -> Tile:
        """Loads [rows, columns] from HBM as [columns, rows], transposed by the DMA engines."""
        self._in("dma_transpose", src, "hbm")
        if src.ndim != 2:
            raise ShapeError(f"dma_transpose takes two axes, but got {src}.")
        dst = self._destination("dma_transpose", dst, src.shape[::-1], src.dtype, "sbuf", buffers, name or f"{src.buffer.name}T_tile")
        self._dma("dma_transpose", "load", lambda x: x.T, src, dst, queue, src.run_bytes)
        return dst

    def _destination(
        self,
        what: str,
        dst: Tile | None,
        shape: Sequence[int],
        dtype: Any,
        memory: str,
        buffers: int | None = None,
        name: str = "",
    ) -> Tile:
        """`dst`, checked, or a new tile."""
        if dst is None:
            return self._recorder.allocate(shape, dtype, memory, name or what, buffers)
        self._recorder.check_open(what, dst)
        if dst.shape != tuple(shape):
            raise ShapeError(f"{what} gives {list(shape)}, but dst is {dst}.")
        if what in ("load", "store", "dma_transpose", "nc_matmul") and dst.dtype != np.dtype(dtype):
            raise FormatError(
                f"{what} gives {np.dtype(dtype).name}, but dst is {dst}; it does not convert. Use nc.tensor_copy(..., dtype=...) on chip."
            )
        return dst

    def _in(self, what: str, tile: Any, memory: str) -> None:
        self._recorder.check_open(what, tile)
        if tile.memory != memory:
            raise ShapeError(f"{what} takes a tile in {memory.upper()} here, but got {tile}.")

    def _dma(self, kind: str, function: str, mathematics: Any, src: Tile, dst: Tile, queue: str, row_bytes: float) -> None:
        """One transfer; its bytes are those that it writes."""
        size_bytes = float(math.prod(dst.shape) * dst.dtype.itemsize)
        work = Work(bytes=size_bytes, row_bytes=float(row_bytes), elements=math.prod(dst.shape), rows=float(dst.partitions))
        self._recorder.issue("dma", kind, function, mathematics, (src,), (dst,), work, queue=queue)
