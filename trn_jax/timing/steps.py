"""Steps: the rows of a Program as the schedule's recurrence takes them, one after the other, in one of three modes.

    concurrent           every engine is a lane of its own
    collectives_alone    a collective starts when everything before it has ended, and nothing starts before it has ended
    engines_in_turn      all engines are one lane, without any overlap; collectives are another

More waits than a step can take, and the other iterations of a loop, become steps of their own:

    many waits      join, join, ..., row                        a join takes no time and occupies no lane
    closing row     one step per lane of the body, that lane busy for the other iterations; then a join of them
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from trn_jax.timing.program import Loop, Structure

WAITS = 2  # waits of one step
MODES = ("concurrent", "collectives_alone", "engines_in_turn")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step; results are numbered as their steps, tokens of a loop -1, -2, ...

    Attributes:
        cost: Row whose time it takes.
        scale: Row whose occupancy sets the width of its soft maxima, and which needs what is waited for.
        share: Part of that width, so that all maxima made for one row together stay within it.
        previous: Result before it on the same lane; None at the origin of time.
        waits: Results it reads, at most WAITS.
        full: Whether it needs the whole of them in any case.
        interleaved: Whether it shares a loop over tiles with the row before on its lane, so that the two take turns tile by tile.
        in_turn: Whether it may not even start before the one before has ended.
    """

    cost: int
    scale: int
    share: float = 0.0
    previous: int | None = None
    waits: tuple[int, ...] = ()
    full: bool = False
    interleaved: bool = False
    in_turn: bool = False


@dataclass(slots=True)
class Builder:
    """Turns rows into steps."""

    structure: Structure
    mode: str
    steps: list[Step] = field(default_factory=list)
    last: dict[str, int] = field(default_factory=dict)  # lane -> result that ends last on it
    made: dict[int, int] = field(default_factory=dict)  # row -> result
    group: dict[str, int] = field(default_factory=dict)  # lane -> group of the row that ends last on it

    def rows(self, begin: int, end: int, carried: dict[int, list[int]]) -> None:
        """Adds the rows from `begin` to before `end`; `carried` has further results that a row waits for."""
        structure = self.structure
        closing = {loop.end: loop for loop in structure.loops if begin <= loop.begin and loop.end < end}
        before: dict[int, dict[str, int]] = {}
        for row in range(begin, end):
            before |= {loop.end: dict(self.last) for loop in closing.values() if loop.begin == row}
            if row in closing:
                self._close(closing[row], before[row])
            else:
                waits = [self.made[wait] for wait in structure.waits[row] if wait in self.made]
                self._row(row, [*waits, *carried.get(row, ())])

    def _lane(self, row: int) -> str:
        issued = self.structure.issued
        engine = self.structure.engines[row] if issued is None else issued.lanes[row]
        return "engines" if self.mode == "engines_in_turn" and engine != "collective" else engine

    def _lanes(self) -> list[str]:
        return sorted({self._lane(row) for row, engine in enumerate(self.structure.engines) if engine != "loop"})

    def _add(self, step: Step) -> int:
        self.steps.append(step)
        return len(self.steps) - 1

    def _join(self, results: Sequence[int], scale: int, share: float, full: bool, at_most: int) -> tuple[int, ...]:
        """Joins results until no more than `at_most` are left."""
        results, zero = list(results), len(self.structure.engines)
        while len(results) > at_most:
            joined = Step(cost=zero, scale=scale, share=share, waits=tuple(results[:WAITS]), full=full)
            results = [*results[WAITS:], self._add(joined)]
        return tuple(results)

    def _row(self, row: int, waits: Sequence[int]) -> None:
        lane = self._lane(row)
        alone = self.mode == "collectives_alone" and lane == "collective"
        results = list(dict.fromkeys(self.last.values() if alone else waits))
        group = self.structure.groups[row] if self.structure.groups and lane != "engines" else -1
        interleaved = group >= 0 and self.group.get(lane, -1) == group
        share = 1.0 / (1 + interleaved + len(results))
        full = alone or self.structure.issued is not None
        results = self._join(results, row, share, full, WAITS)
        previous = None if alone else self.last.get(lane)
        in_turn = lane == "engines"
        step = Step(cost=row, scale=row, share=share, previous=previous, waits=results, full=full, interleaved=interleaved, in_turn=in_turn)
        self.made[row] = self._add(step)
        for blocked in self._lanes() if alone else [lane]:
            self.last[blocked] = self.made[row]
            self.group[blocked] = group

    def _close(self, loop: Loop, before: dict[str, int]) -> None:
        """The other iterations of a loop: every lane it used is busy for as long."""
        used = [lane for lane, result in self.last.items() if before.get(lane) != result]
        for lane in used:
            self.group.pop(lane, None)
            self.last[lane] = self._add(Step(cost=loop.end, scale=loop.end, previous=self.last[lane]))
        if used:
            (self.made[loop.end],) = self._join([self.last[lane] for lane in used], loop.end, 0.0, True, 1)
