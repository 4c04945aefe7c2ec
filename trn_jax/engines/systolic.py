"""The systolic array clock by clock: operands enter skewed, every PE multiplies and adds once a cycle, a wavefront crosses the array.

ws   weights held: x moves right, partial sums move down      p[r, c] <- p[r-1, c] + x[r, c-1] w[r, c]
os   outputs held: x moves right, w moves down                p[r, c] <- p[r, c] + x[r, c-1] w[r-1, c]
is   inputs held: ws on the transposed product

PE (r, c) is busy in streaming cycle t when 0 <= t - r - c < what is streamed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Float32, Int, UInt32

from trn_jax.engines.contraction import Layout
from trn_jax.engines.derivative import with_derivative_of
from trn_jax.errors import ShapeError, UnsupportedError, did_you_mean

MAX_CYCLES = 200_000  # about a second on a CPU core
_UNROLL = 4


class _Mapping(NamedTuple):
    """Which of "m", "k", "n" lies along the rows and the columns of the array, and which is streamed through it."""

    rows: str
    cols: str
    streamed: str
    loads: bool  # whether something is shifted into the array before streaming, a row a cycle


DATAFLOWS = {
    "ws": _Mapping("k", "n", "m", True),
    "os": _Mapping("m", "n", "k", False),
    "is": _Mapping("k", "m", "n", True),
}


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["output"],
    meta_fields=["cycles", "dataflow", "rows", "cols", "m", "k", "n"],
)
@dataclass(frozen=True, slots=True, kw_only=True)
class SystolicRun:
    """A product made by `systolic`, and when its PEs worked.

    Attributes:
        output: [M, N] in fp32.
        cycles: Last clock cycle of the serial schedule, counted from 0: one fold after the other, nothing overlapped. Not the
            chip's time, which hides loads behind streaming.
        dataflow: "ws", "os" or "is".
        rows: Rows of the array.
        cols: Columns of the array.
        m: Rows of the left operand.
        k: Contracted size.
        n: Columns of the right operand.
    """

    output: Float32[Array, "M N"]
    cycles: int
    dataflow: str
    rows: int
    cols: int
    m: int
    k: int
    n: int

    @property
    def activity(self) -> Int[np.ndarray, " cycles"]:
        """Number of PEs that make a product of the result in each cycle; it sums to M K N. Filling up a last tile is not work."""
        mapping = DATAFLOWS[self.dataflow]
        streamed = getattr(self, mapping.streamed)
        load = [np.zeros(self.rows if mapping.loads else 0, int)]
        folds = []
        for rows in _tile_sizes(getattr(self, mapping.rows), self.rows):
            for cols in _tile_sizes(getattr(self, mapping.cols), self.cols):
                busy = np.zeros(streamed + self.rows + self.cols - 2, int)
                diagonal = np.convolve(np.ones(rows, int), np.ones(cols, int))  # PEs that the wavefront reaches together
                wave = np.convolve(diagonal, np.ones(streamed, int))
                busy[: wave.size] = wave
                folds += [*load, busy]
        return np.concatenate(folds)

    @property
    def utilisation(self) -> float:
        """Share of all PE cycles that made a product."""
        return self.m * self.k * self.n / ((self.cycles + 1) * self.rows * self.cols)


def systolic(
    a: Float[Array, "M K"],
    b: Float[Array, "K N"],
    rows: int = 128,
    cols: int = 128,
    dataflow: str = "ws",
    *,
    max_cycles: int = MAX_CYCLES,
) -> SystolicRun:
    """Multiplies two matrices on a simulated systolic array, one `lax.scan` step per clock cycle.

    Operands larger than the array are cut into folds, run one after the other; tiles of K are added in PSUM in order. Operands are
    taken as they are: round them first, or use `engines.tensor.matmul`.

    Args:
        a: Left operand, any floating dtype.
        b: Right operand.
        rows: Rows of PEs.
        cols: Columns of PEs.
        dataflow: What stays in the PEs: "ws" weights (b), "os" outputs, "is" inputs (a).
        max_cycles: Largest schedule to simulate.

    Returns:
        `.output` in fp32, bit for bit a sequential sum over K within a tile (product rounded to fp32, then added), tile after tile;
        `.cycles`, `.activity`, `.utilisation`.

    Raises:
        ShapeError: Operands that are not matrices of one K, an empty one, or an array without PEs.
        UnsupportedError: Unknown dataflow, or more than `max_cycles` cycles.

    Units: cycles. Gradient: that of the plain product, by a rule of its own.
    Basis: derived (the classical wavefront; cycle counts as SCALE-Sim's); assumed (fp32 products are rounded before they are added;
        products of narrower formats are exact in fp32, so there it makes no difference).
    """
    a, b = jnp.asarray(a), jnp.asarray(b)
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0]:
        raise ShapeError(f"systolic takes a [M, K] and b [K, N], but a is {a.shape} and b is {b.shape}; K must be the same in both.")
    (m, k), n = a.shape, b.shape[1]
    if min(m, k, n, rows, cols) < 1:
        raise ShapeError(f"systolic needs at least one element and one PE: a {a.shape}, b {b.shape}, array {rows} x {cols}.")
    cycles = scalesim_cycles(m, k, n, rows, cols, dataflow)
    _check_cycles(cycles, max_cycles, f"{m} x {k} x {n} on a {rows} x {cols} array")
    product = with_derivative_of(_dot, partial(_run, rows=rows, cols=cols, dataflow=dataflow))
    output = product(a.astype(jnp.float32), b.astype(jnp.float32))
    return SystolicRun(output=output, cycles=cycles, dataflow=dataflow, rows=rows, cols=cols, m=m, k=k, n=n)


class Stuck(NamedTuple):
    """Bits of the partial sums that leave the PEs of a broken array: those that stay as they are, and those that are set."""

    keep: UInt32[Array, "C R"]
    put: UInt32[Array, "C R"]


def stick(x: Float32[Array, "*dims"], keep: Any, put: Any) -> Float32[Array, "*dims"]:
    """Partial sums with some bits stuck."""
    return lax.bitcast_convert_type((lax.bitcast_convert_type(x, jnp.uint32) & keep) | put, jnp.float32)


def contract(lhs: Array, rhs: Array, layout: Layout, rows: int, cols: int, stuck: Stuck | None = None) -> Float32[Array, "*out"]:
    """A contraction of any layout through the weight-stationary array, one product of its batch after the other.

    `stuck` are the faults of its PEs.

    Raises:
        UnsupportedError: More than `MAX_CYCLES` cycles.

    Gradient: none of its own; `engines.tensor` gives it one. Basis: as `systolic`.
    """
    batch, m, k, n = layout.sizes(lhs.shape, rhs.shape)
    lhs_BMK, rhs_BKN = layout.split(lhs.astype(jnp.float32), rhs.astype(jnp.float32))
    if min(batch, m, k, n) == 0:
        out_BMN = jnp.einsum("bmk,bkn->bmn", lhs_BMK, rhs_BKN)
    else:
        cycles = batch * (scalesim_cycles(m, k, n, rows, cols, "ws") + 1) - 1
        _check_cycles(cycles, MAX_CYCLES, f"{batch} times {m} x {k} x {n} on a {rows} x {cols} array")
        out_BMN = lax.map(lambda pair: _run(*pair, stuck, rows=rows, cols=cols, dataflow="ws"), (lhs_BMK, rhs_BKN))
    return layout.join(out_BMN, lhs.shape, rhs.shape)


def scalesim_cycles(M: int, K: int, N: int, rows: int, cols: int, dataflow: str = "ws") -> int:
    """Last cycle of the serial schedule of [M, K] by [K, N], as SCALE-Sim counts it.

    Folds times the cycles of one fold, minus 1. A fold loads the held operand (ws, is: `rows` cycles) and streams the third
    dimension S past the skew: S + rows + cols - 2 cycles.

    Raises:
        UnsupportedError: Unknown dataflow.

    Units: cycles. Basis: derived, from SCALE-Sim's published cycle counts (v2, analytical mode).
    """
    if dataflow not in DATAFLOWS:
        raise UnsupportedError(f"Dataflow {dataflow!r} is not known. {did_you_mean(str(dataflow), DATAFLOWS)}")
    mapping, size = DATAFLOWS[dataflow], {"m": M, "k": K, "n": N}
    folds = -(-size[mapping.rows] // rows) * -(-size[mapping.cols] // cols)
    return folds * ((rows if mapping.loads else 0) + size[mapping.streamed] + rows + cols - 2) - 1


def wavefront(rows: int, cols: int, streamed: int, cycle: int) -> Bool[np.ndarray, "rows cols"]:
    """Which PEs of a full fold work in a streaming cycle (counted from 0, loads not included), for pictures."""
    arrival = np.add.outer(np.arange(rows), np.arange(cols))
    return (cycle >= arrival) & (cycle < arrival + streamed)


def _check_cycles(cycles: int, limit: int, what: str) -> None:
    if cycles > limit:
        raise UnsupportedError(
            f"The systolic fidelity would simulate {cycles:,} clock cycles for {what}; the limit is {limit:,}. Use fidelity='tiled', which "
            "has the same formats and K-tile order, smaller operands, or only a cycle count from trn_jax.engines.tensor.scalesim_cycles."
        )


def _dot(a: Array, b: Array) -> Array:
    return lax.dot_general(a, b, (((1,), (0,)), ((), ())), precision=lax.Precision.HIGHEST)


@partial(jax.jit, static_argnames=("rows", "cols", "dataflow"))
def _run(lhs_MK: Array, rhs_KN: Array, stuck: Stuck | None = None, *, rows: int, cols: int, dataflow: str) -> Float32[Array, "M N"]:
    """All folds in order."""
    if dataflow == "os":
        return _output_stationary(lhs_MK, rhs_KN, rows, cols)
    if dataflow == "is":
        return _weight_stationary(rhs_KN.T, lhs_MK.T, rows, cols).T
    return _weight_stationary(lhs_MK, rhs_KN, rows, cols, stuck)


def _weight_stationary(lhs_MK: Array, rhs_KN: Array, rows: int, cols: int, stuck: Stuck | None = None) -> Float32[Array, "M N"]:
    """Folds over tiles of K (outer, accumulated in PSUM) and of N."""
    (m, k), n = lhs_MK.shape, rhs_KN.shape[1]
    lhs_tiles = _fill(lhs_MK, 1, rows).reshape(m, -(-k // rows), rows).transpose(1, 0, 2)
    rhs_tiles = _fill(_fill(rhs_KN, 0, rows), 1, cols).reshape(-(-k // rows), rows, -(-n // cols), cols).transpose(0, 2, 1, 3)

    def fold(tiles: tuple[Array, Array]) -> Array:
        lhs_MR, rhs_TRC = tiles
        entering = _skew(lhs_MR, m + rows + cols - 2)
        return lax.map(lambda rhs_RC: _stream_past(_load(rhs_RC), entering, m, stuck), rhs_TRC)

    psum = fold((lhs_tiles[0], rhs_tiles[0]))
    if k > rows:
        psum, _ = lax.scan(lambda psum, tiles: (psum + fold(tiles), None), psum, (lhs_tiles[1:], rhs_tiles[1:]))
    return psum.transpose(1, 0, 2).reshape(m, -1)[:, :n]


def _load(rhs_RC: Array) -> Float32[Array, "C R"]:
    """Shifts the weights into the array from above, last row first: `rows` cycles."""
    cycle = lambda held, row: (jnp.concatenate([row[:, None], held[:, :-1]], axis=1), None)
    held, _ = lax.scan(cycle, jnp.zeros_like(rhs_RC.T), rhs_RC[::-1])
    return held


def _stream_past(held_CR: Array, entering_TR: Array, m: int, stuck: Stuck | None) -> Float32[Array, "M C"]:
    """Streams the skewed rows past the held weights. Arrays are [C, R]: the shift of partial sums is then along memory."""
    cols, rows = held_CR.shape
    one = _opaque_one(entering_TR)

    def cycle(state: tuple[Array, Array], entering_R: Array) -> tuple[tuple[Array, Array], Array]:
        x_CR, sum_CR = state
        x_CR = jnp.concatenate([entering_R[None], x_CR[:-1]])
        from_above = jnp.concatenate([jnp.zeros_like(sum_CR[:, :1]), sum_CR[:, :-1]], axis=1)
        sum_CR = from_above + x_CR * held_CR * one
        if stuck is not None:
            sum_CR = stick(sum_CR, *stuck)
        return (x_CR, sum_CR), sum_CR[:, -1]

    x_CR = jnp.zeros_like(entering_TR, shape=held_CR.shape)
    # Zeros like a value vary over the mesh axes that the value varies over, as the carry of a scan must.
    _, leaving_TC = lax.scan(cycle, (x_CR, jnp.zeros_like(x_CR * held_CR)), entering_TR, unroll=_UNROLL)
    # Row i of the result leaves column c in cycle i + rows - 1 + c.
    col = np.arange(cols)[None]
    return leaving_TC[np.arange(m)[:, None] + rows - 1 + col, col]


def _output_stationary(lhs_MK: Array, rhs_KN: Array, rows: int, cols: int) -> Float32[Array, "M N"]:
    """Folds over tiles of M and of N; every PE sums over all of K."""
    (m, k), n = lhs_MK.shape, rhs_KN.shape[1]
    lhs_tiles = _fill(lhs_MK, 0, rows).reshape(-1, rows, k)
    rhs_tiles = _fill(rhs_KN, 1, cols).reshape(k, -1, cols).transpose(1, 0, 2)
    steps, one = k + rows + cols - 2, _opaque_one(lhs_MK)

    def cycle(state: tuple[Array, ...], entering: tuple[Array, Array]) -> tuple[tuple[Array, ...], None]:
        x_RC, w_RC, sum_RC = state
        x_RC = jnp.concatenate([entering[0][:, None], x_RC[:, :-1]], axis=1)
        w_RC = jnp.concatenate([entering[1][None], w_RC[:-1]])
        return (x_RC, w_RC, sum_RC + x_RC * w_RC * one), None

    def fold(lhs_RK: Array, rhs_KC: Array) -> Array:
        x_RC, w_RC = jnp.zeros_like(lhs_RK, shape=(rows, cols)), jnp.zeros_like(rhs_KC, shape=(rows, cols))
        idle = (x_RC, w_RC, jnp.zeros_like(x_RC * w_RC))
        (_, _, sum_RC), _ = lax.scan(cycle, idle, (_skew(lhs_RK.T, steps), _skew(rhs_KC, steps)), unroll=_UNROLL)
        return sum_RC

    out = lax.map(lambda lhs_RK: lax.map(lambda rhs_KC: fold(lhs_RK, rhs_KC), rhs_tiles), lhs_tiles)
    return out.transpose(0, 2, 1, 3).reshape(out.shape[0] * rows, -1)[:m, :n]


def _skew(x_SL: Array, steps: int) -> Float32[Array, "T L"]:
    """What enters each lane in each of `steps` cycles: lane l starts l cycles late, zeros around."""
    length, lanes = x_SL.shape
    index = np.arange(steps)[:, None] - np.arange(lanes)[None]
    inside = (index >= 0) & (index < length)
    return jnp.where(inside, x_SL[np.where(inside, index, 0), np.arange(lanes)[None]], 0.0)


def _fill(x: Array, axis: int, multiple: int) -> Array:
    """Zeros behind `x` up to a multiple."""
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, -x.shape[axis] % multiple)
    return jnp.pad(x, widths)


def _tile_sizes(size: int, tile: int) -> list[int]:
    return [min(tile, size - start) for start in range(0, size, tile)]


def _opaque_one(x: Array) -> Array:
    """1.0 that no compiler can see through: times it, a product stays rounded before it is added, instead of a fused multiply-add.

    A barrier around the constant is not enough: newer compilers fold it. That i (i + 1) is even, they do not find.
    """
    i = lax.bitcast_convert_type(x.reshape(-1)[0], jnp.uint32)
    return 1.0 + (i * (i + 1) & 1).astype(jnp.float32)
