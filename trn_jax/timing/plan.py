"""A Plan: the static half of a schedule, one step per row, with every result in a numbered slot.

A step reads the end of the row before it on its lane and what its waits left in their slots, and writes one slot. Slots are
allocated like registers, so that what a scan carries is as large as what is alive at once, not as long as the program. More
waits than a step can take, and the other iterations of a loop, become steps of their own:

    many waits      join, join, ..., row                        a join takes no time and occupies no lane
    closing row     one step per lane of the body, that lane busy for the other iterations; then a join of them
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from trn_jax.timing.cost import positions
from trn_jax.timing.program import Loop, Structure

WAITS = 2  # waits of one step
MODES = ("concurrent", "collectives_alone", "engines_in_turn")


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """Static arrays of one scan, one entry per step; compared by identity, as each is made once per Structure.

    Slot 0 is the origin of time and is never written; the next ones hold the tokens of a loop (see `timing.loops`).
    """

    cost: np.ndarray  # position in the cost table of the occupancy, gap and first piece that count
    scale: np.ndarray  # position of the occupancy that sets the width of the soft maxima
    share: np.ndarray  # part of that width, so that all maxima of one row together stay within it
    previous: np.ndarray  # slot of the row before on the same lane
    ordered: np.ndarray  # 1 where there is one
    waits: np.ndarray  # [steps, WAITS] slots
    real: np.ndarray  # [steps, WAITS] 1 for a wait, 0 for padding
    full: np.ndarray  # [steps, WAITS] 1 to wait for the whole result, 0 for its first piece
    in_turn: np.ndarray  # 1 where an instruction may not even start before the one before has ended
    writes: np.ndarray  # slot
    held: np.ndarray  # [steps, WAITS + 2] going backwards: 1 where the slot of a wait, `previous` or `writes` holds an adjoint
    slots: int
    tokens: int
    outputs: np.ndarray  # slots to return
    row_steps: dict[int, int]  # row of the program -> its step
    kept: Plan | None  # the same plan with a slot of its own for every step

    def __len__(self) -> int:
        """Number of steps."""
        return len(self.cost)


@dataclass(slots=True)
class _Step:
    """A step before slots are known; results are numbered -1 - token, or by step; None is the origin of time."""

    cost: int
    scale: int
    share: float
    previous: int | None
    waits: list[tuple[int, bool]]  # (result, whether to wait for all of it)
    in_turn: bool


@dataclass(slots=True)
class _Builder:
    """Turns rows into steps."""

    structure: Structure
    zero: int  # row that costs nothing
    mode: str
    steps: list[_Step] = field(default_factory=list)
    last: dict[str, int] = field(default_factory=dict)  # lane -> result that ends last on it
    made: dict[int, int] = field(default_factory=dict)  # row -> result

    def lane(self, row: int) -> str:
        engine = self.structure.engines[row]
        return "engines" if self.mode == "engines_in_turn" and engine != "collective" else engine

    def lanes(self) -> list[str]:
        return sorted({self.lane(row) for row, engine in enumerate(self.structure.engines) if engine != "loop"})

    def add(self, step: _Step) -> int:
        self.steps.append(step)
        return len(self.steps) - 1

    def join(self, results: Sequence[tuple[int, bool]], scale: int, share: float, at_most: int) -> list[tuple[int, bool]]:
        """Joins results until no more than `at_most` are left."""
        results = list(results)
        while len(results) > at_most:
            taken, results = results[:WAITS], results[WAITS:]
            results.append((self.add(_Step(self.zero, scale, share, None, taken, False)), False))
        return results

    def row(self, row: int, waits: Sequence[int]) -> None:
        """One instruction, which waits for some results."""
        lane = self.lane(row)
        results = [(result, False) for result in dict.fromkeys(waits)]
        alone = self.mode == "collectives_alone" and lane == "collective"
        if alone:
            results = [(result, True) for result in dict.fromkeys(self.last.values())]
        share = 1.0 / (1 + len(results))
        results = self.join(results, row, share, WAITS)
        previous = None if alone else self.last.get(lane)
        result = self.add(_Step(row, row, share, previous, results, lane == "engines"))
        self.made[row] = result
        for blocked in self.lanes() if alone else [lane]:
            self.last[blocked] = result

    def close(self, loop: Loop, before: dict[str, int]) -> None:
        """The other iterations of a loop: every lane it used is busy for as long."""
        ends = []
        for lane, result in self.last.items():
            if before.get(lane) != result:
                self.last[lane] = self.add(_Step(loop.end, loop.end, 0.0, result, [], False))
                ends.append((self.last[lane], True))
        (closed,) = self.join(ends, loop.end, 0.0, 1) or [(None, True)]
        if closed[0] is not None:
            self.made[loop.end] = closed[0]


def rows_between(builder: _Builder, begin: int, end: int, carried: dict[int, list[int]]) -> None:
    """Adds the rows from `begin` to before `end`; `carried` has further results that a row waits for."""
    structure = builder.structure
    closing = {loop.end: loop for loop in structure.loops}
    opening: dict[int, list[dict[str, int]]] = {}
    begins = [loop.begin for loop in structure.loops if begin <= loop.begin and loop.end < end]
    for row in range(begin, end):
        opening.setdefault(row, []).extend(dict(builder.last) for b in begins if b == row)
        if row in closing:
            builder.close(closing[row], opening[closing[row].begin].pop())
        else:
            waits = [builder.made[wait] for wait in structure.waits[row] if wait in builder.made]
            builder.row(row, [*waits, *carried.get(row, ())])


@functools.lru_cache(maxsize=256)
def main_plan(structure: Structure, mode: str, outputs: str) -> Plan:
    """The plan of a whole program; it returns the last result of every lane ("ends") or the result of every row ("rows")."""
    builder = _Builder(structure, len(structure.engines), mode)
    rows_between(builder, 0, len(structure.engines), {})
    if outputs == "rows":
        return _allocate(structure, builder.steps, 0, list(builder.made.values()), builder.made, keep=False)
    return _allocate(structure, builder.steps, 0, list(builder.last.values()), builder.made)


@functools.lru_cache(maxsize=256)
def loop_plan(structure: Structure, mode: str, index: int) -> tuple[Plan, tuple[int, ...]]:
    """One iteration of a loop after another one.

    Tokens are where the iteration before left each lane, then each carried value. The plan returns where this one leaves them;
    the second result says for each whether it counts once it has begun to be visible (1: a value) or ended (0: a lane).
    """
    loop = structure.loops[index]
    probe = _Builder(structure, len(structure.engines), mode)
    rows_between(probe, loop.begin, loop.end, {})
    lanes = sorted(probe.last)
    builder = _Builder(structure, len(structure.engines), mode, last={lane: -1 - token for token, lane in enumerate(lanes)})
    carried: dict[int, list[int]] = {}
    values = [(readers, maker) for readers, maker in loop.carried if maker >= 0 and readers]
    for token, (readers, _) in enumerate(values, start=len(lanes)):
        for row in readers:
            carried.setdefault(row, []).append(-1 - token)
    rows_between(builder, loop.begin, loop.end, carried)
    outputs = [builder.last[lane] for lane in lanes] + [builder.made[maker] for _, maker in values]
    return _allocate(structure, builder.steps, len(outputs), outputs, builder.made), (0,) * len(lanes) + (1,) * len(values)


def _allocate(structure: Structure, steps: list[_Step], tokens: int, outputs: list[int], made: dict[int, int], keep: bool = True) -> Plan:
    """Gives every result a slot, from its step to its last reader."""
    last_read = {result: len(steps) for result in outputs}
    for index, step in enumerate(steps):
        for result in [step.previous, *(result for result, _ in step.waits)]:
            if result is not None:
                last_read[result] = max(last_read.get(result, 0), index)
    slot = {-1 - token: 1 + token for token in range(tokens)}
    kept = slot | {index: 1 + tokens + index for index in range(len(steps))}
    size, free = 1 + tokens, []
    expiring: dict[int, list[int]] = {}
    for result, index in last_read.items():
        expiring.setdefault(index, []).append(result)
    for index in range(len(steps)):
        free += [slot[result] for result in expiring.get(index, ()) if result < index]  # a step reads before it writes
        slot[index] = free.pop() if free else size
        size = max(size, slot[index] + 1)
        if last_read.get(index, index) == index:  # nobody reads it
            free.append(slot[index])
    position = positions(structure)
    whole = _plan(position, steps, tokens, outputs, made, kept, 1 + tokens + len(steps), None)
    return whole if not keep else _plan(position, steps, tokens, outputs, made, slot, size, whole)


def _plan(
    position: np.ndarray,
    steps: list[_Step],
    tokens: int,
    outputs: list[int],
    made: dict[int, int],
    slot: dict[int, int],
    slots: int,
    kept: Plan | None,
) -> Plan:
    """Arrays of a list of steps for one allocation of slots."""
    waits, real, full = (np.zeros((len(steps), WAITS), np.int32) for _ in range(3))
    for index, step in enumerate(steps):
        for k in range(WAITS):
            if step.waits:  # padding repeats the first wait, which changes no maximum
                result, whole = step.waits[k if k < len(step.waits) else 0]
                waits[index, k], full[index, k] = slot[result], whole
            real[index, k] = k < len(step.waits)
    writes = [slot[index] for index in range(len(steps))]
    previous = [0 if step.previous is None else slot[step.previous] for step in steps]
    return Plan(
        cost=position[[step.cost for step in steps]],
        scale=position[[step.scale for step in steps]],
        share=np.array([step.share for step in steps]),
        previous=np.array(previous, np.int32),
        ordered=np.array([step.previous is not None for step in steps], np.int32),
        waits=waits,
        real=real,
        full=full,
        in_turn=np.array([step.in_turn for step in steps], np.int32),
        writes=np.array(writes, np.int32),
        held=_held(waits, previous, writes, [slot[result] for result in outputs]),
        slots=slots,
        tokens=tokens,
        outputs=np.array([slot[result] for result in outputs], np.int32),
        row_steps=made,
        kept=kept,
    )


def _held(waits: np.ndarray, previous: list[int], writes: list[int], outputs: list[int]) -> np.ndarray:
    """Going backwards: 1 where a slot already holds an adjoint of the result it is read (or written) for."""
    seen, flags = set(outputs), np.zeros((len(writes), WAITS + 2), np.int32)
    for index in reversed(range(len(writes))):
        flags[index, -1] = writes[index] in seen
        seen.discard(writes[index])
        for position, slot in enumerate([*waits[index], previous[index]]):
            flags[index, position] = slot in seen
            seen.add(slot)
    return flags
