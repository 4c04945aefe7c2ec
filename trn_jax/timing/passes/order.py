"""Order: between two products each chain of steps runs to its end before the next one begins, so that values die soon.

a0 = f(x0), a1 = f(x1), y0 = g(a0), y1 = g(a1)     becomes     a0 = f(x0), y0 = g(a0), a1 = f(x1), y1 = g(a1)

An optimizer written stage by stage over all weights holds a tree of results between its stages. From the last step that nobody there
reads, backwards along what it reads, come one weight's steps after the other's; they then share one loop over its rows.

Only steps of Vector, Scalar and GpSimd move, and never across a product, DMA, collective or loop, so what waits around them stays as it
was. The written order is kept unless the other one evicts less of what waits in between, and no more at any size of SBUF. Chains that
alternate between tables of the Scalar Engine load them again and again, so they also have to save the DMA of as much time.

Basis: derived (Belady's evictions of both orders, see `timing.residency`); assumed that a compiler orders for short lives, as XLA's does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from trn_jax.timing.groups import groups
from trn_jax.timing.memory import TINY_BYTES
from trn_jax.timing.residency import SIZES_BYTES, residency
from trn_jax.timing.stream import IN_PLACE_KINDS, Block, Items, Step, Stream, reads_of, walk
from trn_jax.timing.table_loads import needed_tables
from trn_jax.units import MIB

CHIP_BYTES = 24 * MIB  # SBUF of the smallest of today's chips: where the order must buy something to be changed
LOAD_BYTES = 0.5e6  # that DMA moves while the Scalar Engine loads a table: 1.28 us at 368 GB/s, Trainium2. Basis: derived
MOVABLE = frozenset({"vector", "scalar", "gpsimd"})


def order_depth_first(stream: Stream) -> Stream:
    """Puts the steps between two products, transfers or loops in the order in which their results are used, where that evicts less."""
    return replace(stream, items=_items(stream, stream.items, ()))


def _items(stream: Stream, items: Items, handed_on: Iterable[int]) -> Items:
    """One level; `handed_on` is what an iteration leaves for the next one and for after the loop."""
    result = [_ordered_block(stream, item) if isinstance(item, Block) else item for item in items]
    runs = [(begin, end) for begin, end in _runs(stream, items) if _holds_much(stream, items[begin:end])]
    if not runs:
        return tuple(result)
    used = _Uses.of(stream, items, handed_on)
    for begin, end in runs:
        steps: list[Step] = [item for item in items[begin:end] if isinstance(item, Step)]
        order = _depth_first(stream, steps)
        if order == list(range(len(steps))):
            continue
        written = _waits(stream, steps, used, begin, end)
        if _most_bytes(written) <= CHIP_BYTES:
            continue
        moved = [steps[i] for i in order]
        sooner = _waits(stream, moved, used, begin, end)
        if _byte_slots(sooner) >= _byte_slots(written):
            continue
        saved_bytes = _evicted_bytes(written) - _evicted_bytes(sooner)
        more_loads_bytes = LOAD_BYTES * max(0, _table_loads(moved) - _table_loads(steps))
        if np.all(saved_bytes >= 0) and np.any(saved_bytes[SIZES_BYTES == CHIP_BYTES] > more_loads_bytes):
            result[begin:end] = moved
    return tuple(result)


def _ordered_block(stream: Stream, block: Block) -> Block:
    following = (datum for carry in block.carries for datum in carry.following)
    stacked = (datum for stack in block.stacked for datum in stack.part)
    return replace(block, items=_items(stream, block.items, (*following, *stacked, *block.condition)))


def _runs(stream: Stream, items: Items) -> list[tuple[int, int]]:
    """Where runs of at least three movable steps begin and end."""
    found, begin = [], 0
    for position in range(len(items) + 1):
        if position == len(items) or not _moves(stream, items[position]):
            if position - begin > 2:
                found.append((begin, position))
            begin = position + 1
    return found


def _moves(stream: Stream, item: Step | Block) -> bool:
    """Whether an item may change places: a pure step of an engine that streams, and not the way out of PSUM."""
    if isinstance(item, Block) or item.pinned or item.instruction.engine not in MOVABLE or item.instruction.kind in IN_PLACE_KINDS:
        return False
    return all(stream.data[datum].place != "psum" for datum in item.reads) and all(datum not in item.reads for datum in item.writes)


def _holds_much(stream: Stream, steps: Items) -> bool:
    """Whether what these steps make exceeds SBUF; else their order matters little."""
    made = (datum for step in steps if isinstance(step, Step) for datum in step.writes)
    return sum(stream.data[datum].size_bytes for datum in made) > CHIP_BYTES


def _depth_first(stream: Stream, steps: Sequence[Step]) -> list[int]:
    """The steps in the order of a walk from each result that is not read here, as written, to what it is made from."""
    maker = {datum: position for position, step in enumerate(steps) for datum in step.writes}
    needs = [
        list(dict.fromkeys(maker[origin] for datum in (*step.reads, *step.after) if (origin := stream.origin(datum)) in maker))
        for step in steps
    ]
    read = {position for producers in needs for position in producers}
    order: list[int] = []
    reached: set[int] = set()
    for root in range(len(steps)):
        stack = [] if root in read else [(root, False)]
        while stack:
            position, made = stack.pop()
            if made:
                order.append(position)
            elif position not in reached:
                reached.add(position)
                stack.append((position, True))
                stack += [(producer, False) for producer in reversed(needs[position]) if producer not in reached]
    return order


@dataclass(frozen=True, slots=True)
class _Uses:
    """Of each piece of data at one level, the positions of the first and the last item that reads it."""

    first: dict[int, int]
    last: dict[int, int]

    @classmethod
    def of(cls, stream: Stream, items: Items, handed_on: Iterable[int]) -> _Uses:
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for position, item in enumerate(items):
            inside = walk(item.items) if isinstance(item, Block) else ()
            for datum in (*reads_of(item), *(d for inner in inside for d in reads_of(inner))):
                if datum not in first:
                    first[datum] = position
                last[datum] = position
        for region in stream.regions.keys() & last.keys():
            origin = stream.origin(region)
            first[origin] = min(first[region], first.get(origin, len(items)))
            last[origin] = max(last[region], last.get(origin, -1))
        for datum in handed_on:
            last[datum] = last[stream.origin(datum)] = len(items)
        return cls(first, last)


class _Wait(NamedTuple):
    """Data that wait from time slot `start` to before `stop`, and whether they have to be stored if they are evicted."""

    datum: int
    start: int
    stop: int
    size_bytes: float
    stored: bool


def _waits(stream: Stream, steps: Sequence[Step], used: _Uses, begin: int, end: int) -> list[_Wait]:
    """What waits among these steps, which stand at `begin` to `end`, in slots of time: one between any two groups."""
    numbers = groups(steps)
    since: dict[int, int] = {}  # data -> first slot in which they wait
    waits: list[_Wait] = []

    def add(datum: int, stop: int) -> None:
        size_bytes, _, place = stream.data[datum]
        if since[datum] < stop and size_bytes > TINY_BYTES:
            waits.append(_Wait(datum, since[datum], stop, size_bytes, place == "sbuf"))

    for step, number in zip(steps, numbers, strict=True):
        for datum in dict.fromkeys(map(stream.origin, step.reads)):
            if datum not in since:  # made or loaded before, unless this is its first load
                loaded = stream.data[datum].place == "sbuf" or used.first.get(datum, begin) < begin
                since[datum] = 0 if loaded else number + 1
            add(datum, number + 1)
            since[datum] = number + 1
        since.update((datum, number + 1) for datum in step.writes)
    for datum in since:
        if used.last.get(datum, -1) >= end:
            add(datum, numbers[-1] + 2)
    return waits


def _table_loads(steps: Sequence[Step]) -> int:
    """How often the Scalar Engine needs another table."""
    tables = needed_tables(steps)
    return sum(table != before for table, before in zip(tables, ["", *tables], strict=False))


def _most_bytes(waits: Sequence[_Wait]) -> float:
    """Most bytes that wait at one time."""
    change = [0.0] * (1 + max((wait.stop for wait in waits), default=0))
    for wait in waits:
        change[wait.start] += wait.size_bytes
        change[wait.stop] -= wait.size_bytes
    return max(accumulate(change))


def _byte_slots(waits: Sequence[_Wait]) -> float:
    """Bytes times how long they wait."""
    return sum(wait.size_bytes * (wait.stop - wait.start) for wait in waits)


def _evicted_bytes(waits: Sequence[_Wait]) -> np.ndarray:
    """Bytes stored and loaded again for want of room, for every size of SBUF."""
    slots = 1 + max((wait.stop for wait in waits), default=0)
    starts, stops = [wait.start for wait in waits], [wait.stop for wait in waits]
    rooms, _ = residency(starts, stops, [wait.size_bytes for wait in waits], np.zeros((slots, len(SIZES_BYTES))))
    total = np.zeros(len(SIZES_BYTES))
    stored: dict[int, np.ndarray] = {}
    for wait, room in zip(waits, rooms, strict=True):
        if room.may_be_missing:
            missing = np.minimum(wait.size_bytes, room.slope * np.maximum(0.0, room.size_bytes - SIZES_BYTES))
            total += missing
            if wait.stored:
                stored[wait.datum] = np.maximum(stored.get(wait.datum, 0.0), missing)
    return total + sum(stored.values(), np.zeros(len(SIZES_BYTES)))
