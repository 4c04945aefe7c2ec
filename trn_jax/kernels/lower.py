"""A recorded kernel as a Program: its instructions in its own order, and for each what it has to wait for.

    read after write     the result must be visible
    write after read     the tile must have been read: what reusing a buffer costs, and a second copy saves
    write after write    in order

What one engine or DMA queue does in order needs no wait, unless it reads its own result. Sums of the Tensor Engine in PSUM follow
each other without one. A loop of few instructions is written out; a longer one is a loop of the Program, whose iteration is as many
of the kernel's as its buffers have copies, with the waits from one iteration to the next as carried values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from trn_jax.errors import ProgramError
from trn_jax.graph.instruction import Instruction
from trn_jax.kernels.limits import PARTITIONS, PSUM_BANK_BYTES
from trn_jax.kernels.record import Allocate, Item, Loop, Operation, Recording, walk
from trn_jax.kernels.tile import Buffer, Region, Tile
from trn_jax.timing import program as programs
from trn_jax.timing.assemble import assemble
from trn_jax.timing.program import Array, Issued, Program, Row

WRITTEN_OUT_ROWS = 256  # a loop with fewer instructions in all is written out, which is exact
NO_REUSE = (math.inf, 1.0)


def lower(recording: Recording) -> Program:
    """The program of a kernel; its schedule is the kernel's own."""
    writer = _Writer()
    writer.items(recording.items, {})
    issued = Issued(
        lanes=tuple(writer.lanes),
        sbuf_bytes=float(PARTITIONS * recording.sbuf_partition_bytes),
        psum_bytes=float(PARTITIONS * PSUM_BANK_BYTES * recording.psum_banks),
        hbm_bytes=sum(array.size_bytes for array in (*map(_array, recording.inputs), *map(_array, recording.results))),
    )
    return assemble(writer.rows, writer.extra, writer.loops, origin=_Origin(recording), issued=issued)


@dataclass(frozen=True, slots=True)
class _Origin:
    """The kernel behind a program, whose schedule no pass can change."""

    recording: Recording
    passes: tuple[str, ...] = ()
    captured_bytes: float = 0.0

    @property
    def arguments(self) -> Mapping[str, tuple[Array, ...]]:
        """Its array arguments."""
        return {buffer.name: (_array(buffer),) for buffer in self.recording.inputs}

    @property
    def results(self) -> tuple[Array, ...]:
        """Arrays that it returns."""
        return tuple(map(_array, self.recording.results))

    def build(self, passes: tuple[str, ...]) -> Program:
        """The same program, without passes.

        Raises:
            ProgramError: For any pass.
        """
        if passes:
            raise ProgramError(
                f"{self.recording.name} is a kernel, which keeps its own schedule: passes such as {passes[0]!r} do not apply."
            )
        return lower(self.recording)


def _array(buffer: Buffer) -> Array:
    return Array(buffer.shape, buffer.dtype.name, float(math.prod(buffer.shape) * buffer.dtype.itemsize))


class _Access(NamedTuple):
    """A row that read or wrote a part of a buffer."""

    region: Region
    row: int
    lane: str
    writes: bool


Place = tuple[Buffer, int]  # a buffer and which of its copies
Indices = dict[Loop, int]


