"""A Report as plain numbers and texts, for `json.dumps` and tables of many reports."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trn_jax.report.report import Report

_NUMBERS = (
    "latency_s",
    "bound_s",
    "serial_s",
    "concurrent_s",
    "warmup_s",
    "idle_s",
    "flops",
    "mfu",
    "hfu",
    "mfu_chip",
    "mbu",
    "arithmetic_intensity_flop_per_byte",
    "hbm_bytes",
    "hbm_bytes_compulsory",
    "spilled_bytes",
    "energy_j",
)


def report_record(report: Report, explain: bool = False) -> dict[str, Any]:
    """The dict of `Report.to_dict`."""
    held = report.footprint
    record: dict[str, Any] = {"chip": report.chip.name, "overlap": report.overlap}
    record |= {name: getattr(report, name) for name in _NUMBERS}
    record |= {
        "energy_low_j": report.energy_range_j[0],
        "energy_high_j": report.energy_range_j[1],
        "energy_by_engine_j": dict(report.energy_by_engine_j),
        "hbm_traffic_bytes": dict(report.hbm_traffic),
        "engines": {name: dataclasses.asdict(engine) for name, engine in report.engines.items()},
        "bottleneck": report.bottleneck,
        "bottleneck_text": report.bottleneck_text,
        "without_s": dict(report.without_s),
        "feasible": report.feasible,
        "slack_bytes": dict(report.slack_bytes),
        "footprint": {
            "arguments_bytes": dict(held.arguments),
            "results_bytes": held.results_bytes,
            "temporaries_bytes": dict(held.temporaries),
            "total_bytes": held.total_bytes,
        },
        "instructions": sum(engine != "loop" for engine in report.program.structure.engines),
        "top": [dataclasses.asdict(operation) for operation in report.top],
    }
    if explain:
        record["critical_path"] = [dataclasses.asdict(row) for row in report.critical_path]
        record["passes_s"] = report.passes
    return record
