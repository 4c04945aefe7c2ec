"""The result of a search: the chip, what it wins, and how the search went."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from trn_jax.chips.schema import Chip
from trn_jax.report.text import aligned, quantity, times
from trn_jax.units import format_quantity, unit_of


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class Tuned:
    """A chip found by `trn_jax.tune`.

    Attributes:
        chip: The best one: all values can be built, and times are exact.
        latencies_s: Seconds of each program on it, by name (by number for a list; {0: ...} for a single program).
        objective: What was made small.
        free: Dotted path to the value found.
        ranges: Dotted path to (low, high).
        start_chip: The given chip.
        start_latencies_s: Seconds of each program on that one.
        start_objective: Its objective.
        history: [steps, starts] relaxed objective of every starting point before every step.
    """

    chip: Chip
    latencies_s: Mapping[Any, float]
    objective: float
    free: Mapping[str, float]
    ranges: Mapping[str, tuple[float, float]]
    start_chip: Chip
    start_latencies_s: Mapping[Any, float]
    start_objective: float
    history: np.ndarray

    @property
    def latency_s(self) -> float:
        """Exact seconds on the chip found; the geometric mean of several programs."""
        return _geometric_mean(self.latencies_s)

    @property
    def start_latency_s(self) -> float:
        """Exact seconds on the given chip; the geometric mean of several programs."""
        return _geometric_mean(self.start_latencies_s)

    @property
    def speedup(self) -> float:
        """start_latency_s / latency_s."""
        return self.start_latency_s / self.latency_s

    def to_table(self) -> str:
        """The free values before and after, and what that wins."""
        rows = [["", "given", "found", "range"]]
        for path, value in self.free.items():
            unit = unit_of(path)
            low, high = (quantity(end, unit) for end in self.ranges[path])
            rows.append([path, format_quantity(float(self.start_chip.get(path)), unit), format_quantity(value, unit), f"{low} to {high}"])
        latencies = f"{quantity(self.start_latency_s, 's')} -> {quantity(self.latency_s, 's')}, {times(self.speedup)} as fast"
        objective = f"objective {self.start_objective:.6g} -> {self.objective:.6g}"
        return "\n".join([f"{latencies} ({objective})", *aligned(rows, "<>>>")])

    def __repr__(self) -> str:
        return self.to_table()


def _geometric_mean(latencies_s: Mapping[Any, float]) -> float:
    return math.exp(sum(math.log(time_s) for time_s in latencies_s.values()) / len(latencies_s))
