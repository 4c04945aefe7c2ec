"""Formats that values are in already: rounding a value once more to the format that it was written in changes nothing.

Leaving such roundings out changes no value. It is for speed: a product's operands were mostly written by an instruction that
rounded them, and data that only moves stays what it was. What a call or a loop gives back is taken as not rounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trn_jax.graph.graph import Constant, Op, Value
from trn_jax.graph.instruction import Instruction
from trn_jax.graph.rules.elementwise import EXACT
from trn_jax.numerics import format_of

Held = dict[Value, str]  # format that a value of a wider dtype was last rounded to


def without_idle_roundings(op: Op, instructions: Sequence[Instruction], held: Held) -> tuple[Instruction, ...]:
    """The same instructions, with "" in place of every format in which the values are already."""
    if not held:
        return tuple(instructions)
    shared = _shared_format(op, held) if op.name in EXACT else ""
    return tuple(
        replace(
            i,
            operand_formats=tuple("" if held.get(x) == fmt else fmt for fmt, x in zip(i.operand_formats, op.inputs, strict=False)),
            write_formats=tuple("" if fmt == shared else fmt for fmt in i.write_formats),
        )
        for i in instructions
    )


def note_formats(op: Op, instructions: Sequence[Instruction], held: Held) -> None:
    """Adds the formats of an op's outputs, from the instructions as the rules gave them."""
    moves = all(instruction.engine == "dma" and not any(instruction.write_formats) for instruction in instructions)
    shared = _shared_format(op, held) if moves or op.name in EXACT else ""
    for position, value in enumerate(op.outputs):
        written = instructions[-1].write_formats[position] if instructions and instructions[-1].write_formats else ""
        if value.is_float and (shared or written):
            held[value] = shared or written


def _shared_format(op: Op, held: Held) -> str:
    """The one format of all floating point operands, or ""; a literal has none, unless it is the zero that pads."""
    formats = {held.get(value, "") or format_of(value.dtype) or "" for value in op.inputs if value.is_float and not _is_zero(value)}
    return formats.pop() if len(formats) == 1 else ""


def _is_zero(value: Value) -> bool:
    return isinstance(value, Constant) and value.value == 0