class _Writer:
    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.extra: list[tuple[float, float, float, float]] = []
        self.lanes: list[str] = []
        self.loops: list[programs.Loop] = []
        self.accesses: dict[Place, tuple[_Access, ...]] = {}
        self.allocated: dict[Buffer, int] = {}
        self.last: dict[str, int] = {}  # lane -> its last row

    def items(self, items: Sequence[Item], indices: Indices) -> None:
        for item in items:
            match item:
                case Allocate(buffer):
                    self.allocated[buffer] = self.allocated.get(buffer, -1) + 1
                case Operation():
                    self.operation(item, indices)
                case Loop():
                    self.loop(item, indices)

    def place(self, tile: Tile) -> Place:
        buffer = tile.buffer.storage
        return buffer, self.allocated.get(buffer, 0) % buffer.buffers

    def operation(self, operation: Operation, indices: Indices) -> None:
        """One row, and what it leaves for later ones to wait for."""
        found = [(self.place(tile), tile.region(indices), False) for tile in operation.reads]
        found += [(self.place(tile), tile.region(indices), True) for tile in operation.writes]
        waits = [self.last[owner] for owner in [_trigger(operation.lane)] if owner in self.last]
        for place, region, writes in found:
            for access in self.accesses.get(place, ()):
                in_order = access.lane == operation.lane and writes
                if (writes or access.writes) and not in_order and _overlap(access.region, region):
                    waits.append(access.row)
        instruction = operation.instruction
        label = f"{instruction.kind} {instruction.function}" if instruction.function != instruction.kind else instruction.kind
        hbm = any(tile.memory == "hbm" for tile in (*operation.reads, *operation.writes))
        row = self.add(instruction, waits, label, operation.source, operation.lane, hbm=float(hbm))
        for place, region, writes in found:
            self.note(place, _Access(region, row, operation.lane, writes))

    def note(self, place: Place, new: _Access) -> None:
        """Keeps an access; one that it makes unnecessary is forgotten."""

        def outdated(old: _Access) -> bool:
            return (new.writes or (old.lane == new.lane and not old.writes)) and _contains(new.region, old.region)

        kept = tuple(old for old in self.accesses.get(place, ()) if not outdated(old))
        self.accesses[place] = (*kept, new)

    def add(
        self,
        instruction: Instruction | None,
        waits: Sequence[int],
        label: str,
        source: str,
        lane: str,
        hbm: float = 0.0,
        trips: float = 1.0,
    ) -> int:
        latest: dict[object, int] = {}
        for wait in waits:  # lanes work in order, so the last row of a lane implies its earlier ones
            key = wait if self.lanes[wait] == "loop" else self.lanes[wait]
            latest[key] = max(wait, latest.get(key, -1))
        self.rows.append(Row(instruction=instruction, waits=tuple(sorted(latest.values())), label=label, source=source, scope=""))
        self.extra.append((*NO_REUSE, hbm, trips))
        self.lanes.append(lane)
        self.last[lane] = len(self.rows) - 1
        return len(self.rows) - 1

    def loop(self, loop: Loop, indices: Indices) -> None:
        together = _copies(loop)
        if loop.trips * _size(loop.items) <= WRITTEN_OUT_ROWS or loop.trips < 2 * together:
            for index in range(loop.trips):
                self.items(loop.items, {**indices, loop: index})
            return
        accesses, last, begin = dict(self.accesses), dict(self.last), len(self.rows)
        self.iterations(loop, indices, 0, together)
        carried = self.carried(loop, indices, begin, together)
        self.accesses, self.last = accesses, last
        trips = loop.trips // together
        end = self.add(None, [maker for _, maker in carried], f"loop {trips} times", loop.source, "loop", trips=float(trips))
        self.loops.append(programs.Loop(begin=begin, end=end, carried=carried))
        self.last.update({self.lanes[row]: end for row in range(begin, end)})
        self.leave(loop, indices, end)
        self.iterations(loop, indices, trips * together, loop.trips)

    def iterations(self, loop: Loop, indices: Indices, begin: int, end: int) -> None:
        for index in range(begin, end):
            self.items(loop.items, {**indices, loop: index})

    def carried(self, loop: Loop, indices: Indices, begin: int, together: int) -> tuple[tuple[tuple[int, ...], int], ...]:
        """What an iteration waits for in the one before: written as a second one, which is thrown away again."""
        end, loops = len(self.rows), len(self.loops)
        self.iterations(loop, indices, together, 2 * together)
        assert len(self.rows) - end == end - begin, "iterations of one loop differ"
        readers: dict[int, list[int]] = {}
        for row in range(end, len(self.rows)):
            for wait in self.rows[row].waits:
                if begin <= wait < end:
                    readers.setdefault(wait, []).append(row - end + begin)
        del self.rows[end:], self.extra[end:], self.lanes[end:], self.loops[loops:]
        return tuple((tuple(rows), maker) for maker, rows in sorted(readers.items()))

    def leave(self, loop: Loop, indices: Indices, end: int) -> None:
        """From outside, all that a loop did is its closing row. Of a rotating tile, the copy used last is still busy."""
        inside = {item.buffer for item in walk(loop.items) if isinstance(item, Allocate)}
        self.accesses = {place: found for place, found in self.accesses.items() if place[0] not in inside}
        for operation in walk(loop.items):
            if not isinstance(operation, Operation):
                continue
            for tile, writes in [*((tile, False) for tile in operation.reads), *((tile, True) for tile in operation.writes)]:
                buffer = tile.buffer.storage
                place, dead = self.place(tile), buffer in inside
                self.note(place, _Access(tile.region(indices), end, operation.lane, writes and not dead))


def _copies(loop: Loop) -> int:
    """Iterations after which all rotating tiles are back at their first copy."""
    return math.lcm(*(item.buffer.buffers for item in walk(loop.items) if isinstance(item, Allocate)))


def _size(items: Sequence[Item]) -> int:
    """Rows of some items."""
    rows = 0
    for item in items:
        if isinstance(item, Operation):
            rows += 1
        elif isinstance(item, Loop):
            once, together = _size(item.items), _copies(item)
            written_out = item.trips * once
            in_loop = (together + item.trips % together) * once + 1
            rows += written_out if written_out <= WRITTEN_OUT_ROWS or item.trips < 2 * together else in_loop
    return rows


def _trigger(lane: str) -> str:
    """The engine in whose stream a DMA queue's transfers are triggered; "" for the Sync engine, which does nothing else."""
    owner = lane.removeprefix("dma ").partition(":")[0] if lane.startswith("dma ") else ""
    return "" if owner == "sync" else owner


def _overlap(a: Region, b: Region) -> bool:
    return all(low < other_high and other_low < high for (low, high), (other_low, other_high) in zip(a, b, strict=True))


def _contains(outer: Region, inner: Region) -> bool:
    return all(low <= inner_low and inner_high <= high for (low, high), (inner_low, inner_high) in zip(outer, inner, strict=True))
