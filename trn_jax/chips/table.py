"""Chips as text and as JSON for `trn-jax chips`: every value with its unit, basis and source."""

from __future__ import annotations

import os
import textwrap
from itertools import groupby
from typing import Any

from trn_jax.chips.loader import Row, describe, describe_chip, list_chips, load_chip
from trn_jax.units import format_quantity, unit_of

_KEY_WIDTH, _VALUE_WIDTH, _BASIS_WIDTH = 30, 14, 12


def list_text() -> str:
    """One line per chip that comes with trn_jax."""
    return "\n".join(f"{name:<12} {_summary(name)}" for name in list_chips())


def chip_text(name_or_path: str | os.PathLike[str], width: int = 140) -> str:
    """Every value of a chip with its unit, basis, source, range and note, grouped by engine, memory and link.

    Args:
        name_or_path: As for `load_chip`.
        width: Characters per line; sources and notes wrap to it.

    Raises:
        ChipError: As `load_chip`.
    """
    rows = describe_chip(name_or_path)
    lines = [f"{describe(name_or_path).name}: {_summary(name_or_path)}"]
    for group, members in groupby(rows, key=lambda row: row.key.rpartition(".")[0]):
        lines += ["", group or "chip"]
        for row in members:
            lines += _row_lines(row, width)
    return "\n".join(lines)


def list_json() -> dict[str, Any]:
    """The chips that come with trn_jax, by name: core, rounds and number of cores."""
    chips = {name: load_chip(name) for name in list_chips()}
    return {name: {"core": chip.core, "rounds": chip.rounds, "cores": chip.cores} for name, chip in chips.items()}


def chip_json(name_or_path: str | os.PathLike[str]) -> dict[str, Any]:
    """A chip as a dict that `json.dumps` takes: values in SI units under dotted keys, with unit, basis, source, note, low, high.

    Raises:
        ChipError: As `load_chip`.
    """
    about = describe(name_or_path)
    values = {row.key: {part: field for part, field in row._asdict().items() if part != "key"} for row in describe_chip(name_or_path)}
    values["formats"]["value"] = list(values["formats"]["value"])
    return {"name": about.name, "core": about.core, "rounds": about.rounds, "values": values}


def _summary(name_or_path: str | os.PathLike[str]) -> str:
    chip = load_chip(name_or_path)
    parts = (
        f"{chip.cores:g} x {chip.core}",
        f"{chip.tensor.rows:g}x{chip.tensor.cols:g} at {format_quantity(chip.tensor.clock_hz, 'Hz')}",
        f"SBUF {format_quantity(chip.sbuf.size_bytes, 'B')}",
        f"HBM {format_quantity(chip.hbm.size_bytes, 'B')} at {format_quantity(chip.hbm.bandwidth_bytes_per_s, 'B/s')}",
    )
    return ", ".join(parts) + ("" if chip.rounds else ", rounds nothing")


def _row_lines(row: Row, width: int) -> list[str]:
    """The line of one value, and below it what does not fit beside it."""
    key = row.key.rpartition(".")[2]
    margin = " " * (2 + _KEY_WIDTH + _VALUE_WIDTH + _BASIS_WIDTH)
    value = " ".join(row.value) if row.key == "formats" else format_quantity(row.value, unit_of(row.key))
    head = f"  {key:<{_KEY_WIDTH}}{value:<{_VALUE_WIDTH}}"
    if len(head) > len(margin) - _BASIS_WIDTH:  # too long for its column: basis and source start a new line
        lines = textwrap.wrap(head.rstrip(), width, subsequent_indent=" " * (2 + _KEY_WIDTH))
        return [*lines, *_wrapped(f"{margin[:-_BASIS_WIDTH]}{row.basis:<{_BASIS_WIDTH}}", row, margin, width)]
    return _wrapped(f"{head}{row.basis:<{_BASIS_WIDTH}}", row, margin, width)


def _wrapped(head: str, row: Row, margin: str, width: int) -> list[str]:
    lines = textwrap.wrap(row.source, width, initial_indent=head, subsequent_indent=margin)
    if row.low is not None and row.high is not None:
        lines.append(f"{margin}range: {format_quantity(row.low, row.unit)} to {format_quantity(row.high, row.unit)}")
    return lines + (textwrap.wrap(f"note: {row.note}", width, initial_indent=margin, subsequent_indent=margin) if row.note else [])
