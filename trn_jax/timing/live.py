"""Dead code: steps and carried values that no output, effect or live step needs are dropped, as XLA drops them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from trn_jax.timing.stream import Block, Items, Step, Stream, writes_of


def live(stream: Stream) -> Stream:
    """The stream without dead steps, dead loops, and dead carries and stacks of live loops."""
    items, _ = _live_items(stream, stream.items, {stream.origin(datum) for datum in stream.outputs})
    return replace(stream, items=items)


def _live_items(stream: Stream, items: Items, needed: set[int]) -> tuple[Items, set[int]]:
    """The items that `needed` data depends on, and everything needed before them (which includes `needed`)."""
    needed, kept = set(needed), []
    for item in reversed(items):
        if isinstance(item, Block):
            item, reads = _live_block(stream, item, needed)
            if item is None:
                continue
        elif item.pinned or not needed.isdisjoint(item.writes):
            reads = (*item.reads, *item.after)
        else:
            continue
        kept.append(item)
        needed.update(map(stream.origin, reads))
    return tuple(reversed(kept)), needed


def _live_block(stream: Stream, block: Block, needed: set[int]) -> tuple[Block | None, Iterable[int]]:
    """The live part of a loop and what it reads; a carry lives if its result or any live step of an iteration needs it."""
    stacked = tuple(stack for stack in block.stacked if stack.whole in needed)
    carries = tuple(carry for carry in block.carries if carry.after in needed)
    if not (stacked or carries or needed.intersection(writes_of(block)) or _has_effect(block.items)):
        return None, ()
    while True:
        wanted = [*block.condition, *(d for stack in stacked for d in stack.part), *(d for carry in carries for d in carry.following)]
        items, inside = _live_items(stream, block.items, needed.union(map(stream.origin, wanted)))
        again = tuple(carry for carry in block.carries if carry in carries or carry.inside in inside)
        if again == carries:
            break
        carries = again
    sliced = tuple(cut for cut in block.sliced if cut.part in inside)
    outer = [d for carry in carries for d in carry.before] + [d for cut in sliced for d in cut.whole]
    return replace(block, items=items, carries=carries, stacked=stacked, sliced=sliced), (*inside, *outer)


def _has_effect(items: Items) -> bool:
    return any(item.pinned if isinstance(item, Step) else _has_effect(item.items) for item in items)
