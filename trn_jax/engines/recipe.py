"""Products that need their operands as matrices: MX blocks, scaled operands, and PSUM in bf16.

    psum = round(s_0 (lhs_0 @ rhs_0));   psum = round(psum + s_1 (lhs_1 @ rhs_1));   ...        s_i: scales of K tile i ("block")
    out = s psum                                                                                s: scales of the operands ("tensor")

where round is to the format of PSUM, fp32 rounding nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float32

from trn_jax.engines.accumulate import dot, tiled
from trn_jax.engines.contraction import MATRICES, Layout
from trn_jax.engines.derivative import Product, with_derivative_of
from trn_jax.engines.dot_layout import DotLayout
from trn_jax.engines.kind import Execution
from trn_jax.engines.quantise import Quantised, largest_magnitude, quantise
from trn_jax.engines.rounded import are_noted, note_rounding
from trn_jax.engines.systolic import contract
from trn_jax.graph.instruction import Instruction
from trn_jax.numerics import BLOCK_FORMATS, Stream, format_of, rounder

_PSUM_STREAM, _COTANGENT_STREAM = 2, 3  # operands have streams 0 and 1
_AXES = (2, 1)  # K in [B, M, K] and [B, K, N]


def needs_matrices(instruction: Instruction, execution: Execution) -> bool:
    """Whether a product is computed here."""
    blocks = any(fmt in BLOCK_FORMATS for fmt in instruction.operand_formats)
    return blocks or bool(instruction.scaling or instruction.cotangent_format) or execution.psum != "fp32"


def product_of_matrices(instruction: Instruction, layout: Layout, execution: Execution, key: Any) -> Product:
    """The product of two operands of any layout, in fp32.

    Gradient: that of one dot at the operands' rounded values, straight through the rounding; with a `cotangent_format`, the
        cotangent is rounded first, and forward mode is refused by JAX.
    Basis: documented (Trainium3: MX products are those of the scaled elements, summed in fp32; a bf16 PSUM adds in fp32 and rounds at
        every write); assumed (K tiles of `rows` also for formats that contract several elements per PE).
    """

    def product(lhs: Array, rhs: Array) -> Array:
        formats = tuple("" if fmt == format_of(x.dtype) else fmt for fmt, x in zip(instruction.operand_formats, (lhs, rhs), strict=True))
        matrices = [x.astype(jnp.float32) for x in layout.split(lhs, rhs)]
        # Of the operands as they come: forward and backward products take an operand in different layouts, and XLA shares one maximum.
        peaks = [largest_magnitude(x) if instruction.scaling == "tensor" else None for x in (lhs, rhs)]
        if are_noted():
            _note(instruction, formats, matrices, peaks, execution, key)
        out_BMN = _multiply(formats, instruction.scaling, execution)(*matrices, *peaks, *_streams(key))
        out_BMN = _round_cotangent(instruction.cotangent_format, instruction.scaling, execution)(out_BMN, *_streams(key))
        return layout.join(out_BMN, lhs.shape, rhs.shape)

    return product


def _streams(key: Any) -> tuple[Any, ...]:
    return () if key is None else (key,)


def _operands(
    formats: tuple[str, ...],
    scaling: str,
    execution: Execution,
    lhs: Array,
    rhs: Array,
    lhs_peak: Array | None,
    rhs_peak: Array | None,
    *key: Stream,
) -> list[Quantised]:
    return [
        quantise(x, axis, fmt, scaling, execution.rows, execution, key[0].split(i) if key else None, peak)
        for i, (x, axis, fmt, peak) in enumerate(zip((lhs, rhs), _AXES, formats, (lhs_peak, rhs_peak), strict=True))
    ]


def _note(
    instruction: Instruction,
    formats: tuple[str, ...],
    matrices: list[Array],
    peaks: list[Array | None],
    execution: Execution,
    key: Any,
) -> None:
    """The roundings of the operands, for who measures them."""
    (lhs, rhs), (lhs_peak, rhs_peak) = matrices, peaks
    quantised = _operands(formats, instruction.scaling, execution, lhs, rhs, lhs_peak, rhs_peak, *_streams(key))
    for position, (x, q, axis) in enumerate(zip(matrices, quantised, _AXES, strict=True)):
        if formats[position]:
            note_rounding(instruction, "operand", position, formats[position], x, q.values(axis, execution.rows))


def _multiply(formats: tuple[str, ...], scaling: str, execution: Execution) -> Callable[..., Float32[Array, "B M N"]]:
    """Quantises, multiplies and accumulates matrices."""
    operands = partial(_operands, formats, scaling, execution)

    def compute(lhs: Array, rhs: Array, lhs_peak: Array | None, rhs_peak: Array | None, *key: Stream) -> Array:
        lhs_q, rhs_q = operands(lhs, rhs, lhs_peak, rhs_peak, *key)
        return _accumulate(lhs_q, rhs_q, execution, key[0].split(_PSUM_STREAM) if key else None)

    def rounded(*arguments: Any) -> list[Array]:
        return [x.values(axis, execution.rows) for x, axis in zip(operands(*arguments), _AXES, strict=True)]

    return with_derivative_of(_dot, compute, rounded)


def _dot(lhs_BMK: Array, rhs_BKN: Array) -> Array:
    return dot(lhs_BMK, rhs_BKN, MATRICES)


def _accumulate(lhs: Quantised, rhs: Quantised, execution: Execution, key: Any) -> Float32[Array, "B M N"]:
    """The sum over K tiles, with scales where they belong."""
    scales = [x.scale for x in (lhs, rhs)]
    if any(scale is not None and scale.size > 1 for scale in scales) or execution.psum != "fp32":
        if execution.fidelity == "fused" and execution.psum == "fp32":
            return _dot(*(x.values(axis, execution.rows) for x, axis in zip((lhs, rhs), _AXES, strict=True)))
        psum = _tile_by_tile(lhs, rhs, execution, key)
    else:
        psum = _whole(execution)(lhs.codes, rhs.codes)
    return _rescaled(psum, *(scale if scale is not None and scale.size == 1 else None for scale in scales))


def _rescaled(x: Array, lhs_scale: Array | None, rhs_scale: Array | None) -> Array:
    """`x` times both scales, the smaller first: codes times the larger alone may overflow."""
    if lhs_scale is None or rhs_scale is None:
        scale = rhs_scale if lhs_scale is None else lhs_scale
        return x if scale is None else x * scale
    return x * jnp.minimum(lhs_scale, rhs_scale) * jnp.maximum(lhs_scale, rhs_scale)


def _whole(execution: Execution) -> Product:
    """A product of matrices in the way of the fidelity."""
    layout = DotLayout(MATRICES)
    match execution.fidelity:
        case "systolic":
            return partial(contract, layout=layout, rows=execution.rows, cols=execution.cols)
        case "tiled":
            return partial(tiled, layout=layout, rows=execution.rows)
    return _dot


def _tile_by_tile(lhs: Quantised, rhs: Quantised, execution: Execution, key: Any) -> Float32[Array, "B M N"]:
    """One K tile after the other: multiplied, scaled, added to PSUM in fp32, and rounded to PSUM's format."""
    multiply = _whole(execution)
    round_psum = rounder(execution.psum, execution.rounding, execution.overflow)
    tiles = [*_tiles(lhs, 2, execution.rows), *_tiles(rhs, 1, execution.rows)]

    def scaled(lhs: Array, lhs_scale: Array | None, rhs: Array, rhs_scale: Array | None) -> Array:
        return _rescaled(multiply(lhs, rhs), lhs_scale, rhs_scale)

    def store(psum: Array, tile: Any) -> Array:
        return round_psum(psum, None if key is None else key.fold_in(tile))

    def step(psum: Array, tile: Any) -> tuple[Array, None]:
        index, *operands = tile
        return store(psum + scaled(*operands), index), None

    first, rest = jax.tree.map(lambda x: x[0], tiles), jax.tree.map(lambda x: x[1:], tiles)
    indices = jnp.arange(1, jax.tree.leaves(tiles)[0].shape[0], dtype=jnp.uint32)
    psum, _ = lax.scan(step, store(scaled(*first), np.uint32(0)), (indices, *rest))
    return psum


