"""Primitives that move data: access patterns are views, copies go to the DMA engines, indexing and sorting to GpSimd.

Basis: documented (NKI: strided access patterns are free, dma_copy and dma_transpose, indirect DMA with descriptors made by
GpSimd); assumed where said.
"""

from __future__ import annotations

from trn_jax.graph.graph import Op
from trn_jax.graph.instruction import Instruction, Work
from trn_jax.graph.numerics import Numerics
from trn_jax.graph.rules.registry import register_rule, register_views, streaming, writes

register_views(
    "reshape",
    "squeeze",
    "expand_dims",
    "broadcast_in_dim",
    "slice",
    "split",
    "unstack",
    "empty",
    "empty2",
    "split_p",
    "to_edtype",
    "from_edtype",
)


def _copy(op: Op, numerics: Numerics, kind: str, elements_bytes: int, row_elements: int, itemsize: int) -> Instruction:
    unrounded = tuple("" for _ in op.outputs)
    return Instruction(
        engine="dma",
        kind=kind,
        function=op.name,
        work=Work(
            elements=sum(value.size for value in op.outputs), bytes=elements_bytes, row_bytes=max(1, min(row_elements * itemsize, 65536))
        ),
        write_formats=unrounded,
    )


def _row(op: Op) -> tuple[int, int]:
    """Elements in the innermost dimension of the output that has more than one, and bytes per element."""
    value = op.outputs[0]
    return next((size for size in reversed(value.shape) if size > 1), 1), max(1, value.size_bytes // max(1, value.size))


@register_rule("concatenate", "stack", "pad", "rev", "tile", "dynamic_slice")
def _dma_copy(op: Op, numerics: Numerics) -> Instruction:
    return _copy(op, numerics, "dma_copy", sum(value.size_bytes for value in op.outputs), *_row(op))


@register_rule("dynamic_update_slice")
def _update_slice(op: Op, numerics: Numerics) -> Instruction:
    """Only the update moves: the buffer is written in place, as XLA does when it is not used again."""
    update = op.inputs[1]
    return _copy(op, numerics, "dma_copy", update.size_bytes, update.shape[-1] if update.shape else 1, _row(op)[1])


@register_rule("transpose")
def _transpose(op: Op, numerics: Numerics) -> tuple[Instruction, ...]:
    """A view while the innermost axis stays innermost, otherwise a DMA transpose."""
    permutation, shape = op.params["permutation"], op.inputs[0].shape
    moved = [axis for axis in permutation if shape[axis] > 1]
    if not moved or moved[-1] == max(moved):
        return ()
    return (_copy(op, numerics, "dma_transpose", op.outputs[0].size_bytes, *_row(op)),)


@register_rule("gather")
def _gather(op: Op, numerics: Numerics) -> Instruction:
    """Indirect DMA: one descriptor per gathered slice."""
    row = 1
    for size in reversed(op.params["slice_sizes"]):
        row *= size
    return _indirect(op, "gather", op.outputs[0].size_bytes, row, op.outputs[0])


SCATTERS = ("scatter", *(f"scatter{dash}{kind}" for dash in "-_" for kind in ("add", "mul", "min", "max", "sub")))


@register_rule(*SCATTERS)
def _scatter(op: Op, numerics: Numerics) -> Instruction:
    """Indirect DMA of the updates into a buffer written in place; accumulating ones read what is there first."""
    updates = op.inputs[2]
    row = updates.shape[-1] if updates.shape else 1
    moved = updates.size_bytes * (1 if op.name == "scatter" else 2)
    instruction = _indirect(op, "scatter", moved, row, updates)
    accumulates = op.name != "scatter"
    return instruction if not accumulates else _with_writes(instruction, writes(op, numerics))


def _indirect(op: Op, kind: str, moved_bytes: int, row_elements: int, moved: object) -> Instruction:
    itemsize = max(1, op.outputs[0].size_bytes // max(1, op.outputs[0].size))
    return Instruction(
        engine="gpsimd",
        kind=kind,
        function=op.name,
        work=Work(elements=getattr(moved, "size", 0), bytes=moved_bytes, row_bytes=max(1, min(row_elements * itemsize, 65536))),
        write_formats=tuple("" for _ in op.outputs),
    )


def _with_writes(instruction: Instruction, formats: tuple[str, ...]) -> Instruction:
    return Instruction(
        engine=instruction.engine, kind=instruction.kind, function=instruction.function, work=instruction.work, write_formats=formats
    )


@register_rule("iota")
def _iota(op: Op, numerics: Numerics) -> Instruction:
    return streaming(op, numerics, "gpsimd", "iota")


@register_rule("axis_index")
def _axis_index(op: Op, numerics: Numerics) -> Instruction:
    """A register of the sequencer, written out."""
    return streaming(op, numerics, "gpsimd", "iota")


@register_rule("sort", "approx_top_k")
def _sort(op: Op, numerics: Numerics) -> Instruction:
    return _moving(streaming(op, numerics, "gpsimd", "sort"), op)


@register_rule("top_k")
def _top_k(op: Op, numerics: Numerics) -> Instruction:
    instruction = streaming(op, numerics, "gpsimd", "topk")
    work = instruction.work
    k = op.params.get("k", op.outputs[0].shape[-1])
    sized = Work(elements=work.elements, operands=work.operands, rows=work.rows, k=k, n=op.inputs[0].shape[-1])
    return Instruction(
        engine="gpsimd", kind="topk", function="top_k", work=sized, write_formats=tuple("" for _ in op.outputs), narrow=instruction.narrow
    )


def _moving(instruction: Instruction, op: Op) -> Instruction:
    return _with_writes(instruction, tuple("" for _ in op.outputs))


@register_rule("debug_callback", "pure_callback", "io_callback", "debug_print")
def _callback(op: Op, numerics: Numerics) -> Instruction:
    """The operands leave for the host, the results come back."""
    return _copy(op, numerics, "dma_copy", sum(value.size_bytes for value in (*op.inputs, *op.outputs)), 1024, 4)


register_views("create_token", "after_all")
