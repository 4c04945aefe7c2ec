"""The critical path and the worth of the fusion passes as text."""

from __future__ import annotations

from trn_jax.report.critical import path_by_engine
from trn_jax.report.report import Report
from trn_jax.report.text import aligned, quantity, share

_ROWS_SHOWN = 10


def explanation_text(report: Report) -> str:
    """What the latency is a sum of, by engine and the longest rows; what each pass bought."""
    path = report.critical_path
    engines = ", ".join(f"{engine} {quantity(seconds, 's')}" for engine, seconds in path_by_engine(path).items())
    lines = [f"critical path of {len(path):,} rows on {report.chip.name}: {engines}"]
    longest = sorted(path, key=lambda row: -row.seconds)[:_ROWS_SHOWN]
    lines += aligned([[share(row.share), quantity(row.seconds, "s"), str(row.row), row.label, row.scope] for row in longest], ">>><<")
    bought = sorted(report.passes.items(), key=lambda item: -item[1])
    lines.append("without a pass the latency would be longer by" if bought else "no passes were applied")
    lines += aligned([[name, quantity(seconds, "s"), share(seconds / report.latency_s)] for name, seconds in bought], "<>>")
    return "\n".join(lines)
