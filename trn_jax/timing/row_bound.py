"""Operands of products that lie with their rows on partitions: they were computed with one number per row, as a softmax is.

The Tensor Engine contracts over partitions, so a product over the columns of such an operand transposes it first, tile by tile,
through PSUM. Other operands can be made (or kept in HBM) in the layout in which they are read.
"""

from __future__ import annotations

from dataclasses import replace

from trn_jax.engines.dot_layout import DotLayout
from trn_jax.graph.graph import Op, Value
from trn_jax.graph.instruction import Instruction, Work
from trn_jax.units import MIB

KEPT_BYTES = 6 * MIB  # of the other operand of a product that joins the loop over rows of its first: a quarter of SBUF. Basis: assumed


def contracts_columns(op: Op, instruction: Instruction, side: int) -> bool:
    """Whether a product sums over the innermost axis of an operand."""
    if not isinstance(instruction.layout, DotLayout):
        return False
    shape, contracted = op.inputs[side].shape, instruction.layout.dimension_numbers[0][side]
    return len(shape) > 1 and len(shape) - 1 in contracted and shape[-1] > 1


def transpose_instructions(instruction: Instruction, value: Value, side: int) -> tuple[Instruction, Instruction]:
    """The transpose of an operand on the Tensor Engine, and its way out of PSUM."""
    columns = float(value.shape[-1])
    work = Work(m=value.size / columns, n=columns, elements=float(value.size), rows=value.size / columns)
    transpose = Instruction(
        engine="tensor",
        kind="nc_transpose",
        function="transpose",
        work=work,
        operand_formats=(instruction.operand_formats[side],) * 2,
        write_formats=("",),
        narrow=instruction.narrow,
    )
    return transpose, Instruction(
        engine="vector", kind="tensor_copy", function="evacuate", work=replace(work, m=0.0, n=0.0), write_formats=("",)
    )


def row_side(op: Op, instruction: Instruction, rows: float) -> int | None:
    """The operand whose rows a product can work through one tile after the other while the other one stays in SBUF; None if neither."""
    for side in (0, 1):
        value, other = op.inputs[side], op.inputs[1 - side]
        kept = other.size_bytes / max(1.0, instruction.work.batch) <= KEPT_BYTES
        if contracts_columns(op, instruction, side) and kept and value.size / value.shape[-1] == rows:
            return side
    return None
