"""A Plan: steps as static arrays, with every result in a numbered slot.

A step reads the end of the row before it on its lane and what its waits left in their slots, and writes one slot. Slots are
allocated like registers, so that what a scan carries is as large as what is alive at once, not as long as the program.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from trn_jax.timing.cost import positions
from trn_jax.timing.program import Structure
from trn_jax.timing.steps import WAITS, Builder, Step

END, VISIBLE = 0, 1  # the two numbers in a slot


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Plan:
    """Static arrays of one scan, one entry per step; compared by identity, as each is made once per Structure.

    Attributes:
        cost: Position in the cost table of the seconds that count.
        scale: Position of the occupancy that sets the width of the soft maxima.
        share: Part of that width.
        previous: Slot of the result before it on the same lane.
        ordered: 1 where there is one.
        waits: [steps, WAITS] slots.
        real: [steps, WAITS] 1 for a wait, 0 for padding.
        full: 1 to wait for whole results whatever the table says.
        interleaved: 1 where it takes turns, tile by tile, with the one before.
        in_turn: 1 where an instruction may not even start before the one before has ended.
        writes: Slot.
        held: [steps, WAITS + 2] going backwards: 1 where the slot of a wait, of `previous` or of `writes` holds an adjoint.
        slots: How many there are. Slot 0 is the origin of time and is never written.
        marks: Of a loop: (slot, number in it, token) that are 0 as seen from a token, while everything else never was.
        outputs: Slots to return.
        rows: Rows of the program in the order of `outputs`, if it returns those.
        kept: The same plan with a slot of its own for every step; None if this is one.
    """

    cost: np.ndarray
    scale: np.ndarray
    share: np.ndarray
    previous: np.ndarray
    ordered: np.ndarray
    waits: np.ndarray
    real: np.ndarray
    full: np.ndarray
    interleaved: np.ndarray
    in_turn: np.ndarray
    writes: np.ndarray
    held: np.ndarray
    slots: int
    marks: tuple[tuple[int, int, int], ...]
    outputs: np.ndarray
    rows: tuple[int, ...]
    kept: Plan | None

    def __len__(self) -> int:
        """Number of steps."""
        return len(self.cost)

    @property
    def tokens(self) -> int:
        """Tokens from which time is seen; 1, the origin, outside loops."""
        return 1 + max((token for _, _, token in self.marks), default=0)


@functools.lru_cache(maxsize=256)
def main_plan(structure: Structure, mode: str, outputs: str) -> Plan:
    """The plan of a whole program; it returns the last result of every lane ("ends") or the result of every row ("rows")."""
    builder = Builder(structure, mode)
    builder.rows(0, len(structure.engines), {})
    if outputs == "ends":
        return _allocate(structure, builder.steps, list(builder.last.values()))
    return _allocate(structure, builder.steps, list(builder.made.values()), rows=tuple(builder.made))


@functools.lru_cache(maxsize=256)
def loop_plan(structure: Structure, mode: str, index: int) -> tuple[Plan, tuple[tuple[int, int], ...]]:
    """One iteration of a loop after another one.

    Tokens are where the iteration before left each lane, and the first piece and the end of each carried value.

    Returns:
        The plan, and for each token where this iteration leaves it: (output of the plan, number in it).
    """
    loop = structure.loops[index]
    probe = Builder(structure, mode)
    probe.rows(loop.begin, loop.end, {})
    lanes = sorted(probe.last)
    values = [(readers, maker) for readers, maker in loop.carried if readers and maker in probe.made]
    marks = [(1 + lane, number, lane) for lane in range(len(lanes)) for number in (END, VISIBLE)]
    left = [(lane, END) for lane in range(len(lanes))]
    carried: dict[int, list[int]] = {}
    for value, (readers, _) in enumerate(values, start=len(lanes)):
        for number in (END, VISIBLE):
            marks.append((1 + value, number, len(left)))
            left.append((value, number))
        for row in readers:
            carried.setdefault(row, []).append(-1 - value)
    builder = Builder(structure, mode, last={lane: -1 - token for token, lane in enumerate(lanes)})
    builder.rows(loop.begin, loop.end, carried)
    outputs = [builder.last[lane] for lane in lanes] + [builder.made[maker] for _, maker in values]
    return _allocate(structure, builder.steps, outputs, marks=tuple(marks)), tuple(left)


def _allocate(
    structure: Structure, steps: list[Step], outputs: list[int], marks: tuple[tuple[int, int, int], ...] = (), rows: tuple[int, ...] = ()
) -> Plan:
    """Gives every result a slot, from its step to its last reader."""
    last_read = {result: len(steps) for result in outputs}
    for index, step in enumerate(steps):
        for result in (step.previous, *step.waits):
            if result is not None:
                last_read[result] = max(last_read.get(result, 0), index)
    expiring: dict[int, list[int]] = {}
    for result, index in last_read.items():
        expiring.setdefault(index, []).append(result)
    first = 1 + len({slot for slot, _, _ in marks})
    slot = {-slot: slot for slot in range(1, first)}
    kept = slot | {index: first + index for index in range(len(steps))}
    size, free = first, []
    for index in range(len(steps)):
        free += [slot[result] for result in expiring.get(index, ()) if result < index]  # a step reads before it writes
        slot[index] = free.pop() if free else size
        size = max(size, slot[index] + 1)
        if last_read.get(index, index) == index:  # nobody reads it
            free.append(slot[index])
    whole = _arrays(structure, steps, outputs, marks, rows, kept, first + len(steps), None)
    return whole if rows else _arrays(structure, steps, outputs, marks, rows, slot, size, whole)


def _arrays(
    structure: Structure,
    steps: list[Step],
    outputs: list[int],
    marks: tuple[tuple[int, int, int], ...],
    rows: tuple[int, ...],
    slot: dict[int, int],
    slots: int,
    kept: Plan | None,
) -> Plan:
    """A plan for one allocation of slots."""
    position = positions(structure)
    waits = np.zeros((len(steps), WAITS), np.int32)
    for index, step in enumerate(steps):
        if step.waits:  # padding repeats the first wait, which changes no maximum
            waits[index] = [slot[step.waits[k] if k < len(step.waits) else step.waits[0]] for k in range(WAITS)]
    previous = _integers(0 if step.previous is None else slot[step.previous] for step in steps)
    writes = _integers(slot[index] for index in range(len(steps)))
    returned = _integers(slot[result] for result in outputs)
    return Plan(
        cost=position[_integers(step.cost for step in steps)],
        scale=position[_integers(step.scale for step in steps)],
        share=np.array([step.share for step in steps], np.float32),
        previous=previous,
        ordered=_integers(step.previous is not None for step in steps),
        waits=waits,
        real=np.array([[k < len(step.waits) for k in range(WAITS)] for step in steps], np.int32).reshape(-1, WAITS),
        full=_integers(step.full for step in steps),
        interleaved=_integers(step.interleaved for step in steps),
        in_turn=_integers(step.in_turn for step in steps),
        writes=writes,
        held=_held(waits, previous, writes, returned),
        slots=slots,
        marks=marks,
        outputs=returned,
        rows=rows,
        kept=kept,
    )


def _integers(values: Iterable[int]) -> np.ndarray:
    return np.fromiter(values, np.int32)


def _held(waits: np.ndarray, previous: np.ndarray, writes: np.ndarray, outputs: np.ndarray) -> np.ndarray:
    """Going backwards: 1 where a slot already holds an adjoint of the result it is read (or written) for."""
    seen, flags = set(outputs.tolist()), np.zeros((len(writes), WAITS + 2), np.int32)
    for index in reversed(range(len(writes))):
        flags[index, -1] = writes[index] in seen
        seen.discard(writes[index])
        for k, slot in enumerate([*waits[index], previous[index]]):
            flags[index, k] = slot in seen
            seen.add(slot)
    return flags
