"""The counters path: the program of the function, with the bytes that the kernel's profile counted in place of its own traffic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from trn_jax.chips import Chip
from trn_jax.engines.dma import moved_bytes
from trn_jax.timing.program import Program

READ, WRITTEN = "hbm_read_bytes", "hbm_write_bytes"
_WRITES = frozenset({"store", "spill"})


def has_counters(extra: Mapping[str, Any]) -> bool:
    """Whether a row gives the bytes that were read from HBM and written to it."""
    return all(isinstance(extra.get(name), (int, float)) for name in (READ, WRITTEN))


def with_counted_bytes(program: Program, chip: Chip, extra: Mapping[str, Any]) -> Program:
    """The same instructions, each DMA row scaled so that reads and writes add up to what was counted.

    Args:
        program: From `trn_jax.trace`.
        chip: Decides what the program itself would move.
        extra: With both counters, in bytes.

    Returns:
        A program whose traffic no longer depends on SBUF.
    """
    table = dict(program.table)
    size_bytes = np.asarray(table["bytes"])
    moved = np.asarray(moved_bytes(size_bytes, np.asarray(table["reuse_bytes"]), chip, 0.0, np.asarray(table["reuse_slope"])))
    crosses = np.asarray(table["hbm"]) > 0
    writes = crosses & np.isin(np.array(program.structure.functions), list(_WRITES))
    repeats = np.asarray(program.repeats)
    for rows, counted in ((crosses & ~writes, extra[READ]), (writes, extra[WRITTEN])):
        own = float((moved * repeats)[rows].sum())
        size_bytes = np.where(rows, moved * (counted / own if own else 1.0), size_bytes)
    table["bytes"] = size_bytes
    table["reuse_bytes"] = np.where(crosses, np.inf, table["reuse_bytes"])
    table["reuse_slope"] = np.where(crosses, 1.0, table["reuse_slope"])
    return replace(program, table=table)
