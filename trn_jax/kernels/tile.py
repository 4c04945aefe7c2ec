"""Buffers and tiles: arrays in HBM, SBUF and PSUM, and the parts of them that instructions read and write.

SBUF and PSUM buffers have partitions first, at most 128, and everything else along the free axes of each partition.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np

from trn_jax.errors import ProgramError, ShapeError
from trn_jax.kernels.affine import Affine, as_affine

if TYPE_CHECKING:
    from trn_jax.kernels.record import Loop

Region = tuple[tuple[int, int], ...]  # from, to along each axis


@dataclass(slots=True, eq=False, kw_only=True)
class Buffer:
    """One array of a kernel; compared by identity.

    Attributes:
        shape: Sizes.
        dtype: Of the elements.
        memory: "hbm", "sbuf" or "psum".
        name: For messages.
        buffers: How many copies rotate from one iteration of a loop to the next.
        loop: Innermost loop that it is allocated in, None outside all.
        is_input: Whether it is an argument of the kernel, which may only be read.
        root: The buffer that this one shows in another shape, else None.
        written: Whether anything was written so far.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    memory: str
    name: str
    buffers: int = 1
    loop: Loop | None = None
    is_input: bool = False
    root: Buffer | None = None
    written: bool = field(default=False)

    @property
    def whole(self) -> Tile:
        """All of it."""
        return Tile(self, tuple(as_affine(0) for _ in self.shape), self.shape)

    @property
    def storage(self) -> Buffer:
        """The buffer that holds the data."""
        return self if self.root is None else self.root

    @property
    def partition_bytes(self) -> int:
        """Bytes in each partition."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize


@dataclass(frozen=True, slots=True, eq=False)
class Tile:
    """A rectangular part of a buffer: what `nc`'s instructions take and return.

    Index it as an array, with integers, slices of step 1 and expressions of loop indices: `x[i * 128 : (i + 1) * 128, :]`.

    Attributes:
        buffer: What it is a part of.
        starts: Where it begins along each axis of the buffer.
        sizes: Its sizes along these axes.
        dropped: Axes that an integer index took away.
    """

    buffer: Buffer
    starts: tuple[Affine, ...]
    sizes: tuple[int, ...]
    dropped: frozenset[int] = frozenset()

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes along the axes that are left."""
        return tuple(size for axis, size in enumerate(self.sizes) if axis not in self.dropped)

    @property
    def dtype(self) -> np.dtype:
        """Of the elements."""
        return self.buffer.dtype

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def partitions(self) -> int:
        """Size of the first axis."""
        return self.shape[0] if self.shape else 1

    @property
    def free_size(self) -> int:
        """Elements in each partition."""
        return math.prod(self.shape[1:])

    @property
    def memory(self) -> str:
        """Where it is."""
        return self.buffer.memory

    def __getitem__(self, index: Any) -> Tile:
        given = index if isinstance(index, tuple) else (index,)
        axes = [axis for axis in range(len(self.sizes)) if axis not in self.dropped]
        if Ellipsis in [part for part in given if part is Ellipsis]:
            at = next(i for i, part in enumerate(given) if part is Ellipsis)
            given = (*given[:at], *[slice(None)] * (len(axes) - len(given) + 1), *given[at + 1 :])
        if len(given) > len(axes):
            raise ShapeError(f"{self} has {len(axes)} axes, but is indexed with {len(given)}.")
        starts, sizes, dropped = list(self.starts), list(self.sizes), set(self.dropped)
        for axis, part in zip(axes, given, strict=False):
            start, size = self._range(axis, part)
            starts[axis], sizes[axis] = self.starts[axis] + start, size
            if not isinstance(part, slice):
                dropped.add(axis)
        return Tile(self.buffer, tuple(starts), tuple(sizes), frozenset(dropped))

    def _range(self, axis: int, part: Any) -> tuple[Affine, int]:
        """Start within this tile and size that one part of an index gives."""
        length = self.sizes[axis]
        if not isinstance(part, slice):
            if isinstance(part, bool) or not isinstance(part, (int, np.integer, Affine)):
                raise ShapeError(f"{self} is indexed with {part!r}. Use integers, slices and expressions of loop indices.")
            start, stop = as_affine(part), as_affine(part) + 1
        else:
            if part.step not in (None, 1):
                raise ShapeError(f"{self} is indexed with step {part.step}; tiles are rectangles without gaps. Use step 1.")
            start = as_affine(0 if part.start is None else part.start)
            stop = as_affine(length if part.stop is None else part.stop)
        extent = stop - start
        if extent.terms:
            raise ShapeError(f"{self} is cut from {start} to {stop}, whose length is not the same in every iteration.")
        low, high = start.bounds({})[0], stop.bounds({})[1]
        if low < 0 or high > length or extent.constant < 1:
            raise ShapeError(
                f"Axis {axis} of {self.buffer.name} is cut from {start} to {stop}, which covers {low} to {high} in all iterations, but "
                f"it has 0 to {length}. Loop over whole tiles, and write the last, smaller one behind the loop."
            )
        return start, extent.constant

    def reshape(self, shape: Sequence[int]) -> Tile:
        """The same data of HBM in another shape; free, and for whole arrays only.

        Raises:
            ShapeError: For a part, for SBUF and PSUM, or another number of elements.
        """
        if self.memory != "hbm" or self.shape != self.buffer.shape:
            raise ShapeError(f"{self} cannot be reshaped: only whole arrays in HBM can. Reshape before cutting.")
        if math.prod(shape) != math.prod(self.shape):
            raise ShapeError(f"{self} has {math.prod(self.shape)} elements and cannot be reshaped to {list(shape)}.")
        buffer = self.buffer
        return Buffer(
            shape=tuple(int(size) for size in shape),
            dtype=buffer.dtype,
            memory="hbm",
            name=buffer.name,
            is_input=buffer.is_input,
            root=buffer.storage,
            loop=buffer.loop,
        ).whole

    def region(self, indices: Mapping[Loop, int]) -> Region:
        """What it covers while the loops of `indices` are in these iterations, and all others in any."""
        bounds = [start.bounds(indices) for start in self.starts]
        region = tuple((low, high + size) for (low, high), size in zip(bounds, self.sizes, strict=True))
        if self.buffer.root is not None and self.buffer.shape != self.buffer.root.shape:
            return tuple((0, size) for size in self.buffer.root.shape)  # of a reshaped array: all of it
        return region

    @property
    def run_bytes(self) -> int:
        """Contiguous bytes in memory, at most those of one partition."""
        run = 1
        for size, whole in zip(reversed(self.sizes), reversed(self.buffer.shape), strict=True):
            run *= size
            if size != whole:
                break
        return min(run, max(1, self.free_size)) * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Any:
        raise ProgramError(f"{self} cannot be iterated over. Loop over range({self.shape[0]}) or nc.affine_range and index it.")

    def __str__(self) -> str:
        return f"{self.buffer.name} ({jnp.dtype(self.dtype).name}{list(self.shape)} in {self.memory.upper()})"

    __repr__ = __str__
