"""The schedule as a trace file in Chrome's JSON format, for https://ui.perfetto.dev.

track  program             one slice from 0 to the latency
track  <engine>            what it does; slices never overlap and add up to its busy time
track  <engine> waiting    the gaps in between, and for what
track  loops               each loop from its first row to its last iteration
counter                    HBM bandwidth, Tensor Engine utilisation
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trn_jax.graph.instruction import ENGINES, WORK_FIELDS
from trn_jax.report.slices import Slice, Wait, engine_slices, waits

if TYPE_CHECKING:
    from trn_jax.report.report import Report

_US = 1e6  # trace files count microseconds
_TRACKS = ("program", *ENGINES, "loops", *(f"{engine} waiting" for engine in ENGINES))
_TID = {name: number for number, name in enumerate(_TRACKS, start=1)}
_PID = 1


def save_trace(report: Report, path: str | os.PathLike[str]) -> Path:
    """Writes the report's schedule as Chrome trace JSON.

    Args:
        report: From `trn_jax.estimate`.
        path: File to write, by habit `.json`.

    Returns:
        The path. Times in the file are microseconds, as the format demands; `args` of a slice hold its source line, scope and sizes.
    """
    path = Path(path)
    document = {"traceEvents": trace_events(report), "displayTimeUnit": "ns", "otherData": {"chip": report.chip.name}}
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def trace_events(report: Report) -> list[dict[str, Any]]:
    """The events of the trace, metadata first."""
    slices = engine_slices(report.program, report.schedule)
    gaps = waits(report.program, slices, report.schedule)
    name = f"{report.program!r} on {report.chip.name}"
    events = [_slice("program", name, "program", 0.0, report.latency_s, {"latency_s": report.latency_s, "overlap": repr(report.overlap)})]
    events += _engine_events(report, slices)
    events += [
        _slice(f"{gap.engine} waiting", _wait_name(report, gap), "wait", gap.begin_s, gap.duration_s, {"row": gap.row}) for gap in gaps
    ]
    events += _loops(report)
    used = {event["tid"] for event in events}
    events += _counters(report, slices)
    return [*_names(used), *events]


def _slice(track: str, name: str, kind: str, begin_s: float, duration_s: float, args: dict[str, Any]) -> dict[str, Any]:
    where = {"ph": "X", "pid": _PID, "tid": _TID[track], "ts": begin_s * _US, "dur": duration_s * _US}
    return {"name": name, "cat": kind, **where, "args": args}


def _engine_events(report: Report, slices: list[Slice]) -> Iterator[dict[str, Any]]:
    """Slices of the engines; one never begins before the one before has ended, not even by a rounding error."""
    free_us: dict[str, float] = {engine: 0.0 for engine in ENGINES}
    for item in slices:
        event = _slice(item.engine, item.name, item.kind, item.begin_s, item.duration_s, _args(report, item))
        event["ts"] = max(event["ts"], free_us[item.engine])
        free_us[item.engine] = event["ts"] + event["dur"]
        yield event


def _names(used: set[int]) -> Iterator[dict[str, Any]]:
    yield {"name": "process_name", "ph": "M", "pid": _PID, "args": {"name": "NeuronCore"}}
    for track, tid in _TID.items():
        if tid in used:
            yield {"name": "thread_name", "ph": "M", "pid": _PID, "tid": tid, "args": {"name": track}}
            yield {"name": "thread_sort_index", "ph": "M", "pid": _PID, "tid": tid, "args": {"sort_index": tid}}


def _args(report: Report, item: Slice) -> dict[str, Any]:
    """What a click on a slice shows."""
    row = report.program.structure.rows[item.row]
    args: dict[str, Any] = {"row": item.row, "kind": item.kind, "source": row.source, "scope": row.scope}
    if row.instruction is None:
        return args | {"iterations": item.iterations, "interval_s": item.interval_s}
    if row.instruction.function:
        args["function"] = row.instruction.function
    args |= {name: value for name in WORK_FIELDS if (value := float(report.program.table[name][item.row]))}
    if item.engine == "dma":
        args["moved_bytes"] = float(report.moved_bytes[item.row])
    return args


def _wait_name(report: Report, gap: Wait) -> str:
    return f"waits for {report.program.structure.rows[gap.cause].label}" if gap.cause >= 0 else "waits"


def _loops(report: Report) -> Iterator[dict[str, Any]]:
    for index, loop in enumerate(report.program.structure.loops):
        rows = slice(loop.begin, loop.end + 1)
        begin_s = float(np.min(report.schedule.start_s[rows]))
        info = report.program.structure.rows[loop.end]
        args = {"row": loop.end, "source": info.source, "scope": info.scope, "interval_s": float(report.schedule.intervals_s[index])}
        yield _slice("loops", info.label, "loop", begin_s, float(report.schedule.end_s[loop.end]) - begin_s, args)


def _counters(report: Report, slices: list[Slice]) -> Iterator[dict[str, Any]]:
    """HBM bandwidth while DMA moves, and the share of the array's peak while it multiplies; 0 in between.

    A slice of several iterations has the mean over the loop's rows.
    """
    tensor, table = report.chip.tensor, report.program.table
    peak_flop_per_s = 2.0 * float(tensor.rows) * float(tensor.cols) * float(tensor.clock_hz)
    products = np.array([kind == "nc_matmul" for kind in report.program.structure.kinds])
    flops = 2.0 * products * np.asarray(table["batch"] * table["m"] * table["k"] * table["n"])
    repeats = np.asarray(report.program.repeats)
    engines = np.array(report.program.structure.engines)
    begins = {loop.end: loop.begin for loop in report.program.structure.loops}
    for engine, name, amounts, scale in (
        ("dma", "HBM bandwidth (GB/s)", report.moved_bytes, 1e-9),
        ("tensor", "Tensor Engine utilisation (%)", flops, 100.0 / peak_flop_per_s),
    ):
        for item in slices:
            if item.engine != engine:
                continue
            rows = np.array([item.row])
            if item.kind == "loop":
                rows = np.arange(begins[item.row], item.row)
                rows = rows[engines[rows] == engine]
            weight = repeats[rows]
            rate = float((amounts[rows] * weight).sum() / (report.schedule.occupancy_s[rows] * weight).sum())
            for time_s, value in ((item.begin_s, rate * scale), (item.end_s, 0.0)):
                yield {"name": name, "ph": "C", "pid": _PID, "ts": time_s * _US, "args": {"value": value}}
