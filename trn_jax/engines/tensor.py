"""Tensor Engine: matrix products on an array of `rows` x `cols` PEs, accumulated in fp32 in PSUM one K tile after the other.

    psum = lhs[:, :rows] @ rhs[:rows];   psum += lhs[:, rows : 2 rows] @ rhs[rows : 2 rows];   ...

    seconds = batch ceil(K / rows) passes sum over stationary tiles S, moving tiles N of max(min(64, S), N) / (clock rate)

A stationary tile has at most `cols` columns, a moving one at most 512; the shorter of the two ways to choose the stationary side counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Float32

from trn_jax.chips.schema import Chip, Tensor
from trn_jax.engines.accumulate import dot, tiled, tiled_by
from trn_jax.engines.contraction import Layout
from trn_jax.engines.derivative import Product, with_derivative_of
from trn_jax.engines.dot_layout import DotLayout
from trn_jax.engines.faulty_array import check_layout, faulty
from trn_jax.engines.kind import Cost, Execution, Kind, Static, write
from trn_jax.engines.recipe import needs_matrices, product_of_matrices
from trn_jax.engines.rounded import note_rounding
from trn_jax.engines.sharded import with_whole_axes
from trn_jax.engines.systolic import contract, scalesim_cycles, systolic, wavefront
from trn_jax.errors import FormatError, ShapeError
from trn_jax.graph.instruction import Instruction
from trn_jax.graph.numerics import numerics_for
from trn_jax.numerics import BLOCK_FORMATS, Overflow, Rounding, format_of, get_format, rounder, start_stream
from trn_jax.numerics.seed import as_seed
from trn_jax.timing.smoothing import smooth_ceil, smooth_max, smooth_min, width

STREAM_ROWS = 128  # output rows after which a consumer may start; not the array's, or a wider array could delay consumers
MX_PACKED = 4  # elements of K in each PE of an MX product. Documented: NKI guide, Trainium3 (K = 512 in the time of 128 in bf16)
GIVEN_SIDES = "nc_matmul"  # function of a product whose stationary operand a kernel chose
DOUBLE_ROW_FORMATS = frozenset({"fp8_e5m2", "fp8_e4m3", "fp8_e4m3fn"})  # fp8_e3m4 runs at the 16-bit rate


__all__ = ["KINDS", "compute_matmul", "cost_matmul", "cost_transpose", "matmul", "scalesim_cycles", "systolic", "wavefront"]


def matmul(
    lhs_MK: Float[Array, "M K"],
    rhs_KN: Float[Array, "K N"],
    chip: Chip,
    input_format: str = "bf16",
    fidelity: str = "systolic",
    *,
    rounding: Rounding = "nearest",
    seed: Any = None,
    overflow: Overflow | None = None,
) -> Float32[Array, "M N"]:
    """One matrix product as the chip's Tensor Engine computes it, before PSUM is evacuated.

    Args:
        lhs_MK: Left operand, floating point.
        rhs_KN: Right operand.
        chip: Its array size and formats are read; `ideal` does not round.
        input_format: Format that both operands are rounded to.
        fidelity: "systolic" (clock by clock), "tiled" (K tile by K tile) or "fused" (one dot).
        rounding: "nearest" or "stochastic".
        seed: For "stochastic": an int or a uint32 scalar.
        overflow: What rounding does beyond the largest finite value; None is the format's own.

    Returns:
        The product in fp32.

    Raises:
        ShapeError: Operands that are not matrices of one K.
        FormatError: An unknown format, rounding or fidelity, a format that the chip does not have, or no seed.
        UnsupportedError: Too large for the systolic fidelity.
        TypeError: The chip's array size is traced or not whole.

    Units: none. Gradient: straight through the rounding, as of one plain dot. Basis: see `compute_matmul`.
    """
    lhs_MK, rhs_KN = jnp.asarray(lhs_MK), jnp.asarray(rhs_KN)
    if lhs_MK.ndim != 2 or rhs_KN.ndim != 2 or lhs_MK.shape[1] != rhs_KN.shape[0]:
        raise ShapeError(
            f"matmul takes lhs [M, K] and rhs [K, N], but lhs is {list(lhs_MK.shape)} and rhs is {list(rhs_KN.shape)}; K must be the same "
            "in both. Transpose or reshape an operand; batched products run under jax.vmap or trn_jax.emulate."
        )
    numerics = numerics_for(chip, rounding=rounding, fidelity=fidelity, overflow=overflow)
    fmt = input_format if input_format in BLOCK_FORMATS else get_format(input_format).name
    if numerics.formats and fmt not in numerics.formats:
        raise FormatError(f"The Tensor Engine of {chip.name} has no {fmt} operands; it takes {', '.join(numerics.formats)}.")
    instruction = Instruction(
        engine="tensor", kind="nc_matmul", operand_formats=(fmt if chip.rounds else "",) * 2, layout=DotLayout((((1,), (0,)), ((), ())))
    )
    execution = Execution(rounding=rounding, overflow=overflow, fidelity=fidelity, rows=numerics.rows, cols=numerics.cols)
    stream = start_stream(as_seed(seed=seed)) if rounding == "stochastic" else None
    whole = lambda lhs, rhs: [dot(lhs, rhs, (((1,), (0,)), ((), ())))]
    return compute_matmul(instruction, whole, (lhs_MK, rhs_KN), execution, stream)[0]


def compute_matmul(
    instruction: Instruction, function: Callable[..., list[Any]], operands: Sequence[Any], execution: Execution, key: Any
) -> list[Any]:
    """Rounds both operands to their formats, multiplies, accumulates in fp32.

    Args:
        instruction: Its `operand_formats` and `layout` are read; write formats are those of PSUM.
        function: The contraction in one piece, asked for fp32 output; returns a list of one array.
        operands: lhs and rhs. Anything but floating point is passed to `function` as it is.
        execution: `fidelity` says how the sum is made: "fused" by `function`, "tiled" one K tile of `rows` after the other,
            "systolic" clock by clock on the array. Products in groups are summed tile by tile in both, by `function` where K is in groups.
        key: For stochastic rounding, a `trn_jax.numerics.Stream`; the operands get different parts of it.

    Returns:
        [product in fp32].

    Gradient: that of `function` at the rounded operands, straight through the rounding, in every fidelity.
    Basis: documented (operands in the input format, PSUM in fp32, accumulation in the order of issue: NKI architecture guide);
        assumed (the order of the sum inside one tile is XLA's, bounded in ulp; how the hardware splits fp32 operands over its
        passes is unpublished, so fp32 products are exact here).
    """
    layout = cast("Layout | None", instruction.layout)
    check_layout(layout, execution)
    factors, others = operands[:2], operands[2:]  # a ragged product has group sizes behind its factors
    if not all(jnp.issubdtype(jnp.result_type(x), jnp.floating) for x in factors):
        return function(*operands)

    def whole(lhs: Array, rhs: Array) -> Array:
        (product,) = function(lhs, rhs, *others)
        return product

    if layout is not None and needs_matrices(instruction, execution):
        lhs, rhs = (jnp.asarray(x) for x in factors)
        return [with_whole_axes(product_of_matrices(instruction, layout, execution, key), whole)(lhs, rhs)]
    lhs, rhs = _round_operands(instruction, factors, execution, key)
    product = whole
    if execution.fidelity != "fused":
        if layout is not None:
            product = _loop(whole, layout, execution)
        elif instruction.depth_axes is not None:
            product = _in_groups(function, others, instruction.depth_axes, execution.rows)
    if layout is not None and execution.array_faults:
        product = with_derivative_of(whole, with_whole_axes(faulty(product, layout, execution), whole))
    psum = product(lhs, rhs)
    return write(instruction, [psum], execution, key) if instruction.write_formats else [psum]


def _loop(whole: Product, layout: Layout, execution: Execution) -> Product:
    """The product by the loop of the fidelity, with the derivative of `whole`."""
    if execution.fidelity == "systolic":
        compute = lambda lhs, rhs: contract(lhs, rhs, layout, execution.rows, execution.cols)
        return with_derivative_of(whole, with_whole_axes(compute, whole))
    compute = lambda lhs, rhs: tiled(lhs, rhs, layout, execution.rows)
    return with_derivative_of(whole, with_whole_axes(compute, whole, *layout.walked))


def _in_groups(function: Callable[..., list[Any]], others: Sequence[Any], axes: tuple[int, int], rows: int) -> Product:
    """A product in groups, tile by tile of K; what it needs beside its factors is an operand, for JAX to trace."""

    def whole(lhs: Array, rhs: Array, *others: Any) -> Array:
        return function(lhs, rhs, *others)[0]

    def compute(lhs: Array, rhs: Array, *others: Any) -> Array:
        return tiled_by(lambda lhs, rhs: whole(lhs, rhs, *others), lhs, rhs, axes=axes, rows=rows)

    product = with_derivative_of(whole, compute)
    return lambda lhs, rhs: product(lhs, rhs, *others)


def _round_operands(instruction: Instruction, operands: Sequence[Any], execution: Execution, key: Any) -> list[Array]:
    """Each operand in its own dtype with the values of its operand format."""
    rounded = []
    for position, (x, fmt) in enumerate(zip(operands, instruction.operand_formats, strict=True)):
        x = jnp.asarray(x)
        container = format_of(x.dtype)
        if fmt and container and fmt != container:
            stream = key.split(position) if execution.rounding == "stochastic" else None
            round_x = rounder(fmt, execution.rounding, execution.overflow, container)
            wide = x.astype(jnp.float32)
            narrow = round_x(wide, stream)
            note_rounding(instruction, "operand", position, fmt, wide, narrow)
            x = narrow.astype(x.dtype)
        rounded.append(x)
    return rounded


def cost_matmul(work: Any, chip: Chip, smoothing: Any, static: Static) -> Cost:
    """Time of `work.batch` products of [m, k] by [k, n], all instructions back to back.

    An instruction multiplies up to `rows` of K by up to `cols` stationary and `max_moving_columns` moving columns; it takes one cycle a
    moving column, at least min(64, stationary columns), times the passes of the widest operand format (fp32 4, 16 bits 1, fp8 half
    of one by contracting two rows per PE where the chip can). Stationary columns load in the background. Whichever operand is
    better held in the array is; of a kernel's own nc_matmul the one it holds. Partly filled tiles cost what they stream.

    Units: seconds. Gradient: in every leaf of `chip.tensor`, exact at smoothing 0 and of the relaxed formula above. Occupancy and the
    first tile never grow with rows, cols (times an integer), clock, rate, widest moving operand or load speed.
    Basis: documented (NKI instruction reference, SDK 2.26: cycles of nc_matmul; NKI architecture guide: background and fast
        LoadStationary, fp8 double rows); calibrated (`tensor.rate`); assumed (loads of fp32 take its passes, and the latency beyond
        the last column is `fill_cycles` at the full clock).
    """
    t = chip.tensor
    passes = operand_passes(t, static)
    if static.function == GIVEN_SIDES:
        return _cost(work.batch * _cycles(work.m, work.k, work.n, t, passes, smoothing), work, t)
    both_ways = jax.vmap(lambda stationary, moving: _cycles(stationary, work.k, moving, t, passes, smoothing))  # half the program
    m, n = jnp.broadcast_arrays(work.m, work.n)
    held_m, held_n = both_ways(jnp.stack([m, n]), jnp.stack([n, m]))
    return _cost(work.batch * smooth_min(held_m, held_n, width(smoothing, jnp.minimum(held_m, held_n))), work, t)


def cost_transpose(work: Any, chip: Chip, smoothing: Any, static: Static) -> Cost:
    """Time of `work.batch` transposes of [m, n]: each tile is held in the array while the columns of an identity stream past.

    Units: seconds. Gradient: as `cost_matmul`.
    Basis: documented (NKI instruction reference, SDK 2.26: max(P, min(64, F)) cycles for P partitions of F elements); assumed (the passes
        of a matmul of the same format). Documented for Trainium2: its transpose mode is twice as fast in fp32.
    """
    t = chip.tensor
    # An identity has as many columns as rows, so its tiles are as wide as the array is deep.
    cycles = sum(count * _stream(work.n, columns, t, smoothing) for count, columns in _pieces(work.m, t.rows, smoothing))
    speedup = t.transpose_speedup_fp32 if operand_width(static) == "fp32" else 1.0
    return _cost(work.batch * operand_passes(t, static) / speedup * cycles, work, t)


def _cost(cycles: Any, work: Any, t: Tensor) -> Cost:
    occupancy_s = cycles / (t.clock_hz * t.rate)
    return Cost(occupancy_s, occupancy_s + t.fill_cycles / t.clock_hz, jnp.maximum(work.batch * jnp.ceil(work.m / STREAM_ROWS), 1.0))


def _cycles(stationary: Any, k: Any, moving: Any, t: Tensor, passes: Any, smoothing: Any) -> Any:
    """Cycles of one product when `stationary` of its free columns are held in the array and `moving` stream through."""
    depth = t.rows / jnp.minimum(passes, 1.0)  # fp8 double rows: one pass contracts twice the rows
    k_tiles = smooth_ceil(k / depth, smoothing, 1 / depth)
    multiply = sum(count * _stream(stationary, size, t, smoothing) for count, size in _pieces(moving, t.max_moving_columns, smoothing))
    load = stationary / t.load_speedup  # runs in the background: the slower of the two streams counts
    return k_tiles * jnp.maximum(passes, 1.0) * smooth_max(multiply, load, width(smoothing, jnp.minimum(multiply, load)))


def _stream(stationary: Any, moving: Any, t: Tensor, smoothing: Any) -> Any:
    """Cycles to stream `moving` columns once past every tile of the stationary operand."""

    def instruction(held):
        floor = smooth_min(t.min_columns, held, width(smoothing, jnp.minimum(t.min_columns, held)))
        return smooth_max(floor, moving, width(smoothing, jnp.minimum(floor, moving)))

    return sum(count * instruction(held) for count, held in _pieces(stationary, t.cols, smoothing))


def _pieces(size: Any, piece: Any, smoothing: Any) -> list[tuple[Any, Any]]:
    """A size cut into pieces, as (how many, how wide): full ones, and what is left for the last."""
    pieces = size / piece
    count = smooth_ceil(pieces, smoothing, 1 / piece)
    slope = smoothing * pieces  # the part of a relaxed count that cuts nothing off the last piece
    full = jnp.maximum(count - slope - 1, 0.0)
    return [(full + slope, piece), (count - slope - full, size - full * piece)]


def operand_passes(t: Tensor, static: Static) -> Any:
    """Cycles per moving column for the widest operand; one without a format counts as fp32, or 16 bits wide when `static.narrow`."""
    passes = {"fp32": t.passes_fp32, "16bit": t.passes_16bit, "fp8": t.passes_fp8, "mx": t.passes_16bit / MX_PACKED}
    return passes[operand_width(static)]


def operand_width(static: Static) -> str:
    """In which mode the array takes a product's operands, by the widest of them: "fp32", "16bit", "fp8" (double row) or "mx"."""
    unnamed = "bf16" if static.narrow else "fp32"
    formats = {fmt or unnamed for fmt in static.operand_formats or ("",)}
    if "fp32" in formats:
        return "fp32"
    if formats <= set(BLOCK_FORMATS):
        return "mx"
    return "fp8" if formats <= DOUBLE_ROW_FORMATS else "16bit"


KINDS = {
    "nc_matmul": Kind(
        cost=cost_matmul,
        compute=compute_matmul,
        basis="documented: NKI instruction reference, SDK 2.26, nc_matmul; NKI architecture guide, background LoadStationary",
        functions=frozenset({GIVEN_SIDES}),
    ),
    "nc_transpose": Kind(
        cost=cost_transpose, compute=None, basis="documented: NKI instruction reference, SDK 2.26, nc_transpose on the Tensor Engine"
    ),
}
