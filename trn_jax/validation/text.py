"""The comparison as text: one line per row, what could not be built with its reason, and the errors by kind."""

from __future__ import annotations

from collections.abc import Sequence

from trn_jax.validation.compare import Compared, Summary, by_kind

SUMMARY_COLUMNS = ("rows", "predicted", "median", "mean", "by group", "p90", "bias", "beat bound", "time >= 0.9 function")


def comparison_text(rows: Sequence[Compared]) -> str:
    """All rows and the summary by kind."""
    built = [row for row in rows if row.error is not None]
    parts = []
    if built:
        width = max(len(row.id) for row in built)
        parts.append(f"{'row':{width}} {'path':9} {'predicted':>10} {'published':>10} {'unit':7} {'error':>7} {'headroom':>8}  group")
        parts += [f"{row.id:{width}} {_line(row)}" for row in built]
    others = [row for row in rows if row.error is None]
    if others:
        parts += ["", "not predicted"]
        parts += [f"{row.id}  {row.reason}" for row in others]
    return "\n".join([*parts, "", *summary_lines(by_kind(rows))])


def _line(row: Compared) -> str:
    marks = [mark for mark, is_set in (("calibration", row.used_for_calibration), ("threshold", row.upper_bound)) if is_set]
    note = f"  ({', '.join(marks)})" if marks else ""
    return f"{row.path:9} {row.predicted:10.4g} {row.published:10.4g} {row.unit:7} {row.error:+7.1%} {row.headroom:8.2f}  {row.group}{note}"


def summary_lines(summaries: dict[str, Summary]) -> list[str]:
    """A table, one line per summary."""
    cells = [("kind", *SUMMARY_COLUMNS), *((name, *summary_cells(found)) for name, found in summaries.items())]
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    return ["  ".join(f"{cell:{width}}" for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells]


def summary_cells(found: Summary) -> tuple[str, ...]:
    """The numbers of a summary as they are printed."""
    shares = (f"{x:.1%}" if x is not None else "-" for x in (found.median, found.mean, found.group_mean, found.p90))
    bias = f"{found.bias:+.1%}" if found.bias is not None else "-"
    not_faster = f"{found.not_faster:.0%}" if found.not_faster is not None else "-"
    return str(found.rows), str(found.predicted), *shares, bias, str(found.beat_bound), not_faster
