"""Predicted against published, row by row and by kind.

error = predicted / published - 1, in the row's own unit;  headroom = published time / time of the plain function
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trn_jax.validation.collectives import collective_s
from trn_jax.validation.figure import KINDS, SECONDS, figure_of, seconds_of
from trn_jax.validation.frozen import frozen_rows
from trn_jax.validation.measurement import Measurement
from trn_jax.validation.predict import Predictor
from trn_jax.validation.sizes import Missing


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One row of the comparison; all but the first two, `published`, `unit` and `reason` are None where it could not be built.

    Attributes:
        id: Of the measurement.
        kind: Of the measurement.
        group: Workload and shapes.
        chip: As published.
        dtype: As published.
        path: "function", "kernel" or "counters".
        predicted: In the row's unit.
        published: In the row's unit.
        unit: Of both.
        error: predicted / published - 1.
        headroom: Published time over that of the plain function.
        function_error: `error` of the plain function, which is what `path` "function" has.
        bound: The datasheet bound in the row's unit.
        beats_bound: Whether the published figure is faster than the bound.
        tuned: Whether it is the fastest published row of its group, dtype and chip.
        upper_bound: Whether the figure is an asserted threshold, no measurement.
        used_for_calibration: Whether a constant of a chip file was read off or fitted to this row.
        reason: Why it is not predicted, "" if it is.
    """

    id: str
    kind: str
    published: float
    unit: str
    chip: str = ""
    dtype: str = ""
    group: str | None = None
    path: str | None = None
    predicted: float | None = None
    error: float | None = None
    headroom: float | None = None
    function_error: float | None = None
    bound: float | None = None
    beats_bound: bool | None = None
    tuned: bool | None = None
    upper_bound: bool = False
    used_for_calibration: bool = False
    reason: str = ""


def compare(rows: Sequence[Measurement], *, step: Callable[[], Any] = lambda: None) -> list[Compared]:
    """Predicts every row of a table.

    Args:
        rows: From `read_measurements`.
        step: Called after each row, for a progress bar.

    Returns:
        One `Compared` per row, in order.
    """
    predictor = Predictor()
    compared = []
    for row in rows:
        compared.append(_compared(row, predictor))
        step()
    return _with_tuned(compared)


def _compared(row: Measurement, predictor: Predictor) -> Compared:
    frozen = frozen_rows().get(row.id)
    same: dict[str, Any] = {
        "id": row.id,
        "kind": row.kind,
        "published": row.value,
        "unit": row.unit,
        "chip": row.chip,
        "dtype": row.text("dtype"),
        "upper_bound": row.is_upper_bound,
        "used_for_calibration": frozen is not None and frozen.sets != "",
    }
    try:
        if row.kind not in KINDS:
            raise Missing(f"a workload of one core: {row.kind} is not what one kernel takes")
        if row.kind == "collective":
            seconds, group, published_s = collective_s(row)
            ratio = seconds / published_s if row.unit in SECONDS else published_s / seconds
            return Compared(
                **same, group=group, path="function", predicted=ratio * row.value, error=ratio - 1, headroom=published_s / seconds
            )
        prediction = predictor.predict(row)
        workload, chip = prediction.workload, predictor.chips[row.preset]
        published_s = seconds_of(row, workload, chip, row.value)
        predicted = figure_of(row, workload, chip, prediction.latency_s)
    except Missing as missing:
        return Compared(**same, reason=f"missing: {missing}")
    return Compared(
        **same,
        group=f"{workload.name} {workload.shape}",
        path=prediction.path,
        predicted=predicted,
        error=predicted / row.value - 1,
        headroom=published_s / prediction.function_s,
        function_error=figure_of(row, workload, chip, prediction.function_s) / row.value - 1,
        bound=figure_of(row, workload, chip, prediction.bound_s),
        beats_bound=published_s < prediction.bound_s,
    )


def _with_tuned(rows: Iterable[Compared]) -> list[Compared]:
    """Marks the fastest measured row of each group, dtype and chip; frozen rows keep what was frozen."""
    rows = list(rows)
    fastest: dict[tuple[Any, ...], Compared] = {}
    for row in rows:
        if row.headroom is not None and not row.upper_bound:
            key = (row.group, row.dtype, row.chip)
            if key not in fastest or row.headroom < fastest[key].headroom:  # type: ignore[operator]
                fastest[key] = row
    best = {row.id for row in fastest.values()}
    frozen = frozen_rows()
    tuned = {row.id: frozen[row.id].tuned if row.id in frozen else row.id in best for row in rows}
    return [replace(row, tuned=tuned[row.id]) if row.headroom is not None else row for row in rows]


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Errors of the rows of one kind, or of any other selection.

    Attributes:
        rows: How many there are.
        predicted: How many of them are predicted.
        median: Of |error|.
        mean: Of |error|.
        group_mean: Mean over groups of the mean |error| of a group.
        p90: Nine tenths of the rows have a smaller |error|.
        bias: Mean error.
        beat_bound: Published figures faster than the datasheet bound; thresholds are not counted.
        not_faster: Share of published times that are at least 0.9 of the plain function's; thresholds are not counted.
    """

    rows: int
    predicted: int
    median: float | None
    mean: float | None
    group_mean: float | None
    p90: float | None
    bias: float | None
    beat_bound: int
    not_faster: float | None


def summarise(rows: Iterable[Compared], error: str = "error") -> Summary:
    """Errors of a selection of rows; `error` is the attribute that is looked at."""
    rows = list(rows)
    found = [row for row in rows if getattr(row, error) is not None and not row.upper_bound]
    errors = [getattr(row, error) for row in found]
    size = sorted(abs(e) for e in errors)
    groups: dict[str | None, list[float]] = {}
    for row, e in zip(found, errors, strict=True):
        groups.setdefault(row.group, []).append(abs(e))
    return Summary(
        rows=len(rows),
        predicted=len(found),
        median=statistics.median(size) if size else None,
        mean=statistics.fmean(size) if size else None,
        group_mean=statistics.fmean(map(statistics.fmean, groups.values())) if size else None,
        p90=size[min(len(size) - 1, int(0.9 * len(size)))] if size else None,
        bias=statistics.fmean(errors) if size else None,
        beat_bound=sum(bool(row.beats_bound) for row in found),
        not_faster=statistics.fmean(row.headroom >= 0.9 for row in found if row.headroom is not None) if size else None,
    )


def by_kind(rows: Sequence[Compared]) -> dict[str, Summary]:
    """A summary for each kind, in alphabetical order."""
    return {kind: summarise(row for row in rows if row.kind == kind) for kind in sorted({row.kind for row in rows})}
