"""Row vectors: an operand that is the same in all rows is read from PSUM, where a tensor_tensor takes one stream instead of two.

x * gain[None, :]:  two SBUF operands, 2 N cycles  ->  one in SBUF and one in PSUM, N cycles

A product with ones writes such a row to all partitions of PSUM; the Tensor Engine has the time, and it is not priced. 16-bit
operands in SBUF take N cycles as it is.

Basis: documented (NKI: tensor_tensor with one operand in PSUM; broadcasting over partitions by a product with ones); the fastest
published Mamba kernel takes 6 N cycles for a step of three such instructions, its scan and a sum, as this says.
"""

from __future__ import annotations

from dataclasses import replace

from trn_jax.timing.stream import Block, Items, Stream


def use_row_vectors(stream: Stream) -> Stream:
    """Gives each 32-bit Vector tensor_tensor with an operand that is the same in all rows one stream."""
    return replace(stream, items=_items(stream.items))


def _items(items: Items) -> Items:
    rewritten = []
    for item in items:
        if isinstance(item, Block):
            item = replace(item, items=_items(item.items))
        elif item.equal_rows and (item.instruction.engine, item.instruction.kind) == ("vector", "tensor_tensor"):
            if not item.instruction.narrow and item.instruction.work.operands == 2:
                item = replace(item, instruction=replace(item.instruction, work=replace(item.instruction.work, operands=1.0)))
        rewritten.append(item)
    return tuple(rewritten)
