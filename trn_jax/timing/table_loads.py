"""Rows that load tables of the Scalar Engine: before the first function of a set, and whenever the next one is of another set.

exp, exp, gelu, exp                     [load] exp exp [load] gelu [load] exp
loop: exp, copy, exp                    [load] loop: exp copy exp                       one set: once, before the loop
loop: exp, gelu                         loop: [load] exp [load] gelu                    they alternate: in every iteration

A load waits for nothing and occupies its engine, in the order of the program; so it hides where the engine would be idle, as at the
beginning, while the first data come. Where rows share a loop over tiles of rows, the load stands before that loop. If two of its
functions need different tables, the second works through all tiles after the first, as one load says.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from trn_jax.engines.activation_sets import set_of
from trn_jax.engines.scalar import TABLE_LOAD, WITH_TABLE
from trn_jax.graph.instruction import Instruction
from trn_jax.timing.program import NO_GROUP, Loop, Row
from trn_jax.timing.stream import Block, Step, walk

_EXTRA = (math.inf, 1.0, 0.0, 1.0)  # of a row without bytes: reuse_bytes, reuse_slope, hbm, trips


class Lines(NamedTuple):
    """Rows and what `assemble` takes beside them; `groups` and `lanes` are empty where there are none."""

    rows: Sequence[Row]
    extra: Sequence[tuple[float, float, float, float]]
    loops: Sequence[Loop]
    groups: Sequence[tuple[int, float]]
    lanes: Sequence[str]


class _Load(NamedTuple):
    """Before which row, within how many loops (of loops that begin at one row, loads of outer ones come first), and for which row."""

    before: int
    depth: int
    reader: int


def with_table_loads(lines: Lines) -> Lines:
    """The rows with loads of tables among them, everything renumbered.

    A loop whose first and last set are the same begins with it loaded; one whose are not loads in every iteration, the first included,
    which is at most one load too many.

    Basis: documented (NKI and AWS profiler: ACT_TABLE_LOAD in the Scalar Engine's stream); which functions share a table, and the time
        of a load, as `engines.activation_sets` and the chip's `scalar.table_load_s` say.
    """
    sets = ["" if row.instruction is None else table_set(row.instruction) for row in lines.rows]
    if not any(sets):
        return lines
    loads: list[_Load] = []
    nested = sorted(lines.loops, key=lambda loop: (loop.begin, -loop.end))

    def items(begin: int, end: int, inside: list[Loop], depth: int, loaded: str) -> str:
        """Notes the loads of some rows; returns the set that is loaded after them."""
        row, since = begin, begin
        while row < end:
            if inside and inside[0].begin == row:
                loop = inside[0]
                body = [inner for inner in inside[1:] if inner.end < loop.end]
                inside = inside[1 + len(body) :]
                used = [name for name in sets[loop.begin : loop.end] if name]
                if used and used[0] == used[-1] != loaded:
                    loads.append(_Load(loop.begin, depth, next(r for r in range(loop.begin, loop.end) if sets[r])))
                items(loop.begin, loop.end, body, depth + 1, used[-1] if used else loaded)
                loaded = used[-1] if used else loaded
                row = since = loop.end + 1
                continue
            if sets[row] and sets[row] != loaded:
                loads.append(_Load(_head(lines, sets, row, since), depth, row))
            loaded = sets[row] or loaded
            row += 1
        return loaded

    items(0, len(lines.rows), nested, 0, "")
    return _inserted(lines, sets, loads, nested)


def table_set(instruction: Instruction) -> str:
    """The set of functions that an instruction needs loaded, "" for none."""
    with_table = instruction.engine == "scalar" and instruction.kind in WITH_TABLE
    return set_of(instruction.function) if with_table else ""


def needed_tables(items: Sequence[Step | Block]) -> list[str]:
    """The tables that items need, in order; those of a loop's body once."""
    return [table for item in walk(items) if isinstance(item, Step) and (table := table_set(item.instruction))]


def _head(lines: Lines, sets: list[str], row: int, since: int) -> int:
    """The first of the rows that take turns with this one on its engine, tile by tile, if none of them needs another table."""
    if not lines.groups or lines.groups[row][0] < 0:
        return row
    head = row
    for earlier in range(row - 1, since - 1, -1):
        instruction = lines.rows[earlier].instruction
        if instruction is None or (instruction.engine == "scalar" and (sets[earlier] or lines.groups[earlier] != lines.groups[row])):
            break
        if instruction.engine == "scalar":
            head = earlier
    return head


def _inserted(lines: Lines, sets: list[str], loads: list[_Load], nested: list[Loop]) -> Lines:
    """The loads in their places."""
    loads = sorted(loads)
    places = [(load.before, load.depth) for load in loads]

    def new(row: int) -> int:
        return row + bisect.bisect_left(places, (row + 1, 0))

    depth = {loop: sum(outer.begin <= loop.begin and loop.end < outer.end for outer in nested) for loop in nested}
    loops = [
        Loop(
            begin=loop.begin + bisect.bisect_left(places, (loop.begin, depth[loop] + 1)),
            end=new(loop.end),
            carried=tuple((tuple(map(new, readers)), maker if maker < 0 else new(maker)) for readers, maker in loop.carried),
        )
        for loop in lines.loops
    ]
    rows = [replace(row, waits=tuple(map(new, row.waits))) for row in lines.rows]
    extra, groups, lanes = list(lines.extra), list(lines.groups), list(lines.lanes)
    for load in reversed(loads):
        rows.insert(load.before, _row(sets[load.reader], lines.rows[load.reader]))
        extra.insert(load.before, _EXTRA)
        if groups:
            groups.insert(load.before, NO_GROUP)
        if lanes:
            lanes.insert(load.before, "scalar")
    return Lines(rows, extra, loops, groups, lanes)


def _row(name: str, reader: Row) -> Row:
    """The load of a set, with the source line of the function that needs it."""
    instruction = Instruction(engine="scalar", kind=TABLE_LOAD, function=name)
    return replace(reader, instruction=instruction, waits=(), label=f"{TABLE_LOAD} {name}")
