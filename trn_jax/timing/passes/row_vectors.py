"""Row vectors: an operand that is the same in all rows is read from PSUM, where a tensor_tensor takes one stream instead of two.

x * gain[None, :]:  two SBUF operands, 2 N cycles  ->  one in SBUF and one in PSUM, N cycles

A product with ones writes such a row to all partitions of PSUM; the Tensor Engine has the time, and it is not priced. 16-bit
operands in SBUF take N cycles as it is.

Basis: documented (NKI: tensor_tensor with one operand in PSUM; broadcasting over partitions by a product with ones); the fastest
published Mamba kernel takes 6 N cycles for a step of three such instructions, its scan and a sum, as this says.
"""

from __future__ import annotations

from dataclasses import replace

from trn_jax.timing.stream import Step, Stream, each_step


def use_row_vectors(stream: Stream) -> Stream:
    """Gives each 32-bit Vector tensor_tensor with an operand that is the same in all rows one stream."""
    return replace(stream, items=each_step(stream.items, _with_row_in_psum))


def _with_row_in_psum(step: Step) -> Step:
    i = step.instruction
    if (i.engine, i.kind) != ("vector", "tensor_tensor") or not step.equal_rows or i.narrow or i.work.operands != 2:
        return step
    return replace(step, instruction=replace(i, work=replace(i.work, operands=1.0)))
