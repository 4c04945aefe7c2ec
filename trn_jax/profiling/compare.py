"""Reports of one workload on two chips, side by side."""

from __future__ import annotations

from trn_jax.report.report import Report
from trn_jax.report.text import aligned, quantity, share

_ROWS = (
    ("latency", "latency_s", "s"),
    ("engines side by side", "concurrent_s", "s"),
    ("one after the other", "serial_s", "s"),
    ("at the very least", "bound_s", "s"),
    ("MFU", "mfu", "%"),
    ("MBU", "mbu", "%"),
    ("HBM traffic", "hbm_bytes", "B"),
    ("spilled and loaded again", "spilled_bytes", "B"),
    ("energy", "energy_j", "J"),
)


def comparison_text(first: Report, second: Report) -> str:
    """Figures of both, with the second over the first; then the busy time of every engine, and what limits each."""
    rows = [["", first.chip.name, second.chip.name, "ratio"]]
    for label, name, unit in _ROWS:
        rows.append([label, *_cells(getattr(first, name), getattr(second, name), unit)])
    for engine in first.engines:
        busy = [report.engines[engine].busy_s for report in (first, second)]
        if any(busy):
            rows.append([f"{engine} busy", *_cells(busy[0], busy[1], "s")])
    limits = [f"{report.chip.name}: limited by {report.bottleneck_text}" for report in (first, second)]
    return "\n".join([*aligned(rows, "<>>>", indent=""), *limits])


def _cells(first: float, second: float, unit: str) -> list[str]:
    shown = [share(value) if unit == "%" else quantity(value, unit) for value in (first, second)]
    return [*shown, f"{second / first:.3g}" if first else ""]
