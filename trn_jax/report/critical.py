"""The critical path: the rows whose time makes up the latency, with the seconds each contributes; they sum to the latency.

    latency = sum over rows of  d latency / d seconds of the row  x  seconds of the row

A latency is made of maxima and sums of its rows' seconds, so this is exact; a row that something else hides has derivative 0. With an
overlap between 0 and 1 the latency is a mean of schedules, and a row counts as much as the schedules it is critical in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from trn_jax.timing.exact import precision
from trn_jax.timing.program import Program
from trn_jax.timing.schedule import critical, evaluate

_ROUNDING = 1e-12  # of the latency; less is not on the path


@dataclass(frozen=True, slots=True, kw_only=True)
class PathRow:
    """One row of the critical path.

    Attributes:
        row: Its number in the program.
        engine: Where it runs.
        label: Instruction and JAX operations.
        source: User's line.
        scope: jax.named_scope path.
        seconds: What it contributes to the latency, all iterations of loops counted; occupancy and latency that nothing hides.
        share: Of the latency.
    """

    row: int
    engine: str
    label: str
    source: str
    scope: str
    seconds: float
    share: float


def critical_path(program: Program, chip: Any, overlap: Any) -> tuple[PathRow, ...]:
    """The rows on the critical path in the order of the program; see `Report.critical_path`."""
    with precision("float64"):
        seconds = np.asarray(evaluate(critical, program, chip, 0.0, overlap, "float64"))
    latency_s = float(seconds.sum())
    return tuple(
        PathRow(
            row=row,
            engine=program.structure.engines[row],
            label=info.label,
            source=info.source,
            scope=info.scope,
            seconds=float(seconds[row]),
            share=float(seconds[row]) / latency_s,
        )
        for row, info in enumerate(program.structure.rows)
        if seconds[row] > _ROUNDING * latency_s
    )


def path_by_engine(path: tuple[PathRow, ...]) -> dict[str, float]:
    """Seconds of a critical path by engine, longest first."""
    seconds: dict[str, float] = {}
    for item in path:
        seconds[item.engine] = seconds.get(item.engine, 0.0) + item.seconds
    return dict(sorted(seconds.items(), key=lambda item: -item[1]))
