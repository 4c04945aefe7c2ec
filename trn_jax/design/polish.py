"""The exact end of a search: candidates that can be built, timed without relaxation, and the best one improved value by value."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import numpy as np

from trn_jax.design.buildable import rounded, step_of
from trn_jax.design.objective import Objective, objectives
from trn_jax.errors import ProgramError
from trn_jax.timing.exact import precision
from trn_jax.timing.latency import latency
from trn_jax.timing.limits import slack_bytes
from trn_jax.timing.program import Program

LOT = 64  # chips timed at once
ROUNDS = 2  # over all free values
WHOLE_RANGE = 512  # counts with at most so many values in their range are tried one by one
GRID = 48  # values tried of everything else
MOST_CORNERS = 6  # dimensions up to which every corner of the ranges is a candidate
TIE = 1e-9  # relative difference that counts as none: then the value of the given chip stays


class Point(NamedTuple):
    """A chip that can be built, with its exact objective and latencies by program."""

    chip: Any
    values: np.ndarray
    objective: float
    latencies_s: dict[Any, float]


class Exact:
    """Exact objectives of candidates inside ranges."""

    def __init__(self, goal: Objective, programs: tuple[Program, ...], chip: Any, paths: tuple[str, ...], low: Any, high: Any):
        self.goal, self.programs, self.chip, self.paths, self.low, self.high = goal, programs, chip, paths, low, high
        self.given = np.array([float(chip.get(path)) for path in paths])

    def start(self) -> Point:
        """The given chip as it is; raises ProgramError if its objective is no finite number."""
        found, times_s = self.evaluate(self.given[None], check_limits=False)
        point = self.point(self.given, found[0], times_s[:, 0])
        if not np.isfinite(point.objective):
            raise ProgramError(f"tune: the objective of the given chip is {point.objective}; it has to be a finite number there.")
        return point

    def point(self, values: np.ndarray, objective: float, times_s: np.ndarray) -> Point:
        """A candidate with what is known of it."""
        chip = self.chip.replace({path: float(value) for path, value in zip(self.paths, values, strict=True)})
        return Point(chip, values, float(objective), dict(zip(self.goal.names, map(float, times_s), strict=True)))

    def build(self, values: np.ndarray) -> np.ndarray:
        """The nearest values that can be built, [candidates, paths]."""
        ends = zip(self.paths, values.T, self.low, self.high, strict=True)
        return np.stack([rounded(path, column, low, high) for path, column, low, high in ends], axis=-1)

    def is_inside(self, values: np.ndarray) -> bool:
        """Whether values are inside the ranges and can be built."""
        return bool(np.all((values >= self.low) & (values <= self.high)) and np.array_equal(self.build(values[None])[0], values))

    def evaluate(self, values: np.ndarray, check_limits: bool = True) -> tuple[np.ndarray, np.ndarray]:
        """Objective [candidates], infinite where programs do not fit or it is not finite, and latencies [programs, candidates]."""
        found, times_s = [], []
        for begin in range(0, len(values), LOT):
            lot = values[begin : begin + LOT]
            padded = np.concatenate([lot, np.repeat(lot[-1:], LOT - len(lot), axis=0)])
            chips = self.chip.replace({path: padded[:, i] for i, path in enumerate(self.paths)})
            with precision("float64"):
                timed = [latency(program, chips, overlap=self.goal.overlap) for program in self.programs]
                objective, times = np.asarray(objectives(self.goal, chips, timed)), np.stack(timed)
            if check_limits:
                rooms = [room for program in self.programs for room in slack_bytes(program, chips).values()]
                objective = np.where(np.all([np.broadcast_to(room, LOT) >= 0 for room in rooms], axis=0), objective, np.inf)
                objective = np.where(np.isfinite(objective), objective, np.inf)
            found.append(objective[: len(lot)])
            times_s.append(times[:, : len(lot)])
        return np.concatenate(found), np.concatenate(times_s, axis=1)


def polished(exact: Exact, u: np.ndarray, start: Point) -> Point:
    """The best chip found.

    Args:
        exact: Evaluates candidates.
        u: [starts, paths] end points of the descent, in [0, 1].
        start: The given chip, a candidate if it is inside the ranges and can be built.

    Raises:
        ProgramError: No candidate can run the programs.
    """
    dimensions = len(exact.paths)
    corners = itertools.product((0.0, 1.0), repeat=dimensions) if dimensions <= MOST_CORNERS else [(0.0,) * dimensions, (1.0,) * dimensions]
    u = np.concatenate([u, np.array(list(corners))])
    candidates = exact.build(exact.low * (exact.high / exact.low) ** u)
    if exact.is_inside(exact.given):
        candidates = np.concatenate([exact.given[None], candidates])
    best = _best(exact, candidates)
    for _ in range(ROUNDS):
        before = best.objective
        for index in range(dimensions):
            best = _improved(exact, best, index)
        if not best.objective < before:
            break
    return best


def _best(exact: Exact, candidates: np.ndarray) -> Point:
    found, times_s = exact.evaluate(candidates)
    index = int(np.argmin(found))
    if not np.isfinite(found[index]):
        raise ProgramError(
            "tune: no chip in these ranges can run the programs; their tiles or arrays do not fit into SBUF, PSUM or HBM, or the objective "
            "is not finite. Widen the ranges of the memory sizes."
        )
    return exact.point(candidates[index], found[index], times_s[:, index])


def _improved(exact: Exact, best: Point, index: int) -> Point:
    """The best chip with one value changed; the given chip's own value if that is as good."""
    path, low, high = exact.paths[index], exact.low[index], exact.high[index]
    step = step_of(path)
    if step is not None and (high - low) / step <= WHOLE_RANGE:
        tried = np.arange(low, high + step, step)
    else:
        powers = 2.0 ** np.arange(np.ceil(np.log2(low)), np.log2(high) + 1e-9)
        tried = np.concatenate([np.geomspace(low, high, GRID), powers, best.values[index] * (1 + np.linspace(-0.02, 0.02, 9))])
    own = exact.given[index]
    tried = np.unique(rounded(path, np.append(tried, own), low, high))
    candidates = np.repeat(best.values[None], len(tried), axis=0)
    candidates[:, index] = tried
    found, times_s = exact.evaluate(candidates)
    least = min(float(found.min()), best.objective)
    good = np.flatnonzero(found <= least + TIE * abs(least))
    if not len(good):
        return best
    chosen = int(good[np.argmin(np.abs(np.log(tried[good] / own)))])
    return exact.point(candidates[chosen], found[chosen], times_s[:, chosen])
