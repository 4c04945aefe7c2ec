"""A Program: one core's instruction stream, split into static structure (the jit key) and a numeric table (its only leaves).

Two programs of equal structure differ only in numbers, so `jax.tree.map(jnp.stack, ...)` makes a batch of workloads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax

from trn_jax.graph.instruction import Instruction


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the stream.

    Attributes:
        instruction: What runs; None on the closing row of a loop.
        waits: Earlier rows whose results this one reads.
        label: Name for tables and traces, e.g. "nc_matmul dot_general".
        source: User's line, "file.py:12 (fn)".
        scope: jax.named_scope path, "" outside any.
    """

    instruction: Instruction | None
    waits: tuple[int, ...]
    label: str
    source: str
    scope: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """A loop too long to unroll: rows `begin` to `end` are one iteration, row `end` is its closing row.

    The closing row stands for the other `trips` - 1 iterations (`trips` is a column of the table, read at the closing row),
    one every initiation interval; whatever reads the loop's results waits for the closing row. `carried` lists, for every
    carried value, the rows of the body that read it and the row that makes its next value (-1 where it is passed through).
    """

    begin: int
    end: int
    carried: tuple[tuple[tuple[int, ...], int], ...]


@dataclass(frozen=True, slots=True)
class Structure:
    """Everything static about a Program; equality and hash leave out labels, sources and scopes."""

    engines: tuple[str, ...]  # per row; "loop" on closing rows
    kinds: tuple[str, ...]
    narrow: tuple[bool, ...]
    waits: tuple[tuple[int, ...], ...]
    loops: tuple[Loop, ...]
    rows: tuple[Row, ...] = field(compare=False, repr=False)


@partial(jax.tree_util.register_dataclass, data_fields=["table"], meta_fields=["structure"])
@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What `trn_jax.trace` returns and `latency`, `estimate`, `sweep` and `tune` read.

    Attributes:
        structure: Static: rows, engines, kinds, dependencies, loops.
        table: One float array of shape [rows] for each field of `Work`, and for
            `reuse_bytes` (DMA rows: bytes touched in SBUF since this data was last there; infinite when it has to move anyway:
            the data moved is min(bytes, max(0, reuse_bytes - SBUF))) and `trips` (closing rows: iterations; else 1).
    """

    structure: Structure
    table: Mapping[str, Any]
