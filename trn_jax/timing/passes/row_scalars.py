"""Row scalars: an operand that is one number per row is a scalar of `tensor_scalar`, not a second tensor.

x - max(x, axis=-1)[..., None]:  tensor_tensor, two streams  ->  tensor_scalar, one stream

Basis: documented (NKI: the scalar operand of tensor_scalar is a constant or one value per partition).
"""

from __future__ import annotations

from dataclasses import replace

from trn_jax.timing.stream import Step, Stream, each_step


def use_row_scalars(stream: Stream) -> Stream:
    """Turns each Vector tensor_tensor with at most one operand that varies along its rows into a tensor_scalar."""
    return replace(stream, items=each_step(stream.items, _with_scalar))


def _with_scalar(step: Step) -> Step:
    i = step.instruction
    if (i.engine, i.kind) != ("vector", "tensor_tensor") or step.tensors > 1:
        return step
    return replace(step, instruction=replace(i, kind="tensor_scalar", work=replace(i.work, operands=1.0)))
