"""Vector and Scalar share a loop: copies, evacuations and affine steps go to whichever of the two has less to do.

The Scalar Engine does what func(scale x + bias) can do. The choice is made once, from columns and the ratio of the two clocks, which is
the same in all generations, so it is one fixed plan: no change of a chip can make it worse by choosing differently. A switch of the
Scalar Engine's table counts as its longest load in any generation; the first one of a program hides behind the first DMA.

Basis: documented (NKI: tensor_copy and tensor_scalar run on either engine; clocks 1.12 and 1.4, 0.96 and 1.2 GHz).
"""

from __future__ import annotations

from dataclasses import replace

from trn_jax.timing.groups import groups
from trn_jax.timing.passes.elementwise import AFFINE, CASTS
from trn_jax.timing.stream import Block, Items, Step, Stream
from trn_jax.timing.table_loads import needed_tables

CLOCK_RATIO = 1.25  # Scalar over Vector
SMALLEST = 128 * 512.0  # elements from which moving a step can help
SWITCH = 128 * 1536.0  # elements that the Scalar Engine streams while it loads a table: 1.28 us at 1.2 GHz, Trainium2 and 3
MOVABLE = frozenset({*AFFINE, *CASTS, "evacuate", "divide"})


def balance_engines(stream: Stream) -> Stream:
    """Moves 32-bit copies and affine steps of the Vector Engine to the Scalar Engine where that shortens their group's longer side."""
    return replace(stream, items=_items(stream.items, ""))


def _items(items: Items, loaded: str) -> Items:
    """Items with the table that is loaded before them, "" for one that may be loaded beforehand."""
    switches = _switches(items, loaded)
    result = [
        replace(item, items=_items(item.items, "".join(needed_tables(item.items)[-1:]))) if isinstance(item, Block) else item
        for item in items
    ]
    members: dict[int, list[int]] = {}
    for position, number in enumerate(groups(items)):
        members.setdefault(number, []).append(position)
    for positions in members.values():
        vector = sum(_columns(result[position], "vector") for position in positions)
        scalar = sum(_columns(result[position], "scalar") + SWITCH * switches[position] for position in positions) / CLOCK_RATIO
        for position in positions:
            step = result[position]
            moved = _on_scalar(step) if isinstance(step, Step) else None
            if moved is None:
                continue
            columns = moved.instruction.work.elements
            if max(vector - columns, scalar + columns / CLOCK_RATIO) < max(vector, scalar):
                vector, scalar, result[position] = vector - columns, scalar + columns / CLOCK_RATIO, moved
    return tuple(result)


def _switches(items: Items, loaded: str) -> list[bool]:
    """For every step whether it needs another table than the one before."""
    result = []
    for item in items:
        needed = needed_tables([item])
        result.append(isinstance(item, Step) and bool(needed and loaded) and needed[0] != loaded)
        loaded = needed[-1] if needed else loaded
    return result


def _columns(item: Step | Block, engine: str) -> float:
    """Elements times streams of a step on this engine."""
    if isinstance(item, Block) or item.instruction.engine != engine:
        return 0.0
    streams = item.instruction.work.operands if item.instruction.kind == "tensor_tensor" else 1.0
    return item.instruction.work.elements * max(1.0, streams)


def _on_scalar(step: Step) -> Step | None:
    """The step on the Scalar Engine if it can run there as fast, column by column."""
    i = step.instruction
    fits = i.engine == "vector" and not i.narrow and i.work.elements >= SMALLEST and MOVABLE.issuperset(step.functions)
    if not fits or i.kind not in ("tensor_copy", "tensor_scalar"):
        return None
    return replace(step, instruction=replace(i, engine="scalar", kind="tensor_copy" if i.kind == "tensor_copy" else "activation"))
