"""A schedule as slices: what each engine does from when to when, for traces and pictures.

A loop is drawn as its first iteration, and one slice per engine for all the others:

    tensor  |row 2|row 2 ... 23 more iterations|        as long as the engine is busy in them, not as the loop lasts
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from trn_jax.graph.instruction import ENGINES
from trn_jax.timing.program import Program
from trn_jax.timing.schedule import Schedule


class Slice(NamedTuple):
    """One piece of an engine's time.

    Attributes:
        engine: One of `ENGINES`.
        row: Row of the program; the closing row for the other iterations of a loop.
        name: The row's label, or how many iterations this stands for.
        kind: The instruction's kind; "loop" for iterations.
        begin_s: Start in seconds.
        duration_s: How long the engine is busy; never 0.
        iterations: Iterations it stands for: 1, or those of the loop after its first.
        interval_s: Seconds from one of these iterations to the next; 0 where there is only one.
        queue: Which of several DMA queues it is on, of a kernel; else the engine.
    """

    engine: str
    row: int
    name: str
    kind: str
    begin_s: float
    duration_s: float
    iterations: float = 1.0
    interval_s: float = 0.0
    queue: str = ""

    @property
    def track(self) -> str:
        """What does one thing at a time: the engine, or one of its queues."""
        return self.queue or self.engine

    @property
    def end_s(self) -> float:
        """When the engine is free again, in seconds."""
        return self.begin_s + self.duration_s


class Wait(NamedTuple):
    """Time a track spends waiting before a row, and the row that kept it longest (-1: none; its own start-up)."""

    track: str
    row: int
    cause: int
    begin_s: float
    duration_s: float


def engine_slices(program: Program, schedule: Schedule) -> list[Slice]:
    """All slices in the order of the program; those of one track never overlap, those of one engine add up to its busy time.

    Args:
        program: One program, no batch.
        schedule: Its schedule on one chip, as NumPy float64 arrays.

    Returns:
        Slices of every row that takes time. Rows that move nothing, because SBUF still holds the data, have none.
    """
    structure, trips = program.structure, np.asarray(program.table["trips"])
    loops = {loop.end: (index, loop) for index, loop in enumerate(structure.loops)}
    busy_s = np.array(schedule.occupancy_s)  # of one iteration of the innermost loop; closing rows get what they stand for
    tracks = structure.engines if structure.issued is None else structure.issued.lanes
    engine_of = {track: engine for track, engine in zip(tracks, structure.engines, strict=True) if engine in ENGINES}
    order = sorted(engine_of, key=lambda track: (ENGINES.index(engine_of[track]), track))
    free_s: dict[str, float] = {track: 0.0 for track in order}
    inside = {name: np.array([track == name for track in tracks]) & (np.array(structure.engines) != "loop") for name in order}
    repeats = np.ones(len(program))
    slices: list[Slice] = []

    def add(item: Slice) -> None:
        if item.duration_s > 0:
            slices.append(item)
            free_s[item.track] = item.end_s

    for row, (engine, kind, info) in enumerate(zip(structure.engines, structure.kinds, structure.rows, strict=True)):
        if row not in loops:
            queue = "" if tracks[row] == engine else tracks[row]
            add(Slice(engine, row, info.label, kind, float(schedule.start_s[row]), float(busy_s[row]), queue=queue))
            continue
        index, loop = loops[row]
        others = max(float(trips[row]) - 1.0, 0.0)
        body = slice(loop.begin, row)
        for name in order:
            once_s = float((busy_s * repeats)[body][inside[name][body]].sum())
            text = f"{others:g} more iterations of the loop at row {loop.begin}"
            queue, interval_s = "" if name == engine_of[name] else name, float(schedule.intervals_s[index])
            add(Slice(engine_of[name], row, text, "loop", free_s[name], others * once_s, others, interval_s, queue))
        repeats[body] *= others + 1.0
    return slices


def idle_s(slices: Sequence[Slice], total_s: float) -> float:
    """Seconds in which no engine is busy: fixed latencies and round trips that nothing hides."""
    covered_s = end_s = 0.0
    for item in sorted(slices, key=lambda item: item.begin_s):
        covered_s += max(0.0, item.end_s - max(item.begin_s, end_s))
        end_s = max(end_s, item.end_s)
    return max(0.0, total_s - covered_s)


def waits(program: Program, slices: list[Slice], schedule: Schedule) -> list[Wait]:
    """The gaps between the slices of each track, up to its last one."""
    free_s: dict[str, float] = {item.track: 0.0 for item in slices}
    found: list[Wait] = []
    for item in slices:
        gap_s = item.begin_s - free_s[item.track]
        if gap_s > 1e-9 * schedule.total_s:  # less is rounding
            causes = program.structure.rows[item.row].waits if item.kind != "loop" else ()
            cause = max(causes, key=lambda row: schedule.end_s[row], default=-1)
            found.append(Wait(item.track, item.row, cause, free_s[item.track], gap_s))
        free_s[item.track] = item.end_s
    return found
