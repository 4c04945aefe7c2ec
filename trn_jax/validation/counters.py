"""The counters path: the program of the function, with what the kernel's profile counted in place of the program's own figures.

bytes          each DMA row is scaled so that reads and writes add up to the counted ones
transposes     those on the Tensor Engine take array time between the products: each product is longer by its share of them
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from trn_jax.chips import Chip
from trn_jax.engines.dma import moved_bytes
from trn_jax.timing.program import Program
from trn_jax.validation.sizes import Missing

READ, WRITTEN, TRANSPOSED = "hbm_read_bytes", "hbm_write_bytes", "transpose_flops"
TILE = 128  # rows and columns of the array that the counters are of
_WRITES = frozenset({"store", "spill"})


def has_counters(extra: Mapping[str, Any]) -> bool:
    """Whether a row gives the bytes that were read from HBM and written to it.

    Raises:
        Missing: A counter that is no count.
    """
    for name in (READ, WRITTEN, TRANSPOSED):
        if name in extra and not _is_count(extra[name]):
            raise Missing(f"a meaning of the counter {name}: {extra[name]!r}")
    return READ in extra and WRITTEN in extra


def _is_count(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value >= 0


def with_counters(program: Program, chip: Chip, extra: Mapping[str, Any]) -> Program:
    """The same instructions with the counted bytes and transposes.

    Args:
        program: From `trn_jax.trace`.
        chip: Decides what the program itself would move.
        extra: With both byte counters, and `transpose_flops` (2 x 128 x 128 for each column of a tile) or without.

    Returns:
        A program whose traffic no longer depends on SBUF; without transposes of its own where they are counted.
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
    if TRANSPOSED in extra:
        table["batch"] = _with_transposes(program, table, float(extra[TRANSPOSED]), repeats)
    return replace(program, table=table)


def _with_transposes(program: Program, table: Mapping[str, Any], transpose_flops: float, repeats: Any) -> Any:
    """Column `batch` with every product longer by as much as all of them need for the counted transposes.

    A transpose streams the columns of a tile past the array as a product does, so what counts are whole tiles of 128 by 128.
    """
    kinds, batch = np.array(program.structure.kinds), np.asarray(table["batch"])
    padded = np.ceil(np.asarray(table["k"]) / TILE) * np.ceil(np.asarray(table["m"]) / TILE) * TILE**2 * np.asarray(table["n"])
    products = kinds == "nc_matmul"
    own_flops = 2 * float((products * batch * padded * repeats).sum())
    longer = 1 + transpose_flops / own_flops if own_flops else 1.0
    return np.where(products, batch * longer, np.where(kinds == "nc_transpose", 0.0, batch))
