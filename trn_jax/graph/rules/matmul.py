"""Contractions: the Tensor Engine multiplies into PSUM in fp32, then PSUM is evacuated to SBUF, rounding on the way.

Basis: documented (NKI: nc_matmul reads SBUF and writes PSUM; results leave PSUM through the Vector or Scalar Engine).
"""

from __future__ import annotations

from typing import Any

from trn_jax.engines import layout as layouts
from trn_jax.errors import UnsupportedError
from trn_jax.graph.graph import Op
from trn_jax.graph.instruction import Instruction, Work
from trn_jax.graph.numerics import AutoCast, Numerics
from trn_jax.graph.rules.registry import register_rule, rows, streaming, writes
from trn_jax.numerics import BLOCK_FORMATS, format_of


def _matmul(
    op: Op, numerics: Numerics, layout: Any, sizes: tuple[float, float, float, float], depth_axes: tuple[int, int] | None = None
) -> tuple[Instruction, ...]:
    batch, m, k, n = sizes
    output = op.outputs[0]
    formats = tuple(
        numerics.operand_format(value.dtype, cotangent=side == op.cotangent) if numerics.rounds else format_of(value.dtype) or "fp32"
        for side, value in enumerate(op.inputs[:2])
    )
    recipe = numerics.autocast if numerics.rounds and op.outputs[0].is_float else AutoCast()
    if layout is None and (recipe.is_recipe or numerics.psum != "fp32"):
        raise UnsupportedError(
            f"{op.name!r} at {op.source} cannot have block formats, scaled operands, a backward format or a bf16 PSUM: its groups have no "
            "fixed K tiles. Use a plain AutoCast, or one dot per group."
        )
    multiply = Instruction(
        engine="tensor",
        kind="nc_matmul",
        function=op.name,
        work=Work(batch=batch, m=m, k=k, n=n, elements=output.size, rows=rows(output)),
        operand_formats=formats,
        scaling=recipe.scaling or "",
        cotangent_format="" if op.cotangent is not None else recipe.backward or "",
        write_formats=("",),
        layout=layout,
        depth_axes=depth_axes,
    )
    evacuate = Instruction(
        engine="vector",
        kind="tensor_copy",
        function="evacuate",
        work=Work(elements=output.size, rows=rows(output)),
        write_formats=writes(op, numerics),
    )
    return *_quantisation(op, formats), multiply, evacuate


def _quantisation(op: Op, formats: tuple[str, ...]) -> tuple[Instruction, ...]:
    """What makes MX operands out of wider ones; nc_matmul, which reads the same operands, rounds their values."""
    cast = [(value, BLOCK_FORMATS[fmt]) for value, fmt in zip(op.inputs, formats, strict=False) if fmt in BLOCK_FORMATS]
    if not cast:
        return ()
    work = Work(elements=sum(value.size for value, _ in cast), bytes=sum(value.size * fmt.storage_bits / 8 for value, fmt in cast))
    return (Instruction(engine="vector", kind="quantize_mx", function="quantize_mx", work=work, write_formats=("",)),)


@register_rule("dot_general")
def _dot_general(op: Op, numerics: Numerics) -> tuple[Instruction, ...]:
    layout = layouts.DotLayout(op.params["dimension_numbers"])
    return _matmul(op, numerics, layout, layout.sizes(op.inputs[0].shape, op.inputs[1].shape))


@register_rule("conv_general_dilated")
def _convolution(op: Op, numerics: Numerics) -> tuple[Instruction, ...]:
    """The work leaves out zeros that a dilation of the input inserts; they are multiplied only where values are computed."""
    layout = layouts.ConvLayout.from_params(op.params)
    shapes = op.inputs[0].shape, op.inputs[1].shape
    sizes = layout.sizes(*shapes)
    m, k = layout.dense_rows_and_depth(*shapes)
    return _matmul(op, numerics, layout, (sizes.batch, m, k, sizes.n))


@register_rule("ragged_dot_general", "ragged_dot")
def _ragged_dot(op: Op, numerics: Numerics) -> tuple[Instruction, ...]:
    """Each row meets the matrix of its own group: the work of one dense product, whatever the group sizes.

    Groups of rows share the tiles of K. Where K itself is in groups (the gradient of the matrices) they do not, and it is one dot.
    """
    lhs, rhs, output = op.inputs[0], op.inputs[1], op.outputs[0]
    numbers = op.params["ragged_dot_dimension_numbers"]
    ((lhs_contracting, rhs_contracting), (lhs_batch, _)) = numbers.dot_dimension_numbers
    in_tiles = len(lhs_contracting) == 1 and lhs_contracting[0] not in numbers.lhs_ragged_dimensions
    k = 1
    for axis in lhs_contracting:
        k *= lhs.shape[axis]
    batch = 1
    for axis in lhs_batch:
        batch *= lhs.shape[axis]
    m = max(1, lhs.size // max(1, k * batch))
    n = max(1, (rhs.size // max(1, k * batch)) if output.size == 0 else output.size // max(1, m * batch))
    depth_axes = (lhs_contracting[0], rhs_contracting[0]) if in_tiles else None
    return _matmul(op, numerics, None, (batch, m, k, n), depth_axes)


@register_rule("fft")
def _fft(op: Op, numerics: Numerics) -> Instruction:
    """Radix-2 passes on GpSimd: no FFT unit is documented (assumed)."""
    length = 1
    for size in op.params["fft_lengths"]:
        length *= size
    return streaming(op, numerics, "gpsimd", "custom", elements=op.outputs[0].size * max(1, (length - 1).bit_length()))
