"""Element-wise chains: two neighbours of a chain become one hardware instruction where NKI has one that does both.

first          then           becomes         because
tensor_scalar  activation     activation      scale and bias of an activation are free (two operations before it)
tensor_scalar  tensor_scalar  tensor_scalar   it does two operations in one pass
tensor_scalar  tensor_tensor  tensor_tensor   scalar_tensor_tensor; not for 16-bit data, whose separate fast modes are faster
any            tensor_copy    the first       a cast on write is free, so is a copy
tensor_copy    any            the second      a cast on read is free

Inside a chain (see `graph.chains`) a result is read by the next step alone, and is as large as what it is made from, so that
keeping that until the later instruction takes no more of SBUF. Basis: documented (NKI instruction reference).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trn_jax.timing.stream import Block, Items, Step, Stream, walk
from trn_jax.timing.table_loads import table_set

AFFINE = frozenset({"add", "subtract", "multiply", "negative"})
SINGLE = frozenset(
    {
        "add",
        "subtract",
        "multiply",
        "divide",
        "maximum",
        "minimum",
        "negative",
        "abs",
        "power",
        "square",
        "equal",
        "not_equal",
        "less",
        "less_equal",
        "greater",
        "greater_equal",
    }
)
CASTS = frozenset({"cast", "copy"})
OPERATIONS = 2  # of one tensor_scalar or scalar_tensor_tensor, and before an activation's function


def fuse_elementwise(stream: Stream) -> Stream:
    """Merges neighbours of element-wise chains, in program order, into the later one."""
    return replace(stream, items=_items(stream.items))


def _items(items: Items) -> Items:
    result: list[Step | Block | None] = []
    maker: dict[int, int] = {}  # result of a step of a chain, which no step outside the chain reads -> position of the step
    for position, item in enumerate(items):
        if isinstance(item, Block):
            item = replace(item, items=_items(item.items))
        elif item.chain >= 0:
            for datum in item.reads:
                first = maker.get(datum)
                producer = None if first is None else result[first]
                if first is None or not isinstance(producer, Step) or producer.chain != item.chain:
                    continue
                merged = _merged(producer, item, datum)
                if merged is not None and not _passes_another_table(producer, result[first + 1 :]):
                    item, result[first] = merged, None
            maker.update((datum, position) for datum in item.writes)
        result.append(item)
    return tuple(item for item in result if item is not None)


def _passes_another_table(step: Step, between: Sequence[Step | Block | None]) -> bool:
    """Whether a function would move past one that needs another table."""
    table = table_set(step.instruction)
    inner = walk([item for item in between if item is not None]) if table else ()
    return any(isinstance(item, Step) and table_set(item.instruction) not in ("", table) for item in inner)


def _merged(first: Step, second: Step, between: int) -> Step | None:
    """One step for two where the hardware has an instruction for both."""
    kept = _instruction_of_both(first, second)
    if kept is None:
        return None
    instruction = replace(
        kept.instruction,
        function="+".join((*first.functions, *second.functions)),
        narrow=first.instruction.narrow and second.instruction.narrow,
        write_formats=second.instruction.write_formats,
    )
    return replace(
        second,
        instruction=instruction,
        reads=tuple(dict.fromkeys((*first.reads, *(read for read in second.reads if read != between)))),
        after=tuple(dict.fromkeys((*first.after, *second.after))),
        tensors=kept.tensors,
        functions=(*first.functions, *second.functions),
        sources=(*first.sources, *second.sources),
        scopes=(*first.scopes, *second.scopes),
    )


def _instruction_of_both(first: Step, second: Step) -> Step | None:
    """The step whose instruction can also do the other's work, or None."""
    a, b = first.instruction, second.instruction
    if a.engine not in ("vector", "scalar") or b.engine not in ("vector", "scalar"):
        return None
    if _is_cast(second):
        return first
    if _is_cast(first):
        return second
    if a.kind != "tensor_scalar" or not SINGLE.issuperset(_arithmetic(first)):
        return None
    operations = len(_arithmetic(first)) + len(_arithmetic(second))
    if b.kind == "activation":
        return second if operations - 1 <= OPERATIONS and AFFINE.issuperset(_arithmetic(first)) else None
    fits = operations <= OPERATIONS and SINGLE.issuperset(_arithmetic(second))
    if b.kind == "tensor_scalar" or (b.kind == "tensor_tensor" and not (a.narrow or b.narrow)):
        return second if fits else None
    return None


def _is_cast(step: Step) -> bool:
    return step.instruction.kind == "tensor_copy" and CASTS.issuperset(step.functions)


def _arithmetic(step: Step) -> tuple[str, ...]:
    """What a step does, without casts."""
    return tuple(function for function in step.functions if function not in CASTS)