def _tiles(x: Quantised, k_axis: int, rows: int) -> tuple[Float32[Array, "T B R C"], Float32[Array, "T B R C"] | None]:
    """Codes and scales of the K tiles on a leading axis, the last tile filled up with zeros; no K at all is one tile of zeros."""
    tiles = max(1, -(-x.codes.shape[k_axis] // rows))
    codes = lax.pad(
        x.codes, np.float32(0), [(0, tiles * rows - x.codes.shape[k_axis] if axis == k_axis else 0, 0) for axis in range(x.codes.ndim)]
    )
    codes = jnp.moveaxis(codes.reshape(*codes.shape[:k_axis], tiles, rows, *codes.shape[k_axis + 1 :]), k_axis, 0)
    if x.scale is None or x.scale.size == 1:
        return codes, None
    return codes, jnp.expand_dims(jnp.moveaxis(x.scale, k_axis, 0), k_axis + 1)


def _round_cotangent(fmt: str, scaling: str, execution: Execution) -> Callable[..., Array]:
    """The identity, whose cotangent is rounded to `fmt`: with one scale if there is any, in MX blocks along the last axis."""
    if not fmt:
        return lambda x, *key: x

    @jax.custom_vjp
    def identity(x: Array, *key: Stream) -> Array:
        return x

    def backward(key: tuple[Stream, ...], cotangent: Array) -> tuple[Any, ...]:
        stream = key[0].split(_COTANGENT_STREAM) if key else None
        once = "tensor" if scaling else ""
        peak = largest_magnitude(cotangent) if once else None
        rounded = quantise(cotangent, 2, fmt, once, execution.rows, execution, stream, peak).values(2, execution.rows)
        return (rounded, *(None for _ in key))

    identity.defvjp(lambda x, *key: (x, key), backward)
    return identity
