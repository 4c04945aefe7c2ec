"""Seconds of every row of a Program on a chip, or on many at once: rows of one kind are priced together.

The table this makes has three numbers per row, and as many lots as there are chips and workloads:

    occupancy    the engine is busy        gap = latency - occupancy    until results come out        first    the first piece
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from trn_jax.engines import KINDS, Cost, Kind, Static
from trn_jax.errors import ProgramError, did_you_mean
from trn_jax.timing.program import Structure


class Table(NamedTuple):
    """Each [rows + 1, lots], in the order of `positions`; the last row is zero, and so are closing rows at first.

    occupancy, gap and first are seconds. `whole` ([rows + 1, 1] where all lots have one workload) is 1 for rows that work in one
    piece and so need the whole of what they read, 0 for those that follow their producers piece by piece.
    """

    occupancy: Any
    gap: Any
    first: Any
    whole: Any


@functools.lru_cache(maxsize=256)
def groups(structure: Structure) -> tuple[tuple[tuple[str, str, Static], tuple[int, ...]], ...]:
    """Rows that are priced together: of one engine, kind and static fields.

    Raises:
        ProgramError: A row of an engine or kind without a cost.
    """
    found: dict[tuple[str, str, Static], list[int]] = {}
    for row, (engine, kind) in enumerate(zip(structure.engines, structure.kinds, strict=True)):
        if engine != "loop":
            function = structure.functions[row].partition("+")[0] if structure.functions else ""  # a fused row is as its first part
            if function not in _kind(structure, row).functions:
                function = ""
            formats = structure.operand_formats[row] if structure.operand_formats and engine == "tensor" else ()
            static = Static(narrow=structure.narrow[row], function=function, operand_formats=formats)
            found.setdefault((engine, kind, static), []).append(row)
    return tuple((key, tuple(rows)) for key, rows in found.items())


def _kind(structure: Structure, row: int) -> Kind:
    engine, kind = structure.engines[row], structure.kinds[row]
    if kind in KINDS.get(engine, {}):
        return KINDS[engine][kind]
    known = [f"{name}.{k}" for name, table in KINDS.items() for k in table]
    raise ProgramError(f"Row {row} is a {engine}.{kind}, which no engine's table prices. {did_you_mean(f'{engine}.{kind}', known)}")


@functools.lru_cache(maxsize=256)
def positions(structure: Structure) -> np.ndarray:
    """Where each row of the program stands in a `Table`: group by group, then closing rows, then the zero row."""
    order = [row for _, rows in groups(structure) for row in rows]
    order += [row for row, engine in enumerate(structure.engines) if engine == "loop"] + [len(structure.engines)]
    position = np.empty(len(order), np.int32)
    position[order] = np.arange(len(order))
    return position


def price(structure: Structure, columns: Mapping[str, Any], chip: Any, smoothing: Any, dtype: Any) -> Table:
    """The table of a program.

    Args:
        structure: Static part of the program.
        columns: Its numbers, each [rows, 1] or [rows, lots].
        chip: Leaves are scalars or [1, lots].
        smoothing: See `timing.smoothing`.
        dtype: Of the result.

    Returns:
        A `Table`; closing rows of loops still take no time.

    """
    chips = max((leaf.shape[-1] for leaf in [*jax.tree.leaves(chip), *columns.values()] if jnp.ndim(leaf)), default=1)
    lots = Cost(occupancy_s=chips, latency_s=chips, tiles=jnp.shape(columns["trips"])[-1])
    order = np.argsort(positions(structure)[:-1])
    in_order = {name: column[order] for name, column in columns.items()}  # groups are slices of these, which compile faster than rows
    costs, begin = [], 0
    for (engine, kind, static), rows in groups(structure):
        work = _Work(in_order, slice(begin, begin + len(rows)))
        begin += len(rows)
        cost = KINDS[engine][kind].cost(work, chip, smoothing, static)
        if structure.groups:  # a row of a group works tile by tile, as its group does
            cost = cost._replace(tiles=jnp.maximum(cost.tiles, work.group_tiles))
        costs.append([jnp.broadcast_to(jnp.asarray(x, dtype), (len(rows), size)) for x, size in zip(cost, lots, strict=True)])
    others = len(structure.engines) + 1 - begin
    costs.append([jnp.full((others, size), x, dtype) for x, size in zip((0.0, 0.0, 1.0), lots, strict=True)])
    occupancy_s, latency_s, tiles = (jnp.concatenate(parts) for parts in zip(*costs, strict=True))
    return Table(occupancy_s, latency_s - occupancy_s, occupancy_s / tiles, (tiles <= 1).astype(dtype))


class _Work:
    """Sizes of some rows, as a cost reads them: `work.m` is [rows, 1] or [rows, lots]."""

    def __init__(self, columns: Mapping[str, Any], rows: slice):
        self._columns, self._rows = columns, rows

    def __getattr__(self, name: str) -> Any:
        if name not in self._columns:
            raise AttributeError(name)
        return self._columns[name][self._rows]
