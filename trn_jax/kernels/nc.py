"""NeuronCore: the `nc` that a kernel gets, with the instructions of a NeuronCore as methods, named as in NKI."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from trn_jax.engines.accumulate import dot
from trn_jax.engines.layout import DotLayout
from trn_jax.errors import FormatError, ShapeError, UnsupportedError
from trn_jax.graph.instruction import Work
from trn_jax.kernels.affine import Affine, as_affine
from trn_jax.kernels.arithmetic import ACTIVATIONS, ALU, REDUCTIONS, named
from trn_jax.kernels.limits import check_bank, check_column, check_matmul, check_same_shape, tile_size
from trn_jax.kernels.memory import Memory
from trn_jax.kernels.recorder import columns
from trn_jax.kernels.tile import Tile
from trn_jax.numerics import format_of

_CONTRACT_PARTITIONS = (((0,), (0,)), ((), ()))
Operand = Any  # a float, or a tile with one number per partition


class NeuronCore(Memory):
    """One NeuronCore, as a kernel sees it.

    Instructions go to their engine in the order of these calls; engines and DMA queues run side by side and wait for each other
    where one needs what another made, or overwrites what another still reads. Every instruction takes `dst=`, a tile to write to;
    without it, it allocates one and returns it. A tile allocated in a loop has `buffers` copies, used in turn.

    Vector, Scalar and GpSimd compute in fp32 and round once, to the dtype of `dst`. PSUM accumulates in fp32.
    """

    # ---- Tensor Engine

    def nc_matmul(self, stationary: Tile, moving: Tile, dst: Tile | None = None, *, sparsity: str | None = None) -> Tile:
        """Adds `stationary.T @ moving` to a tile in PSUM; the partitions of both are contracted.

        Args:
            stationary: [K, M] in SBUF, K and M at most 128 (free axes count together).
            moving: [K, N] in SBUF, N at most 512.
            dst: [M, N] in PSUM, fp32, within one bank; None starts a new sum.
            sparsity: None. The structured sparsity of Trainium2 and 3 ("4:16" to "1:2") is refused.

        Returns:
            The tile in PSUM.

        Raises:
            UnsupportedError: Any `sparsity`.
            ShapeError: Sizes or memories that the array does not take.
            FormatError: Operands that are not floating point, or fp32 together with a narrower one.
        """
        if sparsity is not None:
            raise UnsupportedError(
                f"nc_matmul(sparsity={sparsity!r}): the structured sparsity of Trainium2 and Trainium3 is not modelled. AWS publishes "
                "its peak rate, but no time of the instruction and no way to issue it from NKI. Leave sparsity out: zeros are then "
                "multiplied as numbers."
            )
        for tile in (stationary, moving):
            self._recorder.check_open("nc_matmul", tile)
        check_matmul(stationary, moving)
        formats = tuple(format_of(tile.dtype) or "" for tile in (stationary, moving))
        if "" in formats or len({fmt == "fp32" for fmt in formats}) > 1:
            raise FormatError(
                f"nc_matmul takes two fp32 operands, or two of 16 bits or less, but got {stationary} and {moving}. Convert one with "
                "nc.tensor_copy(..., dtype=...)."
            )
        shape = (stationary.free_size, *moving.shape[1:])
        dst = self._destination("nc_matmul", dst, shape, np.dtype(np.float32), "psum", name="product")
        check_bank(dst)
        m, k, n = stationary.free_size, stationary.partitions, moving.free_size
        work = Work(m=m, k=k, n=n, elements=m * n, rows=m)
        flat = lambda lhs, rhs: dot(lhs.reshape(k, m), rhs.reshape(k, n), _CONTRACT_PARTITIONS).reshape(shape)
        layout = DotLayout(_CONTRACT_PARTITIONS)
        self._recorder.issue(
            "tensor",
            "nc_matmul",
            "nc_matmul",
            flat,
            (stationary, moving),
            (dst,),
            work,
            operand_formats=formats,
            layout=layout,
            accumulates=True,
        )
        return dst

    def nc_transpose(self, data: Tile, dst: Tile | None = None) -> Tile:
        """Transposes [P, F] in SBUF to [F, P] in PSUM on the Tensor Engine, both at most 128; values are not changed."""
        self._in("nc_transpose", data, "sbuf")
        if data.ndim != 2 or data.free_size > tile_size.gemm_stationary_fmax:
            raise ShapeError(f"nc_transpose takes [P, F] with P and F at most {tile_size.gemm_stationary_fmax}, but got {data}.")
        dst = self._destination("nc_transpose", dst, data.shape[::-1], data.dtype, "psum", name="transposed")
        check_bank(dst)
        work = Work(m=data.partitions, n=data.free_size, elements=data.partitions * data.free_size, rows=data.free_size)
        formats = (format_of(data.dtype) or "fp32",)
        self._recorder.issue("tensor", "nc_transpose", "nc_transpose", lambda x: x.T, (data,), (dst,), work, operand_formats=formats)
        return dst

    # ---- Scalar Engine

    def activation(
        self, op: str, data: Tile, *, bias: Tile | None = None, scale: Operand = 1.0, dtype: Any = None, dst: Tile | None = None
    ) -> Tile:
        """`op(data * scale + bias)`; the scale is a number or [P, 1], the bias [P, 1] or none.

        Raises:
            ProgramError: An unknown `op`; those known are in `trn_jax.kernels.arithmetic.ACTIVATIONS`.
        """
        function, operands = self._activation("activation", op, data, bias, scale)
        dst = self._destination("activation", dst, data.shape, dtype or data.dtype, "sbuf", name=op)
        self._recorder.issue("scalar", "activation", op, function, operands, (dst,), columns(data))
        return dst

    def activation_reduce(
        self, op: str, data: Tile, *, bias: Tile | None = None, scale: Operand = 1.0, dtype: Any = None, dst: Tile | None = None
    ) -> tuple[Tile, Tile]:
        """As `activation`, together with its sum over the free axes: (values, sums [P, 1] in fp32)."""
        function, operands = self._activation("activation_reduce", op, data, bias, scale)
        dst = self._destination("activation_reduce", dst, data.shape, dtype or data.dtype, "sbuf", name=op)
        sums = self.ndarray((data.partitions, 1), jnp.float32, name=f"{op}_sum")

        def both(*values: Any) -> list[Any]:
            result = function(*values)
            return [result, jnp.sum(result.reshape(data.partitions, -1), axis=1, keepdims=True)]

        self._recorder.issue("scalar", "activation_reduce", op, both, operands, (dst, sums), columns(data))
        return dst, sums

    # ---- Vector Engine

    def tensor_tensor(
        self, data1: Tile, data2: Tile, op: str, *, engine: str = "vector", dtype: Any = None, dst: Tile | None = None
    ) -> Tile:
        """`op` of two tiles of one shape, element by element; `engine` is "vector" or "gpsimd"."""
        function = named(ALU, op, "tensor_tensor")
        for tile in (data1, data2):
            self._recorder.check_open("tensor_tensor", tile)
        check_same_shape("tensor_tensor", data1, data2)
        dst = self._destination("tensor_tensor", dst, data1.shape, dtype or jnp.promote_types(data1.dtype, data2.dtype), "sbuf", name=op)
        in_sbuf = sum(tile.memory == "sbuf" for tile in (data1, data2))  # an operand in PSUM comes beside the other one
        self._recorder.issue(engine, "tensor_tensor", op, function, (data1, data2), (dst,), columns(data1, max(1.0, float(in_sbuf))))
        return dst

    def tensor_scalar(
        self,
        data: Tile,
        op0: str,
        operand0: Operand,
        op1: str | None = None,
        operand1: Operand = None,
        *,
        reverse0: bool = False,
        reverse1: bool = False,
        dtype: Any = None,
        dst: Tile | None = None,
    ) -> Tile:
        """`(data op0 operand0) op1 operand1`; operands are numbers or tiles [P, 1], `reverse` swaps the two sides of its operation."""
        steps = [(named(ALU, op0, "tensor_scalar"), reverse0)]
        operands = [operand0]
        if op1 is not None:
            steps.append((named(ALU, op1, "tensor_scalar"), reverse1))
            operands.append(operand1)
        tiles = [operand for operand in operands if isinstance(operand, Tile)]
        for tile in (data, *tiles):
            self._recorder.check_open("tensor_scalar", tile)
        for tile in tiles:
            check_column("tensor_scalar", tile, data)
        places = [tiles.index(operand) if isinstance(operand, Tile) else None for operand in operands]

        def function(x: Any, *columns: Any) -> Any:
            for (step, reverse), place, operand in zip(steps, places, operands, strict=True):
                other = operand if place is None else _against(columns[place], x)
                x = step(other, x) if reverse else step(x, other)
            return x

        dst = self._destination("tensor_scalar", dst, data.shape, dtype or data.dtype, "sbuf", name=op0)
        self._recorder.issue("vector", "tensor_scalar", op0, function, (data, *tiles), (dst,), columns(data))
        return dst

    def tensor_reduce(
        self,
        op: str,
        data: Tile,
        axis: int | Sequence[int] | None = None,
        *,
        negate: bool = False,
        dtype: Any = None,
        dst: Tile | None = None,
    ) -> Tile:
        """Reduces free axes, all of them by default, to [P, 1]; otherwise reduced axes stay with size 1. `negate` changes the sign."""
        function = named(REDUCTIONS, op, "tensor_reduce")
        self._recorder.check_open("tensor_reduce", data)
        axes = tuple(range(1, data.ndim)) if axis is None else (axis,) if isinstance(axis, int) else tuple(axis)
        if any(not 0 < a < data.ndim for a in axes):
            raise ShapeError(
                f"tensor_reduce reduces free axes, 1 to {data.ndim - 1} of {data}, but got axis {axis}. Partitions are reduced by "
                "nc_matmul with a stationary column of ones."
            )
        kept = tuple(1 if a in axes else size for a, size in enumerate(data.shape))
        shape = (data.partitions, 1) if math.prod(kept[1:]) == 1 else kept
        sign = -1 if negate else 1
        reduce = lambda x: (sign * function(x, axis=axes)).reshape(shape)
        dst = self._destination("tensor_reduce", dst, shape, dtype or data.dtype, "sbuf", name=f"{op}_of_{data.buffer.name}")
        self._recorder.issue("vector", "tensor_reduce", op, reduce, (data,), (dst,), columns(data))
        return dst

    def tensor_copy(self, src: Tile, *, dtype: Any = None, engine: str = "vector", dst: Tile | None = None) -> Tile:
        """Copies between SBUF and PSUM, or out of PSUM, rounding to the new dtype; `engine` is "vector" or "scalar"."""
        self._recorder.check_open("tensor_copy", src)
        dst = self._destination("tensor_copy", dst, src.shape, dtype or src.dtype, "sbuf", name=f"{src.buffer.name}_copy")
        self._recorder.issue(engine, "tensor_copy", "copy", lambda x: x, (src,), (dst,), columns(src))
        return dst

    def reciprocal(self, data: Tile, *, dtype: Any = None, dst: Tile | None = None) -> Tile:
        """1 / data."""
        self._recorder.check_open("reciprocal", data)
        dst = self._destination("reciprocal", dst, data.shape, dtype or data.dtype, "sbuf", name="reciprocal")
        self._recorder.issue("vector", "reciprocal", "reciprocal", lambda x: 1 / x, (data,), (dst,), columns(data))
        return dst

    def select(self, predicate: Tile, on_true: Tile, on_false: Tile, *, dst: Tile | None = None) -> Tile:
        """`on_true` where the predicate is not 0, else `on_false`; tiles of one shape."""
        for tile in (predicate, on_true, on_false):
            self._recorder.check_open("select", tile)
        check_same_shape("select", predicate, on_true, on_false)
        dst = self._destination("select", dst, on_true.shape, on_true.dtype, "sbuf", name="selected")
        function = lambda p, a, b: jnp.where(p != 0, a, b)
        self._recorder.issue("vector", "select", "select", function, (predicate, on_true, on_false), (dst,), columns(on_true, 2.0))
        return dst

    def tensor_tensor_scan(
        self, data0: Tile, data1: Tile, initial: Operand, op0: str, op1: str, *, dtype: Any = None, dst: Tile | None = None
    ) -> Tile:
        """Along the free axis, `result[:, t] = (data0[:, t] op0 result[:, t - 1]) op1 data1[:, t]`, from `initial` (number or [P, 1])."""
        first, second = named(ALU, op0, "tensor_tensor_scan"), named(ALU, op1, "tensor_tensor_scan")
        value: Any = initial
        starts = (initial,) if isinstance(initial, Tile) else ()
        for tile in (data0, data1, *starts):
            self._recorder.check_open("tensor_tensor_scan", tile)
        check_same_shape("tensor_tensor_scan", data0, data1)
        for tile in starts:
            check_column("tensor_tensor_scan", tile, data0)
        partitions, shape = data0.partitions, data0.shape

        def function(a: Any, b: Any, *start: Any) -> Any:
            begin = start[0].reshape(partitions) if start else jnp.full(partitions, value, jnp.float32)

            def step(before: Any, x: Any) -> tuple[Any, Any]:
                now = second(first(x[0], before), x[1])
                return now, now

            _, rows = lax.scan(step, begin.astype(jnp.float32), (a.reshape(partitions, -1).T, b.reshape(partitions, -1).T))
            return rows.T.reshape(shape)

        dst = self._destination("tensor_tensor_scan", dst, shape, dtype or data0.dtype, "sbuf", name="scan")
        self._recorder.issue("vector", "tensor_tensor_scan", f"{op0}_{op1}", function, (data0, data1, *starts), (dst,), columns(data0))
        return dst

    def memset(self, dst: Tile, value: float) -> Tile:
        """Fills a tile of SBUF or PSUM with a number."""
        self._recorder.check_open("memset", dst)
        zero = value == 0 and dst.dtype in (np.dtype(jnp.bfloat16), np.dtype(np.float16))
        function = "zero" if zero else "memset"
        self._recorder.issue("vector", "memset", function, lambda: jnp.full(dst.shape, value, jnp.float32), (), (dst,), columns(dst))
        return dst

    # ---- GpSimd

    def affine_select(
        self,
        data: Tile,
        fill: float,
        *,
        offset: Affine | int = 0,
        partition_step: int = 0,
        free_step: int = 0,
        dst: Tile | None = None,
    ) -> Tile:
        """`data` where `offset + partition_step * p + free_step * f >= 0`, else `fill`; p and f count partitions and free elements.

        A causal mask of scores [queries, keys] that begin at query q and key k: `offset=q - k, partition_step=1, free_step=-1`.
        """
        self._recorder.check_open("affine_select", data)
        dst = self._destination("affine_select", dst, data.shape, data.dtype, "sbuf", name="masked")
        steps = partition_step * np.arange(data.partitions)[:, None] + free_step * np.arange(data.free_size)[None, :]
        steps = steps.reshape(data.shape)
        function = lambda x, start: jnp.where(start + steps >= 0, x, jnp.asarray(fill, x.dtype))
        work, parameters = columns(data), (as_affine(offset),)
        self._recorder.issue("gpsimd", "affine_select", "affine_select", function, (data,), (dst,), work, parameters=parameters)
        return dst

    # ---- shared

    def _activation(self, what: str, op: str, data: Tile, bias: Tile | None, scale: Operand) -> tuple[Callable[..., Any], tuple[Tile, ...]]:
        """The function of an activation and its operands."""
        function = named(ACTIVATIONS, op, what)
        extra = [tile for tile in (scale, bias) if isinstance(tile, Tile)]
        for tile in (data, *extra):
            self._recorder.check_open(what, tile)
        for tile in extra:
            check_column(what, tile, data)
        scaled = isinstance(scale, Tile)

        def compute(x: Any, *columns: Any) -> Any:
            x = x * (_against(columns[0], x) if scaled else scale)
            return function(x + _against(columns[-1], x)) if bias is not None else function(x)

        return compute, (data, *extra)


def _against(column: Any, x: Any) -> Any:
    """[P, 1] with as many axes as x."""
    return column.reshape(column.shape[0], *[1] * (x.ndim - 1))
