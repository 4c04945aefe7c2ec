"""Groups of steps that share one loop over tiles of rows: what they hand to each other never needs more of SBUF than a tile.

nc_matmul -> add -> gelu -> row maximum -> subtract -> exp         one pass over the rows, only what is read later is written
"""

from __future__ import annotations

from collections.abc import Sequence

from trn_jax.graph.chains import is_elementwise
from trn_jax.graph.graph import Op
from trn_jax.graph.instruction import PARTITIONS, Instruction
from trn_jax.timing.stream import Block, Step

ROW_BY_ROW = frozenset({"tensor_copy", "rng", "iota", "select"})


def locality(op: Op, instruction: Instruction) -> str:
    """How an instruction can share a loop over tiles of rows with its neighbours: see `Step`."""
    if instruction.engine == "tensor":
        return "head"
    if is_elementwise(op) or instruction.kind in ROW_BY_ROW:
        return "rows"
    if instruction.engine != "vector" or not op.inputs:
        return ""
    axes, rank = op.params.get("axes", op.params.get("axis")), len(op.inputs[0].shape)
    reduced = set(axes) if isinstance(axes, (tuple, list)) else {axes}
    if reduced == set(range(rank - len(reduced), rank)) and len(reduced) < rank:
        return "rows"
    return "sink" if instruction.kind == "tensor_reduce" else ""


def groups(items: Sequence[Step | Block]) -> list[int]:
    """For every item the number of its group; groups are runs of neighbours.

    A product starts a group, or joins the one that made the rows of its streamed operand, as the second product of attention does;
    steps that work row by row on as many rows (or on one number per row) join it. A step that reads a result of the group that is
    complete only after the last row starts a new one; loops, DMA and collectives stand alone.

    Basis: assumed (the order a kernel author writes; published kernels for norms, softmax and matmul epilogues do so).
    """
    result: list[int] = []
    number, rows, widest = -1, 0.0, 0.0  # rows is 0 where nothing can join
    incomplete: set[int] = set()
    made: set[int] = set()
    for item in items:
        if isinstance(item, Block) or not item.locality:
            number, rows = number + 1, 0.0
        else:
            elements = item.instruction.work.elements
            follows = item.locality != "head" or (item.streamed in made and len(made.intersection(item.reads)) == 1)
            joins = rows > 0 and follows and incomplete.isdisjoint(item.reads)
            if joins and (item.rows == rows or elements <= rows):
                widest = max(widest, elements)
            elif joins and widest <= item.rows:  # so far there was only one number per row
                rows, widest = item.rows, max(widest, elements)
            else:
                number, rows, widest, incomplete, made = number + 1, item.rows, elements, set(), set()
            made.update(item.writes)
            if item.locality == "sink":
                incomplete.update(item.writes)
        result.append(number)
    return result


def loop_tiles(items: Sequence[Step | Block], numbers: Sequence[int]) -> list[float]:
    """For every item the tiles of rows that it works through in its group's loop.

    One number per row is made tile by tile like the rows, whatever shape it has: the row maximum of a softmax is a vector.
    """
    rows: dict[int, float] = {}
    for item, number in zip(items, numbers, strict=True):
        if isinstance(item, Step):
            rows[number] = max(rows.get(number, 0.0), item.rows)
    result = []
    for item, number in zip(items, numbers, strict=True):
        own = 1.0 if isinstance(item, Block) else item.rows
        per_row = isinstance(item, Step) and item.instruction.work.elements == rows[number]
        result.append(max(1.0, (rows[number] if per_row else own) / PARTITIONS))
    return result
