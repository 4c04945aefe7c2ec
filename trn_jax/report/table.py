"""A Report as text and as HTML."""

from __future__ import annotations

import html
import os
import re
from typing import TYPE_CHECKING

from trn_jax.chips.loader import list_chips, load_chip
from trn_jax.chips.paths import leaves_by_path
from trn_jax.report.footprint import capacity_text
from trn_jax.report.text import aligned, html_table, quantity, share, times
from trn_jax.timing.overlap import KERNEL

if TYPE_CHECKING:
    from trn_jax.chips.schema import Chip
    from trn_jax.report.report import Report

_NAMES = {
    "tensor": "the Tensor Engine",
    "vector": "the Vector Engine",
    "scalar": "the Scalar Engine",
    "gpsimd": "the GpSimd Engine",
    "dma": "data movement (DMA and HBM)",
    "collective": "collectives",
}
_ALIGN = "<>>>"
_TOP_ALIGN = "><<<"
_SOURCE_WIDTH = 60
_CHANGES = 3  # of a preset's values that the headline names


def report_text(report: Report, top: int) -> str:
    """The report for a terminal."""
    lines = [*_head_lines(report), *aligned(_engine_rows(report), _ALIGN), *_memory_lines(report), f"limited by {bottleneck_text(report)}"]
    if top > 0:
        lines += ["longest operations, by share of the serial time", *aligned(_top_rows(report, top), _TOP_ALIGN)]
    return "\n".join(lines)


def report_html(report: Report, top: int = 8) -> str:
    """The report for a notebook."""
    head = ["share", "instruction", "source", "scope"]
    parts = [
        "<br>".join(html.escape(line) for line in _head_lines(report)),
        html_table(_engine_rows(report), _ALIGN),
        "<br>".join(html.escape(line) for line in [*_memory_lines(report), f"limited by {bottleneck_text(report)}"]),
        html_table([head, *_top_rows(report, top)], _TOP_ALIGN),
    ]
    return "".join(f"<div>{part}</div>" for part in parts)


def bottleneck_text(report: Report) -> str:
    """The engine that limits, how busy it is, and what its absence would give."""
    engine, left_s = report.bottleneck, report.without_s[report.bottleneck]
    faster = f"{times(report.latency_s / left_s)} faster" if left_s > 0 else "nothing else takes time"
    return (
        f"{_NAMES[engine]}, busy {share(report.engines[engine].utilisation)} of the time; "
        f"if it took no time: {quantity(left_s, 's')}, {faster}"
    )


def _head_lines(report: Report) -> list[str]:
    overlap = KERNEL if report.overlap is None else report.overlap
    instructions = sum(engine != "loop" for engine in report.program.structure.engines)
    lines = [
        f"{quantity(report.latency_s, 's')} on one core of {_chip_text(report.chip)}: {instructions:,} instructions, overlap {overlap}",
        f"  {quantity(report.concurrent_s, 's')} with all engines side by side, {quantity(report.serial_s, 's')} one after the other, "
        f"{quantity(report.bound_s, 's')} at the very least",
    ]
    for memory, slack in report.slack_bytes.items():
        if slack < 0:
            lines.append(f"  CANNOT RUN: {memory.upper()} is {quantity(-slack, 'B')} too small, so these times mean nothing")
    if report.footprint.total_bytes > float(report.chip.hbm.size_bytes):
        lines.append(f"  DOES NOT FIT: {capacity_text(report.footprint, report.chip)}")
    if report.warmup_s:
        lines.append(f"  not counted: up to {quantity(report.warmup_s, 's')} more while the Tensor Engine warms up after idling")
    return lines


def _chip_text(chip: Chip) -> str:
    """A chip's name, and what makes it another chip than the preset of that name."""
    if chip.name not in list_chips():
        return chip.name
    preset = leaves_by_path(load_chip(chip.name))
    changes = [f"{path} = {float(x):.4g}" for path, x in leaves_by_path(chip).items() if float(x) != float(preset[path])]
    more = f" and {len(changes) - _CHANGES} more" if len(changes) > _CHANGES else ""
    return f"{chip.name} with {', '.join(changes[:_CHANGES])}{more}" if changes else chip.name


def _engine_rows(report: Report) -> list[list[str]]:
    rows = [["engine", "busy", "of the time", "instructions"]]
    for name, engine in report.engines.items():
        if engine.instructions:
            rows.append([name, quantity(engine.busy_s, "s"), share(engine.utilisation), f"{engine.instructions:,}"])
    rows.append(["none", quantity(report.idle_s, "s"), share(report.idle_s / report.latency_s if report.latency_s else 0.0), ""])
    return rows


def _memory_lines(report: Report) -> list[str]:
    low_j, high_j = report.energy_range_j
    spills = f", {quantity(report.spilled_bytes, 'B')} spilled and loaded again" if report.spilled_bytes else ""
    lines = [
        f"HBM traffic {quantity(report.hbm_bytes, 'B')} ({quantity(report.hbm_bytes_compulsory, 'B')} compulsory{spills}); "
        f"MBU {share(report.mbu)}",
        f"{quantity(report.flops, 'FLOP')} of matrix products, {quantity(report.arithmetic_intensity_flop_per_byte, 'FLOP/B')}; "
        f"MFU {share(report.mfu)}, HFU {share(report.hfu)}, {share(report.mfu_chip)} of the chip's advertised peak"
        if report.flops
        else "no matrix products",
        f"HBM footprint {capacity_text(report.footprint, report.chip)}",
        f"energy {quantity(report.energy_j, 'J')} ({quantity(low_j, 'J')} to {quantity(high_j, 'J')}), "
        f"{quantity(report.energy_j / report.latency_s if report.latency_s else 0.0, 'W')}: {_energy_text(report)}",
    ]
    return lines


def _energy_text(report: Report) -> str:
    """The shares of the energy, largest first."""
    parts = sorted(report.energy_by_engine_j.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {share(joules / report.energy_j)}" for name, joules in parts if joules > 5e-4 * report.energy_j)


def _top_rows(report: Report, top: int) -> list[list[str]]:
    """The longest operations; layers whose scopes differ by a number only are one line."""
    shares: dict[tuple[str, str, str], float] = {}
    for operation in report.top:
        key = (operation.label, _short_source(operation.source), re.sub(r"\d+", "*", _one_of(operation.scope)))
        shares[key] = shares.get(key, 0.0) + operation.share
    longest = sorted(shares.items(), key=lambda item: -item[1])[:top]
    return [[share(part), *names] for names, part in longest]


def _short_source(source: str) -> str:
    """The first of the lines, without its directory."""
    first = _one_of(source)
    place, _, function = first.partition(" ")
    text = f"{os.path.basename(place)} {function}".strip()
    return text if len(text) <= _SOURCE_WIDTH else f"{text[: _SOURCE_WIDTH - 3]}..."


def _one_of(joined: str) -> str:
    """The first of several lines or scopes of a fused row, and how many more there are."""
    first, *others = joined.split("; ")
    return f"{first} +{len(others)}" if others else first
