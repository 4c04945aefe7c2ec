"""Frozen before any fit: the group of every published row, the fastest row of each, and which rows set a constant of a chip file."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources


@dataclass(frozen=True, slots=True, kw_only=True)
class Frozen:
    """What is fixed about one row.

    Attributes:
        group: Workload and shapes; rows of one group are never on both sides of a split.
        tuned: Whether it is the fastest published row of its group, dtype and chip.
        half: "a" or "b": the half of a half-split that its group is in.
        sets: The constant that was read off or fitted to this row, "" for none.
    """

    group: str
    tuned: bool
    half: str
    sets: str


@lru_cache(maxsize=1)
def frozen_rows() -> dict[str, Frozen]:
    """All frozen rows by id, from the file beside this module."""
    text = (resources.files("trn_jax.validation") / "data" / "frozen.csv").read_text(encoding="utf-8")
    return {
        row["id"]: Frozen(group=row["group"], tuned=row["tuned"] == "yes", half=row["half"], sets=row["sets"])
        for row in csv.DictReader(text.splitlines())
    }
