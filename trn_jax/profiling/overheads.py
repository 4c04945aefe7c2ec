"""The time of a workload as a benchmark on the host would see it: latency and the overheads of a software block.

launch + latency                                         anything
launch + latency + layers x forward_layer                a forward pass
launch + max(latency, DMA busy + layers x decode_layer)  a decode step: small operations that `latency` has too count once
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from trn_jax.report.text import quantity
from trn_jax.software import Software

if TYPE_CHECKING:
    from trn_jax.report.report import Report

LAUNCH, FORWARD_LAYER, DECODE_LAYER = "launch_s", "forward_layer_s", "decode_layer_s"
BY_MODE = {"forward": FORWARD_LAYER, "decode": DECODE_LAYER}


def overheads(report: Report, software: Software, *, layers: int = 0, mode: str = "") -> dict[str, Any]:
    """What a software block adds to the latency of a report.

    Args:
        report: From `trn_jax.estimate`, on the chip it is of.
        software: From `load_software`.
        layers: Of the model; 0 where it is none, or not known.
        mode: "forward", "decode" or another, for which no overhead per layer is known.

    Returns:
        "name", "release", "note", "launch_s", "latency_with_launch_s", "layers", "latency_with_overheads_s" (seconds), and
        "overheads": those that count here, each with "value_s", "low_s", "high_s", "basis", "source" and "note".
    """
    known = software.on(report.chip.core)
    per_layer = known.get(BY_MODE.get(mode, "")) if layers else None
    launch_s, total_s = known[LAUNCH].value_s, report.latency_s
    used, notes = {LAUNCH: known[LAUNCH]}, [software.note] if software.note else []
    if layers and per_layer is None:
        notes.append(f"no overhead of a layer of a {mode} step on {report.chip.core} is known in this release")
    if per_layer is not None:
        used[BY_MODE[mode]] = per_layer
        added_s = layers * per_layer.value_s
        total_s = max(total_s, report.engines["dma"].busy_s + added_s) if mode == "decode" else total_s + added_s
    return {
        "name": software.name,
        "release": software.release,
        "note": "; ".join(notes),
        "launch_s": launch_s,
        "latency_with_launch_s": report.latency_s + launch_s,
        "layers": layers,
        "latency_with_overheads_s": launch_s + total_s,
        "overheads": {name: dataclasses.asdict(overhead) for name, overhead in used.items()},
    }


def overheads_text(found: dict[str, Any]) -> str:
    """The total, a note if the release is another, and one line for each overhead."""
    lines = [f"software: {found['name']} ({found['release']}): {quantity(found['latency_with_overheads_s'], 's')} with its overheads"]
    if found["note"]:
        lines.append(f"  note: {found['note']}")
    for name, overhead in found["overheads"].items():
        value, low, high = (quantity(overhead[key], "s") for key in ("value_s", "low_s", "high_s"))
        what = "to launch" if name == LAUNCH else f"for each of {found['layers']} layers, {name.removesuffix('_s').replace('_', ' ')}"
        lines.append(f"  {value} {what} ({low} to {high}; {overhead['basis']}: {overhead['source']})")
    return "\n".join(lines)
