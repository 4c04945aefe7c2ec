"""The first memory model: which data move between HBM and SBUF, and how much SBUF would spare the move.

Inputs are loaded at their first use and outputs stored, always. What steps of one group (see `groups`) hand to each other only
passes through. Everything else stays in SBUF if it fits; a use whose `Room` (see `residency`) exceeds SBUF is preceded by a
reload, and data that are ever evicted are stored once after they are made.

Basis: assumed (a compiler that plans with the whole program in view); streamed tiles of data used once take no lasting room.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from trn_jax.timing.groups import groups
from trn_jax.timing.residency import ALWAYS, NEVER, SIZES_BYTES, Room, residency
from trn_jax.timing.stream import Block, Items, Step, Stream, walk
from trn_jax.units import KIB

TINY_BYTES = 32 * KIB  # never evicted; loaded and stored together with other tiny data
TINY_GROUP_BYTES = 256 * KIB


@dataclass
class Level:
    """The plan of one list of items: the program, or one iteration of a loop.

    Attributes:
        loads: Per item, data that it is the first to need from HBM (or from a scanned array), and the bytes that are new.
        reloads: Per item, what data need to be still in SBUF since their last use; `NEVER` where they were not yet.
        wraps: Of those, the uses that reach back into the iteration before.
        inside: The plan of every loop among the items.
        peak_bytes: Most bytes kept at one time, for every size of SBUF of the ladder.
    """

    loads: dict[int, dict[int, float]] = field(default_factory=dict)
    reloads: dict[int, dict[int, Room]] = field(default_factory=dict)
    wraps: set[tuple[int, int]] = field(default_factory=set)
    inside: dict[int, Level] = field(default_factory=dict)
    peak_bytes: np.ndarray = field(default_factory=lambda: np.zeros(len(SIZES_BYTES)))


@dataclass
class Traffic:
    """The plan of a whole stream: its levels, and the largest `Room` any use of each piece of data needs."""

    top: Level
    rooms: dict[int, Room]


def plan_traffic(stream: Stream) -> Traffic:
    """Decides loads, reloads and spills of a stream, for every size of SBUF at once."""
    planner = _Planner(stream)
    top = Level()
    planner.plan_loads(stream.items, top)
    planner.plan_reloads(stream.items, top, None)
    return Traffic(top, planner.rooms)


def loaded_reads(step: Step) -> tuple[int, ...]:
    """Data that a step needs in SBUF (or in a register, if it only waits for them)."""
    return step.after if step.in_place else (*step.reads, *step.after)


@dataclass
class _Touch:
    """One use of data by an item; `peeks` reads evicted data in HBM where they are."""

    position: int
    peeks: bool = False


class _Planner:
    def __init__(self, stream: Stream):
        self.stream, self.data = stream, stream.data
        self.rooms: dict[int, Room] = {}
        self.seen: set[int] = set()  # data in HBM that were loaded so far
        self.loaded_bytes: dict[int, float] = {}  # of them and their regions
        self.covered: set[int] = set()  # data in HBM that are loaded for the first time after regions or the whole of them were
        steps = [item for item in walk(stream.items) if isinstance(item, Step)]
        self.made_in_hbm = {datum for step in steps for datum in step.writes if self.data[datum].place == "hbm"}

    def plan_loads(self, items: Items, level: Level) -> None:
        """Who needs what first. Data from outside a loop are loaded before the loop."""
        for position, item in enumerate(items):
            needed, scanned = (loaded_reads(item), ()) if isinstance(item, Step) else self.outside_reads(item)
            needed, scanned = ([d for d in data if self.data[d].place in ("hbm", "slice")] for data in (needed, scanned))
            first = {datum: new for datum in dict.fromkeys(needed) if (new := self.first_bytes(datum))}
            made = {datum for datum in first if self.stream.origin(datum) in self.made_in_hbm}
            inputs = {datum: new for datum, new in first.items() if datum not in made}
            if inputs:
                level.loads[position] = inputs
            never_there = [*made, *(datum for datum in scanned if self.first_bytes(datum))]
            if never_there:
                level.reloads[position] = dict.fromkeys(never_there, NEVER)
            if isinstance(item, Block):
                level.inside[position] = Level()
                self.plan_loads(item.items, level.inside[position])
        self.group_tiny(level)

    def first_bytes(self, datum: int) -> float:
        """Bytes of data in HBM that nothing before has loaded; counts them as loaded."""
        if datum in self.seen:
            return 0.0
        self.seen.add(datum)
        origin = self.stream.origin(datum)
        before = self.loaded_bytes.get(origin, 0.0)
        new_bytes = max(0.0, min(self.data[datum].size_bytes, self.data[origin].size_bytes - before))
        self.loaded_bytes[origin] = before + new_bytes
        if not new_bytes:
            self.covered.add(datum)
        return new_bytes

    def group_tiny(self, level: Level) -> None:
        """Moves loads of tiny data forward, to where the first of a group is needed."""
        group, group_bytes = None, 0.0
        for position in sorted(level.loads):
            for datum, size_bytes in tuple(level.loads[position].items()):
                if size_bytes > TINY_BYTES:
                    continue
                if group is None or group_bytes + size_bytes > TINY_GROUP_BYTES:
                    group, group_bytes = position, 0.0
                group_bytes += size_bytes
                if group != position:
                    level.loads[group][datum] = level.loads[position].pop(datum)
        level.loads = {position: data for position, data in level.loads.items() if data}

    def plan_reloads(self, items: Items, level: Level, loop: Block | None) -> None:
        """Rooms of all uses of one level; those of the loops inside come first, because they weigh on the data around."""
        for position, item in enumerate(items):
            if isinstance(item, Block):
                self.plan_reloads(item.items, level.inside[position], item)
        before, after, base = _slots(items, level)
        touches, made = self.touches(items)
        spans = self.spans(touches, made, loop, before, after, len(base))
        if loop is None:
            copies = [0]
        else:  # an iteration in the middle of a long loop: its neighbours' data are there too
            copies, base = [-1, 0, 1], np.concatenate([base, base, base])
        offset = len(base) // len(copies)
        starts = [span.start + (copy - copies[0]) * offset for copy in copies for span in spans]
        stops = [min(span.stop + (copy - copies[0]) * offset, len(base)) for copy in copies for span in spans]
        sizes = [self.data[span.datum].size_bytes for _ in copies for span in spans]
        rooms, kept_bytes = residency(starts, stops, sizes, base)
        middle = copies.index(0)
        level.peak_bytes = kept_bytes[middle * offset : (middle + 1) * offset].max(0)
        self.record(level, spans, rooms[middle * len(spans) : (middle + 1) * len(spans)])

    def record(self, level: Level, spans: Sequence[_Span], rooms: Iterable[Room]) -> None:
        pending: dict[int, Room] = {}  # of data that were only looked at in HBM since
        for span, room in zip(spans, rooms, strict=True):
            for datum in span.makers:
                self.rooms[datum] = max(self.rooms.get(datum, ALWAYS), room)
            room = max(room, pending.pop(span.datum, ALWAYS))
            if span.peeks:
                pending[span.datum] = room
            elif room.may_be_missing and self.data[span.datum].size_bytes > TINY_BYTES:
                level.reloads.setdefault(span.position, {})[span.datum] = room
                if span.wraps:
                    level.wraps.add((span.position, span.datum))

    def touches(self, items: Items) -> tuple[dict[int, list[_Touch]], dict[int, int]]:
        """Uses of each piece of data in order, and where data of this level are made."""
        made: dict[int, int] = {}
        uses: dict[int, list[_Touch]] = {}
        for position, item in enumerate(items):
            if isinstance(item, Step):
                reads: Iterable[int] = item.reads
                made.update((datum, position) for datum in item.writes if datum not in item.reads)
            else:
                reads = [datum for data in self.outside_reads(item) for datum in data]
                made.update((datum, position) for datum in item.results)
            peeks = isinstance(item, Step) and item.in_place
            for datum in dict.fromkeys(reads):
                place = self.data[datum].place
                if place not in ("psum", "tiles") and not (peeks and place == "hbm"):
                    uses.setdefault(datum, []).append(_Touch(position, peeks))
        return uses, made

    def outside_reads(self, block: Block) -> tuple[list[int], list[int]]:
        """Data that a loop takes from around it: what its iterations share and first values of carries; and scanned arrays."""
        own: set[int] = {carry.inside for carry in block.carries} | {cut.part for cut in block.sliced}
        reads: list[int] = []
        for item in block.items:
            if isinstance(item, Step):
                reads += [d for d in (*item.reads, *item.after) if not (item.in_place and self.data[d].place == "hbm")]
                own.update(datum for datum in item.writes if datum not in item.reads)
            else:
                reads += [datum for data in self.outside_reads(item) for datum in data]
                own.update(item.results)
        shared = [datum for datum in reads if self.stream.origin(datum) not in own]
        scanned = dict.fromkeys(datum for cut in block.sliced for datum in cut.whole)
        return list(dict.fromkeys([*shared, *(datum for carry in block.carries for datum in carry.before)])), list(scanned)

    def spans(
        self,
        uses: dict[int, list[_Touch]],
        made: dict[int, int],
        loop: Block | None,
        before: list[int],
        after: list[int],
        slots: int,
    ) -> list[_Span]:
        """All intervals in which data wait for their next use.

        A stack that a loop makes waits from its end, and a scanned array to its beginning: meanwhile it grows or shrinks.
        """
        spans: list[_Span] = []
        insides = {carry.inside for carry in loop.carries} if loop else set()

        def add(datum: int, start: int, touch: _Touch, makers: tuple[int, ...], wraps: bool = False) -> None:
            stop = before[touch.position] + 1
            if start < stop or wraps:  # else both uses belong to one pass over tiles
                spans.append(_Span(datum, start, stop + slots * wraps, touch.position, touch.peeks, wraps, makers))

        families: dict[int, list[int]] = {}
        for datum in uses:
            families.setdefault(self.stream.origin(datum), []).append(datum)
        for datum, touched in uses.items():
            place, origin = self.data[datum].place, self.stream.origin(datum)
            makers = () if place in ("hbm", "slice") else (datum,)
            if origin in made and place == "sbuf":
                add(datum, after[made[origin]], touched[0], makers)
            elif loop is not None and place != "slice" and origin not in insides:
                add(datum, after[touched[-1].position], touched[0], makers, wraps=True)
            elif datum in self.covered:  # a slice of an array loaded before, or the whole of loaded slices
                family = [t.position for d in families[origin] for t in uses[d] if t.position < touched[0].position]
                if family:
                    add(datum, after[max(family)], touched[0], ())
            for first, second in zip(touched, touched[1:], strict=False):
                add(datum, after[first.position], second, makers)
        for carry in loop.carries if loop else ():
            for datum in carry.following:
                origin = self.stream.origin(datum)
                last = max((touch.position for touch in uses.get(datum, ())), default=made.get(origin, -1))
                if carry.inside in uses and last >= 0 and (origin in made or origin in insides):
                    add(carry.inside, after[last], uses[carry.inside][0], (datum,), wraps=True)
        return spans


def _slots(items: Items, level: Level) -> tuple[list[int], list[int], np.ndarray]:
    """Time slots before and after each item, one between any two groups, and the bytes needed in each in any case.

    A loop has one more, during which its iterations keep their own data.
    """
    nothing = np.zeros(len(SIZES_BYTES))
    before, after, base = [], [], [nothing]
    numbers = groups(items)
    for position, item in enumerate(items):
        same_group = position > 0 and numbers[position] == numbers[position - 1]
        if same_group:
            before.append(before[-1])
        else:
            before.append(len(base) - 1)
            if isinstance(item, Block):
                base.append(level.inside[position].peak_bytes)
            base.append(nothing)
        after.append(len(base) - 1)
    return before, after, np.array(base)


@dataclass(slots=True)
class _Span:
    """Data waiting in slots `start` to `stop` - 1 for the item at `position`; `makers` are the data to store if they are evicted."""

    datum: int
    start: int
    stop: int
    position: int
    peeks: bool
    wraps: bool
    makers: tuple[int, ...]
