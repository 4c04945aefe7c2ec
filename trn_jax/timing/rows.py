"""Stream and traffic to rows: every step becomes a row, with the DMA rows it needs before and after it.

DMA queues are in order, so a store that waits for its data would hold up the loads behind it. Therefore each load goes out one
loading step ahead (double buffering), in loops also from one iteration to the next, and each store some steps after its data are
made.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from trn_jax.graph.instruction import Instruction, Work
from trn_jax.timing.assemble import assemble
from trn_jax.timing.blocking import reread_pieces
from trn_jax.timing.flatten import LONGEST_ROW_BYTES
from trn_jax.timing.groups import groups, loop_tiles
from trn_jax.timing.linear_scan import RECURRENCE
from trn_jax.timing.memory import TINY_BYTES, Level, plan_traffic
from trn_jax.timing.program import NO_GROUP, Loop, Origin, Program, Row
from trn_jax.timing.residency import ALWAYS, NEVER, Room
from trn_jax.timing.stream import Block, Carry, Items, Step, Stream, writes_of

BLOCK_ROW_BYTES = 8192.0  # rows of a block that a product reads again: 2048 columns of fp32. Basis: assumed
PIPELINED_ELEMENTS = 128 * 512.0  # from which an instruction is longer than the latency of an engine: 512 columns
STORE_LAG_STEPS = 8  # a store goes out this many steps after its data are made, when it no longer waits for them


def build_program(stream: Stream, origin: Origin | None = None) -> Program:
    """The program of a stream: its steps and its memory traffic as rows of a table."""
    writer = _Writer(stream)
    writer.write_program()
    return assemble(writer.rows, writer.extra, writer.loops, row_groups=writer.groups, origin=origin)


class _Store(NamedTuple):
    """A DMA row that is not yet written, and the step that made its data."""

    function: str
    size_bytes: float
    row_bytes: float
    waits: tuple[int, ...]
    source: str
    scope: str
    room: Room = NEVER
    step: int = 0


class _Writer:
    """Writes rows in order; `ready` says, for every piece of data, which rows a reader waits for."""

    def __init__(self, stream: Stream):
        self.stream, self.data = stream, stream.data
        self.traffic = plan_traffic(stream)
        self.rows: list[Row] = []
        self.extra: list[tuple[float, float, float, float]] = []
        self.loops: list[Loop] = []
        self.groups: list[tuple[int, float]] = []  # of each row: its group, and the tiles this works through
        self.group, self.next_group = NO_GROUP, 0  # of the step that is being written
        self.ready: dict[int, tuple[int, ...]] = {}
        self.saved: dict[int, int] = {}  # data -> row that stored them in HBM
        self.made_by: dict[int, int] = {}
        self.elementwise: dict[int, float] = {}  # row that works element by element -> its elements
        self.readers: dict[int, list[int]] = {}  # carried value of a loop -> rows that read it
        self.changed: list[int] = []  # data whose readiness changed, to be looked at again when a loop closes
        self.late_stores: list[int] = []
        self.step = 0
        self.ahead: dict[int, tuple[int, ...]] = {}  # what an iteration loads for the next one
        self.pending: dict[int, _Store] = {}  # stores not yet written, oldest first
        self.regions: dict[int, list[int]] = {}
        for region in stream.regions:
            self.regions.setdefault(stream.origin(region), []).append(region)
        reads = stream.readers()
        self.read_again = {datum for datum in stream.outputs if reads[datum] > 1}
        self.last_writer = {datum: item for item in stream.items for datum in writes_of(item)}

    def write_program(self) -> None:
        self.write_items(self.stream.items, self.traffic.top, None)
        self.write_all_pending()
        copied = [datum for datum in self.stream.outputs if self.is_copied_input(datum)]
        size_bytes = sum(self.stream.outputs[datum] for datum in (*self.late_stores, *copied)) + self.stream.copied_bytes
        if size_bytes:
            self.dma("store", size_bytes, min(size_bytes, TINY_BYTES), self.waits(self.late_stores), "", "")

    def is_copied_input(self, datum: int) -> bool:
        """Whether an output is a part or a repetition of a program input; a whole input is handed back as it is."""
        size_bytes, _, place = self.data[datum]
        made = self.stream.origin(datum) in self.made_by
        return place == "hbm" and not made and (datum in self.stream.regions or self.stream.outputs[datum] > size_bytes)

    def write_items(self, items: Items, level: Level, loop: Block | None, scanned: dict[int, Room] | None = None) -> None:
        """Rows of the program or of one iteration; `scanned` has the `Room` of the arrays that the loop takes slices of."""
        loading = sorted(level.loads)
        issued = 0 if loop is None else 1  # the first loads of an iteration go out in the iteration before
        stacked = {self.stream.origin(datum): stack.whole for stack in loop.stacked for datum in stack.part} if loop else {}
        numbers, first_group = groups(items), self.next_group
        tiles = loop_tiles(items, numbers)
        self.next_group += len(items)
        for position, item in enumerate(items):
            while issued < len(loading) and (issued == 0 or loading[issued - 1] <= position):
                self.set_all_ready(self.write_loads(items[loading[issued]], level.loads[loading[issued]], loop, scanned or {}))
                issued += 1
            if loop is not None and issued == len(loading) and loading[-1] <= position:
                self.ahead = self.write_loads(items[loading[0]], level.loads[loading[0]], loop, scanned or {}, ahead=True)
                issued += 1
            self.write_reloads(item, position, level, loop)
            self.step += 1
            for datum in [datum for datum, store in self.pending.items() if store.step <= self.step - STORE_LAG_STEPS]:
                self.write_pending(datum)
            if isinstance(item, Block):
                self.write_block(item, level.inside[position], level.reloads.get(position, {}))
            else:
                self.group = (first_group + numbers[position], tiles[position])
                self.write_step(item, level.reloads.get(position, {}), stacked, loop)
                self.group = NO_GROUP

    def write_loads(
        self, item: Step | Block, data: dict[int, float], loop: Block | None, scanned: dict[int, Room], ahead: bool = False
    ) -> dict[int, tuple[int, ...]]:
        """Compulsory loads of one item in one row; slices of an array that may still be in SBUF in rows of their own.

        Loads for the next iteration (`ahead`) happen one time less than there are iterations. Returns the rows to wait for.
        """
        source, scope = _where(item)
        factor = (loop.trips - 1) / loop.trips if loop is not None and ahead else 1.0
        rows: dict[int, tuple[int, ...]] = {}
        whole = {cut.part: cut.whole for cut in loop.sliced} if loop else {}
        together: dict[int, float] = {}
        for datum, new_bytes in data.items():
            wholes = whole.get(self.stream.origin(datum), ())
            room = max((scanned.get(d, ALWAYS) for d in wholes), default=NEVER)
            if room == NEVER:
                together[datum] = new_bytes * factor
            elif not room.may_be_missing:
                rows[datum] = self.waits(wholes)
            else:
                waits = [row for d in wholes for row in self.saved_waits(d)]
                part = room if loop is None else room._replace(slope=room.slope / loop.trips)
                size_bytes, row_bytes = new_bytes * factor, self.data[datum].row_bytes
                rows[datum] = (self.dma("reload", size_bytes, row_bytes, waits, source, scope, part),)
        if together:
            size_bytes = sum(together.values())
            pieces = sum(new_bytes / self.data[datum].row_bytes for datum, new_bytes in together.items())
            waits = [row for datum in together for d in whole.get(self.stream.origin(datum), ()) for row in self.waits([d])]
            row = self.dma("load", size_bytes, min(LONGEST_ROW_BYTES, size_bytes / max(pieces, 1.0)), waits, source, scope)
            rows.update(dict.fromkeys(together, (row,)))
        return rows

    def write_reloads(self, item: Step | Block, position: int, level: Level, loop: Block | None) -> None:
        """Data that may have left SBUF since their last use."""
        source, scope = _where(item)
        for datum, room in level.reloads.get(position, {}).items():
            size_bytes, row_bytes, _ = self.data[datum]
            if isinstance(item, Block) and any(datum in cut.whole for cut in item.sliced):
                continue  # every iteration reloads its own part
            if loop is not None and (position, datum) in level.wraps:
                size_bytes *= (loop.trips - 1) / loop.trips  # the first iteration finds them loaded
            waits = self.saved_waits(datum)
            row = self.dma("load" if room == NEVER else "reload", size_bytes, row_bytes, waits, source, scope, room)
            self.note_read(datum, row)
            self.set_ready(datum, (row,))

    def write_step(self, step: Step, reloads: dict[int, Room], stacked: dict[int, int], loop: Block | None) -> None:
        source, scope = _where(step)
        read = [datum for datum in step.reads if not (step.in_place and self.lies_in_hbm(datum))]  # that need no load
        waits = [row for datum in (*read, *step.after) for row in self.waits([datum])]
        waits = [row for row in waits if not self.follows(step, row)]
        rereads = self.write_rereads(step, reloads, waits, source, scope) if step.instruction.kind == "nc_matmul" else []
        direct = step.in_place and all(datum in self.stream.outputs and datum not in self.read_again for datum in step.writes)
        hbm = step.in_place and (direct or any(self.data[datum].place in ("hbm", "slice") for datum in step.reads))
        label = f"{step.instruction.kind} {'+'.join(step.functions)}"
        row = self.add(step.instruction, waits, label, source, scope, hbm=float(hbm and step.instruction.engine != "collective"))
        if step.elementwise or step.instruction.function == RECURRENCE:
            self.elementwise[row] = step.instruction.work.elements
        for datum in step.reads:
            self.note_read(datum, row)
        for datum in step.writes:
            self.made_by[datum] = row
            self.set_ready(datum, (row, *rereads))
            if datum in stacked and self.write_stacked(datum, stacked[datum], (row,), loop, source, scope):
                continue  # what is stored for the stack need not be spilled
            if not direct:
                self.write_stores(datum, row, step, datum not in step.reads)

    def lies_in_hbm(self, datum: int) -> bool:
        """Whether data are a program input, or a part of one, that nothing has changed so far."""
        return self.data[datum].place == "hbm" and self.stream.origin(datum) not in self.made_by

    def follows(self, step: Step, row: int) -> bool:
        """Whether a step reads an earlier row of its own engine element by element, so that being next in order is enough.

        The first elements are written long before the last are read. Basis: measured (160 dependent instructions of the published
        Mamba kernel keep their engine 98.7 % busy, 19 cycles each beyond their columns).
        """
        elements = step.instruction.work.elements
        producer = self.rows[row].instruction
        same = producer is not None and producer.engine == step.instruction.engine and self.elementwise.get(row) == elements
        return same and elements >= PIPELINED_ELEMENTS and (step.elementwise or step.instruction.function == RECURRENCE)

    def write_rereads(self, step: Step, reloads: dict[int, Room], waits: Sequence[int], source: str, scope: str) -> list[int]:
        """What a blocked product reads from HBM again because SBUF holds neither operand.

        It goes on while the product is computed, so not the product waits for it but whoever reads the product; the largest piece is
        last, because a reader may start with its beginning.
        """
        operands = step.reads if len(step.reads) > 1 else step.reads * 2
        if not operands:
            return []
        lhs, rhs = (self.data[datum] for datum in operands[:2])
        resident_bytes = min(
            (reloads.get(datum, ALWAYS).size_bytes for datum in operands[:2] if self.data[datum].place == "sbuf"), default=math.inf
        )
        pieces = reread_pieces(step.instruction.work, lhs.size_bytes, rhs.size_bytes, resident_bytes)
        row_bytes = min(lhs.row_bytes, rhs.row_bytes, BLOCK_ROW_BYTES)
        return [self.dma("reread", size, row_bytes, waits, source, scope, room) for size, room in sorted(pieces)]

    def write_stores(self, datum: int, row: int, item: Step | Block, first: bool) -> None:
        """What leaves SBUF: outputs after their last change, other data once made (`first`) if some use may find them evicted."""
        source, scope = _where(item)
        for made in (datum, *self.regions.get(datum, ())):
            size_bytes, row_bytes, place = self.data[made]
            room = self.traffic.rooms.get(made, ALWAYS)
            if made in self.stream.outputs and place != "hbm" and self.last_writer.get(datum) is item:
                size_bytes = self.stream.outputs[made]
                if size_bytes <= TINY_BYTES:
                    self.late_stores.append(made)
                else:
                    self.pending[made] = _Store("store", size_bytes, row_bytes, (row,), source, scope, step=self.step)
            elif first and place == "sbuf" and room.may_be_missing and size_bytes > TINY_BYTES:
                self.pending[made] = _Store("spill", size_bytes, row_bytes, (row,), source, scope, room, step=self.step)

    def write_stacked(self, datum: int, whole: int, waits: tuple[int, ...], loop: Block | None, source: str, scope: str) -> bool:
        """One iteration's part of a stacked result; whether it may leave SBUF."""
        assert loop is not None
        needed = [made for made in (whole, *self.regions.get(whole, ()))]
        room = max(self.traffic.rooms.get(made, ALWAYS) for made in needed)
        size_bytes, row_bytes, _ = self.data[datum]
        if any(made in self.stream.outputs for made in needed):
            self.pending[datum] = _Store("store", size_bytes, row_bytes, waits, source, scope, step=self.step)
        elif room.may_be_missing:
            part = room._replace(slope=room.slope / loop.trips)
            self.pending[datum] = _Store("spill", size_bytes, row_bytes, waits, source, scope, part, self.step)
        return datum in self.pending

    def write_all_pending(self) -> None:
        for datum in tuple(self.pending):
            self.write_pending(datum)

    def write_pending(self, datum: int) -> None:
        """A store whose time has come."""
        store = self.pending.pop(datum)
        row = self.dma(store.function, store.size_bytes, store.row_bytes, store.waits, store.source, store.scope, store.room)
        self.note_read(datum, row)
        self.saved[datum] = row

    def saved_waits(self, datum: int) -> tuple[int, ...]:
        """Rows after which data can be loaded from where they were stored."""
        if datum in self.pending:
            self.write_pending(datum)
        return (self.saved[datum],) if datum in self.saved else self.waits([datum])

    def write_block(self, block: Block, level: Level, scanned: dict[int, Room]) -> None:
        self.write_all_pending()
        before, first_changed = dict(self.ready), len(self.changed)
        if level.loads:
            first = min(level.loads)
            self.set_all_ready(self.write_loads(block.items[first], level.loads[first], block, scanned))
        begin = len(self.rows)
        for carry in block.carries:
            self.set_ready(carry.inside, self.waits(carry.before))
        for cut in block.sliced:  # for DMA that takes a slice from HBM itself
            self.ready.setdefault(cut.part, self.waits(cut.whole))
            self.changed.append(cut.part)
        made = {datum for item in block.items for datum in (item.writes if isinstance(item, Step) else item.results)}
        for stack in block.stacked:
            for datum in stack.part:
                if self.stream.origin(datum) not in made:  # there from the beginning of the iteration
                    self.write_stacked(datum, stack.whole, self.waits([datum]), block, block.source, block.scope)
        self.write_items(block.items, level, block, scanned)
        self.write_all_pending()
        ahead, self.ahead = self.ahead, {}
        carried = tuple(self.carried(carry, begin) for carry in block.carries)
        for row in sorted({row for rows in ahead.values() for row in rows if row >= begin}):
            origins = {self.stream.origin(datum) for datum, rows in ahead.items() if row in rows}
            carried += ((tuple(sorted({reader for origin in origins for reader in self.readers.get(origin, ())})), row),)
        makers = [row for _, row in carried if row >= 0]
        makers += [row for stack in block.stacked for row in self.waits(stack.part) if row >= begin]
        end = self.add(None, makers, f"loop {block.trips} times", block.source, block.scope, trips=float(block.trips))
        self.loops.append(Loop(begin=begin, end=end, carried=carried))
        for datum in self.changed[first_changed:]:  # rows inside the loop are seen from outside as its closing row
            if datum in before:
                self.ready[datum] = (end,)
            else:
                self.ready.pop(datum, None)
        self.changed[first_changed:] = [datum for datum in dict.fromkeys(self.changed[first_changed:]) if datum in before]
        for datum in block.results:
            self.made_by[datum] = end
            self.set_ready(datum, (end,))
        for datum in writes_of(block):
            if not any(datum == stack.whole for stack in block.stacked):
                self.write_stores(datum, end, block, datum in block.results)

    def carried(self, carry: Carry, begin: int) -> tuple[tuple[int, ...], int]:
        """Rows of an iteration that read a carried value, and the row that makes the next one."""
        made = max((self.made_by.get(self.stream.origin(datum), -1) for datum in carry.following), default=-1)
        readers = sorted(set(self.readers.pop(carry.inside, ())))
        for datum in carry.before:  # to a loop around this one, they read what its own carry hands over
            self.readers.setdefault(self.stream.origin(datum), []).extend(readers)
        return tuple(readers), made if made >= begin else -1

    def dma(
        self,
        function: str,
        size_bytes: float,
        row_bytes: float,
        waits: Iterable[int],
        source: str,
        scope: str,
        room: Room = NEVER,
    ) -> int:
        """One row of memory traffic."""
        instruction = Instruction(engine="dma", kind="dma_copy", function=function, work=Work(bytes=size_bytes, row_bytes=row_bytes))
        return self.add(instruction, waits, f"dma_copy {function}", source, scope, room, hbm=1.0)

    def add(
        self,
        instruction: Instruction | None,
        waits: Iterable[int],
        label: str,
        source: str,
        scope: str,
        room: Room = NEVER,
        hbm: float = 0.0,
        trips: float = 1.0,
    ) -> int:
        latest: dict[object, int] = {}
        for wait in waits:  # engines work in order, so the last row of an engine implies its earlier ones
            earlier = self.rows[wait].instruction
            lane = wait if earlier is None else earlier.engine
            latest[lane] = max(wait, latest.get(lane, -1))
        needed = tuple(sorted(latest.values()))
        self.rows.append(Row(instruction=instruction, waits=needed, label=label, source=source, scope=scope))
        self.extra.append((room.size_bytes, room.slope, hbm, trips))
        beside = instruction is None or instruction.engine in ("dma", "collective")
        self.groups.append(NO_GROUP if beside else self.group)
        return len(self.rows) - 1

    def waits(self, data: Iterable[int]) -> tuple[int, ...]:
        """Rows after which all these data can be read."""
        rows: list[int] = []
        for datum in data:
            origin = self.stream.origin(datum)
            known = next((self.ready[d] for d in (datum, origin) if d in self.ready), None)
            if known is None:  # an array of which slices were loaded
                known = [row for region in self.regions.get(origin, ()) for row in self.ready.get(region, ())]
            rows.extend(known)
        return tuple(rows)

    def set_all_ready(self, rows: dict[int, tuple[int, ...]]) -> None:
        for datum, found in rows.items():
            self.set_ready(datum, found)

    def set_ready(self, datum: int, rows: tuple[int, ...]) -> None:
        self.ready[datum] = rows
        self.changed.append(datum)

    def note_read(self, datum: int, row: int) -> None:
        self.readers.setdefault(self.stream.origin(datum), []).append(row)


def _where(item: Step | Block) -> tuple[str, str]:
    """Source lines and scopes of an item, each once."""
    if isinstance(item, Block):
        return item.source, item.scope
    return "; ".join(dict.fromkeys(filter(None, item.sources))), "; ".join(dict.fromkeys(filter(None, item.scopes)))
