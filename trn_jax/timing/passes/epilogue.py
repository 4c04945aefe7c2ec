"""Matmul epilogues: the element-wise instruction that alone reads a product takes it from PSUM itself.

nc_matmul -> PSUM -> tensor_copy -> SBUF -> activation     becomes     nc_matmul -> PSUM -> activation

Basis: documented (NKI: Vector and Scalar read PSUM; a tensor_tensor with one operand in PSUM streams once).
"""

from __future__ import annotations

from dataclasses import replace

from trn_jax.timing.stream import Block, Items, Step, Stream


def fuse_epilogues(stream: Stream) -> Stream:
    """Drops the evacuation of products whose only reader is an element-wise Vector or Scalar instruction.

    PSUM holds 2 MiB, so a product waits there only until the next one: a reader behind another nc_matmul keeps the copy.
    """
    readers = stream.readers()
    alone = {datum for datum, count in readers.items() if count == 1 and datum not in stream.outputs}
    return replace(stream, items=_items(stream, stream.items, alone))


def _items(stream: Stream, items: Items, alone: set[int]) -> Items:
    result: list[Step | Block | None] = []
    waiting: dict[int, int] = {}  # evacuated product -> position of its evacuation, since the last nc_matmul
    for position, item in enumerate(items):
        if isinstance(item, Block):
            waiting.clear()
            item = replace(item, items=_items(stream, item.items, alone))
        elif item.instruction.kind == "nc_matmul":
            waiting.clear()
        elif _is_evacuation(stream, item):
            if item.writes[0] in alone:
                waiting[item.writes[0]] = position
        elif item.elementwise and item.instruction.engine in ("vector", "scalar"):
            for datum in item.reads:
                copy = result[waiting[datum]] if datum in waiting else None
                if isinstance(copy, Step):
                    item, result[waiting.pop(datum)] = _from_psum(item, datum, copy), None
        result.append(item)
    return tuple(item for item in result if item is not None)


def _is_evacuation(stream: Stream, step: Step) -> bool:
    return step.instruction.kind == "tensor_copy" and len(step.reads) == 1 and stream.data[step.reads[0]].place == "psum"


def _from_psum(step: Step, evacuated: int, copy: Step) -> Step:
    """The step reading the product where the evacuation read it; PSUM is fp32, so the 16-bit fast modes are off."""
    instruction, functions = step.instruction, (*copy.functions, *step.functions)
    if instruction.kind == "tensor_tensor":
        instruction = replace(instruction, work=replace(instruction.work, operands=1.0))
    return replace(
        step,
        instruction=replace(instruction, function="+".join(functions), narrow=False),
        functions=functions,
        reads=tuple(dict.fromkeys(copy.reads[0] if read == evacuated else read for read in step.reads)),
        after=tuple(dict.fromkeys((*copy.after, *step.after))),
        sources=tuple(dict.fromkeys((*copy.sources, *step.sources))),
        scopes=tuple(dict.fromkeys((*copy.scopes, *step.scopes))),
    )
