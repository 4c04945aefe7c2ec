"""Finished rows to a Program: table loads are added, what is static goes into its structure, numbers into its table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from trn_jax.graph.instruction import WORK_FIELDS, Work
from trn_jax.timing.program import Issued, Loop, Origin, Program, Row, Structure
from trn_jax.timing.table_loads import Lines, with_table_loads

_EXTRA = ("reuse_bytes", "reuse_slope", "hbm", "trips")  # columns of a row beside those of its instruction's work


def assemble(
    rows: Sequence[Row],
    extra: Sequence[tuple[float, float, float, float]],
    loops: Sequence[Loop],
    *,
    row_groups: Sequence[tuple[int, float]] = (),
    origin: Origin | None = None,
    issued: Issued | None = None,
) -> Program:
    """The program of finished rows.

    Args:
        rows: In stream order.
        extra: `reuse_bytes`, `reuse_slope`, `hbm` and `trips` of each row.
        loops: With their closing rows.
        row_groups: The group of each row, and the tiles that this works through; none at all without groups.
        origin: What the program was made from.
        issued: Of a kernel: how its rows run.
    """
    lines = with_table_loads(Lines(rows, extra, loops, row_groups, () if issued is None else issued.lanes))
    rows, extra, loops, row_groups = lines.rows, lines.extra, lines.loops, lines.groups
    issued = issued if issued is None else replace(issued, lanes=tuple(lines.lanes))
    instructions = [row.instruction for row in rows]
    structure = Structure(
        engines=tuple("loop" if i is None else i.engine for i in instructions),
        kinds=tuple("loop" if i is None else i.kind for i in instructions),
        narrow=tuple(i is not None and i.narrow for i in instructions),
        waits=tuple(row.waits for row in rows),
        loops=tuple(loops),
        rows=tuple(rows),
        functions=tuple("" if i is None else i.function for i in instructions),
        operand_formats=tuple(() if i is None else i.operand_formats for i in instructions),
        groups=tuple(group for group, _ in row_groups),
        origin=origin,
        issued=issued,
    )
    works = [Work() if i is None else i.work for i in instructions]
    table = {name: np.array([getattr(work, name) for work in works], np.float64) for name in WORK_FIELDS}
    numbers = np.array(extra, np.float64).reshape(len(rows), len(_EXTRA))
    table |= {name: numbers[:, column].copy() for column, name in enumerate(_EXTRA)}
    if row_groups:
        table["group_tiles"] = np.array([tiles for _, tiles in row_groups], np.float64)
    return Program(structure=structure, table=table)
