"""Row reductions: the instruction that makes a tensor also reduces its rows.

activation, then tensor_reduce add              becomes     activation_reduce        the sum is accumulated while the function is evaluated
tensor_scalar or a copy, then tensor_reduce     becomes     tensor_scalar_reduce     so evacuation, scale and row maximum are one pass
cast, then tensor_reduce                        becomes     tensor_reduce            a cast on read is free

Basis: documented (NKI instruction reference: activation_reduce and tensor_scalar_reduce take 64 cycles more than without; published
attention kernels do both).
"""

from __future__ import annotations

from dataclasses import replace

from trn_jax.timing.passes.elementwise import CASTS
from trn_jax.timing.stream import Block, Items, Step, Stream

ALONG_ROWS = frozenset({"add", "maximum"})


def fuse_reductions(stream: Stream) -> Stream:
    """Merges reductions along rows into the step that makes what they reduce."""
    readers = stream.readers()
    return replace(stream, items=_items(stream, stream.items, readers))


def _items(stream: Stream, items: Items, readers: dict[int, int]) -> Items:
    result: list[Step | Block | None] = []
    maker: dict[int, int] = {}  # data -> position of the step that makes them
    for position, item in enumerate(items):
        if isinstance(item, Block):
            item = replace(item, items=_items(stream, item.items, readers))
        elif _reduces_rows(item):
            (datum,) = item.reads
            cast = _step(result, maker, datum)
            if cast is not None and _is_cast(cast) and readers[datum] == 1 and datum not in stream.outputs:
                item, result[maker[datum]] = replace(item, reads=cast.reads, sources=(*cast.sources, *item.sources)), None
                (datum,) = cast.reads
            producer = _step(result, maker, datum)
            merged = None if producer is None else _merged(producer, item)
            if merged is not None:
                result[maker[datum]], place = merged, maker[datum]
                maker.update((made, place) for made in item.writes)
                result.append(None)
                continue
        if isinstance(item, Step):
            maker.update((datum, position) for datum in item.writes)
        result.append(item)
    return tuple(item for item in result if item is not None)


def _step(result: list[Step | Block | None], maker: dict[int, int], datum: int) -> Step | None:
    found = result[maker[datum]] if datum in maker else None
    return found if isinstance(found, Step) else None


def _reduces_rows(step: Step) -> bool:
    i = step.instruction
    return i.kind == "tensor_reduce" and i.function in ALONG_ROWS and step.locality == "rows" and len(step.reads) == 1


def _is_cast(step: Step) -> bool:
    return step.instruction.kind == "tensor_copy" and CASTS.issuperset(step.functions) and len(step.reads) == 1


def _merged(producer: Step, reduction: Step) -> Step | None:
    """The producer that also reduces, if there is an instruction for both; it can reduce once."""
    made, reduced = producer.instruction, reduction.instruction
    if made.work.elements != reduced.work.elements or len(producer.writes) != 1:
        return None
    if made.kind == "activation" and reduced.function == "add":
        kind = "activation_reduce"
    elif made.engine == "vector" and made.kind in ("tensor_scalar", "tensor_copy"):
        kind = "tensor_scalar_reduce"
    else:
        return None
    return replace(
        producer,
        instruction=replace(made, kind=kind, narrow=False, function=f"{made.function}+{reduced.function}"),
        writes=(*producer.writes, *reduction.writes),
        after=tuple(dict.fromkeys((*producer.after, *reduction.after))),
        elementwise=False,
        functions=(*producer.functions, *reduction.functions),
        sources=tuple(dict.fromkeys((*producer.sources, *reduction.sources))),
        scopes=tuple(dict.fromkeys((*producer.scopes, *reduction.scopes))),
    )
