"""Operands of products that lie with their rows on partitions: they were computed with one number per row, as a softmax is.

The Tensor Engine contracts over partitions, so a product over the columns of such an operand transposes it first, tile by tile,
through PSUM. Other operands can be made (or kept in HBM) in the layout in which they are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trn_jax.engines.dot_layout import DotLayout
from trn_jax.graph.graph import Op
from trn_jax.graph.instruction import Instruction, Work
from trn_jax.timing.stream import Step
from trn_jax.units import MIB

KEPT_BYTES = 6 * MIB  # of the other operand of a product that joins the loop over rows of its first: a quarter of SBUF. Basis: assumed


def contracts_columns(op: Op, instruction: Instruction, side: int) -> bool:
    """Whether a product sums over the innermost axis of an operand."""
    if not isinstance(instruction.layout, DotLayout):
        return False
    shape, contracted = op.inputs[side].shape, instruction.layout.dimension_numbers[0][side]
    return len(shape) > 1 and len(shape) - 1 in contracted and shape[-1] > 1


def transpose_steps(
    instruction: Instruction, op: Op, side: int, reads: int, results: Sequence[int], after: tuple[int, ...], scope: str
) -> list[Step]:
    """The transpose of an operand of a product on the Tensor Engine, and its way out of PSUM; `results` are what the two make."""
    value = op.inputs[side]
    columns = float(value.shape[-1])
    rows = value.size / columns
    work = Work(m=rows, n=columns, elements=float(value.size), rows=rows)
    transpose = Instruction(
        engine="tensor",
        kind="nc_transpose",
        function="transpose",
        work=work,
        operand_formats=(instruction.operand_formats[side],) * 2,
        write_formats=("",),
        narrow=instruction.narrow,
    )
    evacuate = Instruction(engine="vector", kind="tensor_copy", function="evacuate", work=replace(work, m=0.0, n=0.0), write_formats=("",))
    return [
        Step(
            instruction=made,
            reads=(source,),
            writes=(result,),
            after=after,
            rows=rows,
            locality="rows",
            functions=(made.function,),
            sources=(op.source,),
            scopes=(scope,),
        )
        for made, source, result in zip((transpose, evacuate), (reads, results[0]), results, strict=True)
    ]


def row_side(op: Op, instruction: Instruction, rows: float) -> int | None:
    """The operand whose rows a product can work through one tile after the other while the other one stays in SBUF; None if neither."""
    for side in (0, 1):
        value, other = op.inputs[side], op.inputs[1 - side]
        kept = other.size_bytes / max(1.0, instruction.work.batch) <= KEPT_BYTES
        if contracts_columns(op, instruction, side) and kept and value.size / value.shape[-1] == rows:
            return side
    return None
