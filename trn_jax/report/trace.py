"""The schedule as a trace file in Chrome's JSON format, for https://ui.perfetto.dev.

track  program             one slice from 0 to the latency
track  <engine>            what it does; slices never overlap and add up to its busy time. A kernel has a track for each DMA queue
track  <engine> waiting    the gaps in between, and for what
track  loops               each loop from its first row to its last iteration
counter                    HBM bandwidth, Tensor Engine utilisation, and for every engine how busy it is, in windows of the latency
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
_PID = 1
_WINDOWS = 200  # of the counters of busy time


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
    number = _track_numbers(slices)
    name = f"{report.program!r} on {report.chip.name}"
    events = [
        _slice(number, "program", name, "program", 0.0, report.latency_s, {"latency_s": report.latency_s, "overlap": repr(report.overlap)})
    ]
    events += _engine_events(report, slices, number)
    events += [
        _slice(number, f"{gap.track} waiting", _wait_name(report, gap), "wait", gap.begin_s, gap.duration_s, {"row": gap.row})
        for gap in gaps
    ]
    events += _loops(report, number)
    used = {event["tid"] for event in events}
    events += _counters(report, slices)
    events += _busy_counters(report, slices)
    return [*_names(used, number), *events]


def _track_numbers(slices: list[Slice]) -> dict[str, int]:
    """Track to its number, which is its place from top to bottom: the queues of an engine below it."""
    queues = {item.queue for item in slices if item.queue}
    working = [*ENGINES[:-1], *sorted(queues), ENGINES[-1]]
    names = ["program", *working, "loops", *(f"{track} waiting" for track in working)]
    return {name: position for position, name in enumerate(names, start=1)}


def _slice(
    number: dict[str, int], track: str, name: str, kind: str, begin_s: float, duration_s: float, args: dict[str, Any]
) -> dict[str, Any]:
    where = {"ph": "X", "pid": _PID, "tid": number[track], "ts": begin_s * _US, "dur": duration_s * _US}
    return {"name": name, "cat": kind, **where, "args": args}


def _engine_events(report: Report, slices: list[Slice], number: dict[str, int]) -> Iterator[dict[str, Any]]:
    """Slices of the tracks; one never begins before the one before has ended, not even by a rounding error."""
    free_us: dict[str, float] = {item.track: 0.0 for item in slices}
    for item in slices:
        event = _slice(number, item.track, item.name, item.kind, item.begin_s, item.duration_s, _args(report, item))
        event["ts"] = max(event["ts"], free_us[item.track])
        free_us[item.track] = event["ts"] + event["dur"]
        yield event


def _names(used: set[int], number: dict[str, int]) -> Iterator[dict[str, Any]]:
    yield {"name": "process_name", "ph": "M", "pid": _PID, "args": {"name": "NeuronCore"}}
    for track, tid in number.items():
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


def _loops(report: Report, number: dict[str, int]) -> Iterator[dict[str, Any]]:
    for index, loop in enumerate(report.program.structure.loops):
        rows = slice(loop.begin, loop.end + 1)
        begin_s = float(np.min(report.schedule.start_s[rows]))
        info = report.program.structure.rows[loop.end]
        args = {"row": loop.end, "source": info.source, "scope": info.scope, "interval_s": float(report.schedule.intervals_s[index])}
        yield _slice(number, "loops", info.label, "loop", begin_s, float(report.schedule.end_s[loop.end]) - begin_s, args)


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


def _busy_counters(report: Report, slices: list[Slice]) -> Iterator[dict[str, Any]]:
    """How busy each engine is in every window of the latency; of several queues the mean."""
    edges_s = np.linspace(0.0, report.latency_s, _WINDOWS + 1)
    for engine in ENGINES:
        mine = [item for item in slices if item.engine == engine]
        if not mine:
            continue
        begins_s, ends_s = np.sort([item.begin_s for item in mine]), np.sort([item.end_s for item in mine])
        times_s = np.union1d(begins_s, ends_s)
        at_once = np.searchsorted(begins_s, times_s, "right") - np.searchsorted(ends_s, times_s, "right")
        done_s = np.concatenate([[0.0], np.cumsum(at_once[:-1] * np.diff(times_s))])
        busy = np.diff(np.interp(edges_s, times_s, done_s)) / np.diff(edges_s) / len({item.track for item in mine})
        for time_s, value in zip([*edges_s[:-1], report.latency_s], [*busy, 0.0], strict=True):
            yield {"name": f"{engine} busy (%)", "ph": "C", "pid": _PID, "ts": time_s * _US, "args": {"value": 100.0 * float(value)}}
