"""A table of published measurements: one row is one figure somebody published, with what is needed to reproduce it."""

from __future__ import annotations

import csv
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trn_jax.errors import ValidationError, did_you_mean

REQUIRED = ("id", "kind", "chip", "workload", "value", "unit")
# names of the published tables -> chips of trn_jax
CHIPS = {"trn1": "trainium1", "trn2": "trainium2", "trn3": "trainium3", "inf2": "inferentia2"}
NVIDIA = ("A10", "B100", "B200", "GB200", "GH200", "H100", "H20", "L4", "P100", "RTX", "T4", "V100")
OTHER_MAKERS = (*NVIDIA, "TPU", "MI2", "MI3", "GAUDI", "CPU", "INF1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One published figure.

    Attributes:
        id: Name of the row, unique in its table.
        kind: What was measured, e.g. "kernel_latency".
        chip: As published ("trn1"); "" where the figure belongs to none.
        preset: The chip of trn_jax that it is, or "" for another maker's or an unstated one.
        workload: The published name.
        value: The figure, in `unit`.
        unit: E.g. "ms".
        columns: All columns of the row, as text.
        extra: The object in `extra_json`, such as byte counters.
    """

    id: str
    kind: str
    chip: str
    preset: str
    workload: str
    value: float
    unit: str
    columns: Mapping[str, str] = field(repr=False)
    extra: Mapping[str, Any] = field(repr=False)

    def text(self, column: str) -> str:
        """A column, or "" if the table has none of this name."""
        return self.columns.get(column) or ""

    @property
    def is_upper_bound(self) -> bool:
        """Whether the figure is a threshold that somebody asserts, not a measurement."""
        return "UPPER BOUND" in self.text("flag")


def read_measurements(path: str | os.PathLike[str]) -> list[Measurement]:
    """Reads a table of measurements.

    Args:
        path: A CSV file with at least the columns of `REQUIRED`; `data/README.md` of the repository has all that are read.

    Returns:
        Its rows, in order.

    Raises:
        ValidationError: No such file, no rows, a missing column, or a row with an unknown chip, a value that is no positive
            number, an `extra_json` that is no JSON object, or the id of another row. Names the file, the line and the row.
    """
    path = Path(path)
    if not path.is_file():
        raise ValidationError(f"There is no file {str(path)!r} to validate against. Give a CSV file such as data/measured.csv.")
    try:
        rows = _rows(path)
    except UnicodeDecodeError as error:
        raise ValidationError(f"{path} is no UTF-8: {error.reason} at byte {error.start}. Save it as CSV in UTF-8.") from error
    except csv.Error as error:
        raise ValidationError(f"{path} is no CSV: {error}. Look for a quote that is not closed.") from error
    if not rows:
        raise ValidationError(f"{path} has column names but no rows. Each further line is one published figure.")
    seen: set[str] = set()
    for row in rows:
        if row.id in seen:
            raise ValidationError(f"{path} has two rows with the id {row.id!r}. Give each row an id of its own.")
        seen.add(row.id)
    return rows


def _rows(path: Path) -> list[Measurement]:
    with path.open(newline="", encoding="utf-8-sig") as file:  # spreadsheets write a byte order mark
        reader = csv.DictReader(file)
        names = [name.strip() for name in reader.fieldnames or []]
        reader.fieldnames = names
        missing = [name for name in REQUIRED if name not in names]
        if not names:
            raise ValidationError(f"{path} is empty. The first line names the columns: at least {', '.join(REQUIRED)}.")
        if missing:
            raise ValidationError(f"{path} has no column {', '.join(missing)}. It needs at least {', '.join(REQUIRED)}.")
        twice = sorted({name for name in names if name and names.count(name) > 1})
        if twice:
            raise ValidationError(f"{path} has two columns {', '.join(twice)}. Give each column a name of its own.")
        return [_measurement(row, f"{path}, line {reader.line_num}") for row in reader]


def _measurement(columns: dict[str, Any], where: str) -> Measurement:
    if None in columns or None in columns.values():
        raise ValidationError(f"{where}: more or fewer fields than the first line has. Quote fields that contain commas.")
    text = {name: value.strip() for name, value in columns.items()}
    if not text["id"]:
        raise ValidationError(f"{where}: the row has no id. Give each row an id of its own.")
    where = f"{where} ({text['id']})"
    try:
        value = float(text["value"])
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise ValidationError(f"{where}: value is {text['value']!r}; it has to be a positive number.")
    try:
        extra = json.loads(text.get("extra_json") or "{}")
    except json.JSONDecodeError as error:
        raise ValidationError(f"{where}: extra_json is no JSON: {error}.") from error
    if not isinstance(extra, dict):
        raise ValidationError(f"{where}: extra_json is {text['extra_json']!r}; it has to be a JSON object, {{...}}.")
    return Measurement(
        id=text["id"],
        kind=text["kind"],
        chip=text["chip"],
        preset=_preset(text["chip"], where),
        workload=text["workload"],
        value=value,
        unit=text["unit"],
        columns=text,
        extra=extra,
    )


def _preset(chip: str, where: str) -> str:
    """The chip of trn_jax that a published name means; "" for other makers' and for unstated ones ("", "trn2?")."""
    if chip in CHIPS or chip in CHIPS.values():
        return CHIPS.get(chip, chip)
    if not chip or chip.endswith("?") or chip.upper().startswith(OTHER_MAKERS):
        return ""
    raise ValidationError(f"{where}: unknown chip {chip!r}. {did_you_mean(chip, (*CHIPS, *CHIPS.values()))}")
