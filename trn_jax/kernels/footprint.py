"""How much of SBUF and PSUM a kernel uses at one time, if every tile gives its place back after its last use.

A tile in a loop that has several copies keeps all of them during the whole loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from trn_jax.errors import ShapeError
from trn_jax.kernels.limits import PSUM_BANK_BYTES, PSUM_BANKS
from trn_jax.kernels.record import Allocate, Item, Loop, Operation, walk
from trn_jax.kernels.tile import Buffer

_LISTED = 6  # tiles that a message lists, largest first


class Use(NamedTuple):
    """Tiles in use at one moment, with what each takes."""

    total: int
    parts: tuple[tuple[Buffer, int], ...]


def banks_of(buffer: Buffer) -> int:
    """PSUM banks of one copy."""
    return -(-buffer.partition_bytes // PSUM_BANK_BYTES)


def check_footprint(items: list[Item], sbuf_partition_bytes: int, chip: str) -> tuple[int, int]:
    """Most bytes of SBUF per partition, and most PSUM banks, in use at one time.

    Raises:
        ShapeError: More than there are; lists the tiles with the arithmetic.
    """
    sbuf = peak(items, "sbuf", lambda buffer: buffer.partition_bytes)
    if sbuf.total > sbuf_partition_bytes:
        raise ShapeError(
            f"The kernel needs {sbuf.total:,} bytes of SBUF in each partition at one time, but {chip} has {sbuf_partition_bytes:,}: "
            f"{_listed(sbuf, 'bytes')}.{_fitting(sbuf, sbuf_partition_bytes)} "
            "Use smaller tiles or fewer buffers, or name a chip with a larger SBUF: trn_jax.kernel(chip=...)."
        )
    psum = peak(items, "psum", banks_of)
    if psum.total > PSUM_BANKS:
        raise ShapeError(
            f"The kernel needs {psum.total} PSUM banks of {PSUM_BANK_BYTES} bytes at one time, but there are {PSUM_BANKS}: "
            f"{_listed(psum, 'banks')}. Copy sums to SBUF sooner, or use fewer buffers."
        )
    return sbuf.total, psum.total


def peak(items: list[Item], memory: str, size: Callable[[Buffer], int], inside: bool = False) -> Use:
    """The moment at which the most is in use; `inside` a loop, copies count."""
    last = len(items) - 1
    ends: dict[Buffer, int] = {}
    for position, item in enumerate(items):
        operations = walk([item]) if isinstance(item, Loop) else [item]
        for operation in operations:
            if isinstance(operation, Operation):
                ends.update((tile.buffer, position) for tile in (*operation.reads, *operation.writes))
    rotating = [item.buffer for item in items if isinstance(item, Allocate) and inside and item.buffer.buffers > 1]
    held = {buffer: size(buffer) * buffer.buffers for buffer in rotating if buffer.memory == memory}
    best = Use(sum(held.values()), tuple(held.items()))
    for position, item in enumerate(items):
        if isinstance(item, Allocate) and item.buffer.memory == memory:
            held.setdefault(item.buffer, size(item.buffer))
        nested = peak(item.items, memory, size, True) if isinstance(item, Loop) else Use(0, ())
        total = sum(held.values()) + nested.total
        if total > best.total:
            best = Use(total, (*held.items(), *nested.parts))
        if position < last:
            held = {buffer: taken for buffer, taken in held.items() if buffer in rotating or ends.get(buffer, -1) > position}
    return best


def _fitting(use: Use, limit: int) -> str:
    """How many of the tiles would fit, if all are of one size."""
    sizes = {taken for _, taken in use.parts}
    if len(sizes) > 1 or (each := sizes.pop()) > limit:
        return ""
    return f" Of {len(use.parts)} such tiles {limit:,} // {each:,} = {limit // each} fit."


def _listed(use: Use, unit: str) -> str:
    parts = sorted(use.parts, key=lambda part: -part[1])
    lines = [f"{buffer.name} {list(buffer.shape)} {taken:,}" for buffer, taken in parts[:_LISTED]]
    rest = sum(taken for _, taken in parts[_LISTED:])
    return " + ".join([*lines, *([f"others {rest:,}"] if rest else [])]) + f" {unit}"
