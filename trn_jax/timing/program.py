"""A Program: one core's instruction stream, split into static structure (the jit key) and a numeric table (its only leaves).

Two programs of equal structure differ only in numbers, so `jax.tree.map(jnp.stack, ...)` makes a batch of workloads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from trn_jax.errors import ProgramError
from trn_jax.graph.instruction import Instruction

NO_GROUP = (-1, 1.0)  # group and tiles of a row outside any loop over tiles of rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the stream.

    Attributes:
        instruction: What runs; None on the closing row of a loop.
        waits: Earlier rows whose results this one needs; of several on one engine the last, as engines work in order.
        label: Name for tables and traces, e.g. "nc_matmul dot_general".
        source: User's line, "file.py:12 (fn)"; several, joined by "; ", for a fused row.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Issued:
    """How rows run whose schedule is given, as that of a `trn_jax.kernel` is.

    Attributes:
        lanes: Per row, what runs its rows in order: the engine, or one of several DMA queues, which share the rate of the engines.
        sbuf_bytes: Most bytes of SBUF in use at one time, all partitions.
        psum_bytes: Of PSUM.
        hbm_bytes: Of its arrays in HBM.
    """

    lanes: tuple[str, ...]
    sbuf_bytes: float
    psum_bytes: float
    hbm_bytes: float


class Array(NamedTuple):
    """Shape, dtype and bytes of one array that goes into or out of a function; one core's part of a sharded one."""

    shape: tuple[int, ...]
    dtype: str
    size_bytes: float


class Origin(Protocol):
    """What a Program was made from, so that it can be made again with other passes."""

    @property
    def passes(self) -> tuple[str, ...]:
        """Passes that were applied."""
        ...

    @property
    def arguments(self) -> Mapping[str, tuple[Array, ...]]:
        """Arrays of each argument, by its name."""
        ...

    @property
    def results(self) -> tuple[Array, ...]:
        """Arrays that the function returns."""
        ...

    @property
    def captured_bytes(self) -> float:
        """Bytes of arrays that the function holds without their being arguments."""
        ...

    def build(self, passes: tuple[str, ...]) -> Program:
        """The program of the same function with these passes."""
        ...


@dataclass(frozen=True, slots=True)
class Structure:
    """Everything static about a Program; equality and hash leave out labels, sources, scopes and the traced function."""

    engines: tuple[str, ...]  # per row; "loop" on closing rows
    kinds: tuple[str, ...]
    narrow: tuple[bool, ...]
    waits: tuple[tuple[int, ...], ...]
    loops: tuple[Loop, ...]
    rows: tuple[Row, ...] = field(compare=False, repr=False)
    functions: tuple[str, ...] = ()  # per row, as `Instruction.function`; these two are what a cost may look at besides `narrow`
    operand_formats: tuple[tuple[str, ...], ...] = ()
    origin: Origin | None = field(default=None, compare=False, repr=False)
    groups: tuple[int, ...] = ()  # per row, which rows share one loop over tiles of rows with it; -1 for none, () for none at all
    issued: Issued | None = None  # of a kernel: every row waits for whole results, and nothing is left to the scheduler

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles all but the traced function, which holds code of JAX: other passes need a new trace."""
        return Structure, tuple(None if f.name == "origin" else getattr(self, f.name) for f in fields(self))


@partial(jax.tree_util.register_dataclass, data_fields=["table"], meta_fields=["structure"])
@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What `trn_jax.trace` returns and `latency`, `estimate`, `sweep` and `tune` read.

    Attributes:
        structure: Static: rows, engines, kinds, dependencies, loops.
        table: One float array of shape [rows] (or [programs, rows] for a batch) for each field of `Work`, and for
            `reuse_bytes` and `reuse_slope` (DMA rows: SBUF it takes to still have this data, infinite when it has to move
            anyway; what moves is min(bytes, reuse_slope max(0, reuse_bytes - SBUF))), `hbm` (1 on rows whose bytes cross
            HBM, else 0), `group_tiles` (tiles of rows that its group works through, 1 outside any; only where the structure has
            groups) and `trips` (closing rows: iterations; else 1).
    """

    structure: Structure
    table: Mapping[str, Any]

    def __len__(self) -> int:
        """Rows of the stream, closing rows of loops included."""
        return len(self.structure.rows)

    def __repr__(self) -> str:
        counts = Counter(engine for engine in self.structure.engines if engine != "loop")
        engines = ", ".join(f"{engine} {count}" for engine, count in sorted(counts.items(), key=lambda item: -item[1]))
        loops = f"; {len(self.structure.loops)} loops" if self.structure.loops else ""
        return f"Program({sum(counts.values())} instructions: {engines}{loops})"

    @property
    def instructions(self) -> tuple[Instruction, ...]:
        """The instruction records in stream order; a loop's body once."""
        return tuple(row.instruction for row in self.structure.rows if row.instruction is not None)

    @property
    def repeats(self) -> Any:
        """How often each row runs: the product of the trips of the loops around it; shape of a column of the table."""
        trips = self.table["trips"]
        repeats = trips * 0 + 1
        rows = np.arange(len(self))
        for loop in self.structure.loops:
            inside = (rows >= loop.begin) & (rows < loop.end)
            repeats = repeats * (1 + inside * (trips[..., loop.end, None] - 1))
        return repeats

    @property
    def row_flops(self) -> Any:
        """Floating point operations of each row's product, 2 batch m k n, all iterations counted; shape of a column of the table."""
        products = np.array([kind == "nc_matmul" for kind in self.structure.kinds])
        table = self.table
        return 2 * products * table["batch"] * table["m"] * table["k"] * table["n"] * self.repeats

    @property
    def flops(self) -> Any:
        """Those of all rows."""
        return self.row_flops.sum(-1)

    @property
    def compulsory_bytes(self) -> Any:
        """Bytes that cross HBM however large SBUF is: inputs, outputs and what instructions fetch there themselves."""
        table = self.table
        return (table["hbm"] * (table["reuse_bytes"] == np.inf) * table["bytes"] * self.repeats).sum(-1)

    def with_passes(self, passes: tuple[str, ...] | list[str]) -> Program:
        """The same function lowered again with these passes only; `()` gives the unfused stream.

        Raises:
            ProgramError: For an unknown pass, or if the program was built by hand and has no function to lower again.
        """
        if self.structure.origin is None:
            raise ProgramError(
                "This Program was built by hand or comes from a file; only one from trn_jax.trace can be lowered again with other passes."
            )
        return self.structure.origin.build(tuple(passes))

    def to_table(self) -> list[dict[str, Any]]:
        """What runs where, one dict per row: `row, engine, kind, label, repeats, waits, source, scope` and the columns."""
        structure, repeats = self.structure, np.asarray(self.repeats)
        columns = {name: np.asarray(column) for name, column in self.table.items() if name != "trips"}
        return [
            {
                "row": index,
                "engine": structure.engines[index],
                "kind": structure.kinds[index],
                "label": row.label,
                "repeats": repeats[..., index].tolist(),
                "waits": row.waits,
                "source": row.source,
                "scope": row.scope,
                **{name: column[..., index].tolist() for name, column in columns.items()},
            }
            for index, row in enumerate(structure.rows)
        ]
