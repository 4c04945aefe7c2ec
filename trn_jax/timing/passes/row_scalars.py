"""Row scalars: an operand that is one number per row is a scalar of `tensor_scalar`, not a second tensor.

x - max(x, axis=-1)[..., None]:  tensor_tensor, two streams  ->  tensor_scalar, one stream

Basis: documented (NKI: the scalar operand of tensor_scalar is a constant or one value per partition).
"""

from __future__ import annotations

from dataclasses import replace

from trn_jax.timing.stream import Block, Items, Stream


def use_row_scalars(stream: Stream) -> Stream:
    """Turns each Vector tensor_tensor with at most one operand that varies along its rows into a tensor_scalar."""
    return replace(stream, items=_items(stream.items))


def _items(items: Items) -> Items:
    rewritten = []
    for item in items:
        if isinstance(item, Block):
            item = replace(item, items=_items(item.items))
        elif (item.instruction.engine, item.instruction.kind) == ("vector", "tensor_tensor") and item.tensors <= 1:
            work = replace(item.instruction.work, operands=1.0)
            item = replace(item, instruction=replace(item.instruction, kind="tensor_scalar", work=work))
        rewritten.append(item)
    return tuple(rewritten)
