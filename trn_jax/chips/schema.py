"""The chip in memory: a frozen pytree of float leaves in SI units, one small record per engine, memory and link.

Nothing is validated here, because JAX rebuilds these records with tracers, gradients and abstract values inside: the
loader is the one place that validates. A field's name ends in its unit; the power of seconds in that unit (clock_hz: -1,
latency_s: +1, bandwidth_bytes_per_s: -1) is what the elasticity law sums over.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, dataclass_transform

import jax

from trn_jax.chips.paths import get_leaf, leaf_paths, replace_leaves
from trn_jax.units import format_quantity

Leaf = Any  # a Python float when loaded; an array, tracer or gradient under JAX transformations


@dataclass_transform(kw_only_default=True, frozen_default=True)
def _record(cls: type) -> type:
    """Makes a frozen keyword-only dataclass whose non-static fields are pytree leaves (or records of them)."""
    cls = dataclass(frozen=True, kw_only=True, slots=True)(cls)
    static = [f.name for f in dataclasses.fields(cls) if f.metadata.get("static")]
    data = [f.name for f in dataclasses.fields(cls) if f.name not in static]
    return jax.tree_util.register_dataclass(cls, data_fields=data, meta_fields=static)


static = partial(field, metadata={"static": True})


@_record
class Tensor:
    """Tensor Engine (PE): a systolic array of `rows` (contraction, partitions in) by `cols` (partitions out)."""

    rows: Leaf  # contraction depth of one matmul instruction; also the number of SBUF partitions
    cols: Leaf  # stationary columns of one matmul instruction; also the number of PSUM partitions
    clock_hz: Leaf
    rate: Leaf  # share of the clock at which columns really issue (dimensionless twin of clock_hz)
    min_columns: Leaf  # a matmul instruction never takes fewer cycles than this
    max_moving_columns: Leaf  # widest moving operand of one instruction: one PSUM bank of fp32
    passes_fp32: Leaf  # cycles per moving column, by operand width
    passes_16bit: Leaf
    passes_fp8: Leaf
    load_speedup: Leaf  # columns loaded into the array per cycle by LoadStationary
    transpose_speedup_fp32: Leaf  # of a transpose of 32-bit data over a product of the same size
    fill_cycles: Leaf  # from the last moving column in to its result in PSUM, visible to another engine
    warmup_share: Leaf  # share of the clock right after idle (throttle switch); 1 where nothing is published
    warmup_s: Leaf  # time of activity until the full clock
    chip_peak_flop_per_s: Leaf  # what the chip page advertises for all cores in bf16; only `mfu_chip` of a report reads it


@_record
class Vector:
    """Vector Engine (DVE): reductions, two-tensor operations, casts; one element per lane and cycle, computed in fp32."""

    lanes: Leaf
    clock_hz: Leaf
    overhead_cycles: Leaf  # fixed cost of one instruction's accesses
    min_cycles: Leaf  # shortest initiation interval
    latency_cycles: Leaf  # from the end of the occupancy to the result visible to another engine, its semaphore included
    copy_speedup_16bit: Leaf  # tensor_copy and tensor_scalar, both sides 16 bit in SBUF
    tensor_tensor_speedup_16bit: Leaf  # tensor_tensor that adds, subtracts or multiplies, all operands 16 bit in SBUF
    tensor_tensor_speedup_other: Leaf  # any other tensor_tensor, all operands 16 bit in SBUF
    sbuf_port_shared: Leaf  # with GpSimd: 1 where the two take turns at SBUF, 0 where each has its own port
    psum_port_shared: Leaf  # with the Scalar Engine: 1 where the two take turns at PSUM, 0 where each has its own port


@_record
class Scalar:
    """Scalar Engine (ACT): activation functions from tables; one element per lane and cycle, computed in fp32."""

    lanes: Leaf
    clock_hz: Leaf
    overhead_cycles: Leaf
    min_cycles: Leaf
    latency_cycles: Leaf
    table_load_s: Leaf  # switching the activation table
    copy_speedup_16bit: Leaf  # tensor_copy, both sides 16 bit in SBUF


@_record
class GpSimd:
    """GpSimd Engine (Pool): eight small general-purpose SIMD cores for everything the other engines cannot do."""

    lanes: Leaf
    clock_hz: Leaf
    overhead_cycles: Leaf
    latency_cycles: Leaf


@_record
class Sbuf:
    """On-chip state buffer of one core, managed by software."""

    size_bytes: Leaf


@_record
class Psum:
    """Accumulation buffer of one core, written by the Tensor Engine in fp32."""

    size_bytes: Leaf
    banks: Leaf


@_record
class Dma:
    """The DMA engines of one core, between HBM and SBUF."""

    engines: Leaf
    bandwidth_bytes_per_s: Leaf  # all engines of the core together, datasheet
    rate: Leaf  # share of that bandwidth large queued transfers reach (dimensionless twin)
    latency_s: Leaf  # from the trigger to the data visible to the consumer, beyond the transfer itself
    issue_s: Leaf  # descriptor work per transfer on its queue
    row_overhead_bytes: Leaf  # a row of r bytes moves at r / (r + this) of the rate


@_record
class Hbm:
    """Device memory of the chip, shared by its cores stack by stack."""

    size_bytes: Leaf
    bandwidth_bytes_per_s: Leaf  # whole chip
    stacks: Leaf
    active_cores: Leaf  # cores of one stack that stream at the same time


@_record
class Link:
    """NeuronLink, per chip and direction."""

    bandwidth_bytes_per_s: Leaf
    rate: Leaf  # share collectives reach (dimensionless twin)
    latency_s: Leaf  # one step of a ring


@_record
class Energy:
    """Energy of what the chip does, and the power it draws doing nothing. AWS publishes none: see the sources in the chip files."""

    mac_fp32_j: Leaf  # one multiply-add of the array, its registers included, by operand width
    mac_16bit_j: Leaf
    mac_fp8_j: Leaf
    lane_op_j: Leaf  # one element through a lane of the Vector, Scalar or GpSimd Engine
    sbuf_j_per_byte: Leaf  # read or written
    psum_j_per_byte: Leaf
    hbm_j_per_byte: Leaf  # both ends of the interface
    link_j_per_byte: Leaf  # both ends of the cable
    static_w: Leaf  # whole chip: leakage and clocks
    supply_share: Leaf  # of the board's power that reaches the chip; everything else is divided by it


@_record
class Chip:
    """One Trainium chip, as one of its NeuronCores sees it.

    Leaves are floats in SI units, so a Chip can be differentiated, vmapped and batched (give leaves a shape). Names and
    format lists are static. Load one with `trn_jax.load_chip`; change one with `chip.replace({"tensor.rows": 256.0})`.
    Both give Python floats; a Chip put together by hand must do so itself, because `jax.grad` refuses integer leaves and
    every other dtype costs one more jit trace.
    """

    cores: Leaf  # NeuronCores on the chip
    tensor: Tensor
    vector: Vector
    scalar: Scalar
    gpsimd: GpSimd
    sbuf: Sbuf
    psum: Psum
    dma: Dma
    hbm: Hbm
    link: Link
    energy: Energy
    name: str = static()
    core: str = static()  # "NeuronCore-v2", ...
    formats: tuple[str, ...] = static()  # number formats the Tensor Engine takes
    psum_formats: tuple[str, ...] = static(default=("fp32",))  # number formats PSUM accumulates in
    rounds: bool = static()  # False for `ideal`: values are those of plain JAX
    uncertainty: tuple[tuple[str, float, float], ...] = static(default=())  # energy leaf, its low and high end over its value

    def replace(self, changes: Mapping[str, Any]) -> Chip:
        """A copy with some values changed, by dotted path: `chip.replace({"tensor.rows": 256.0})`.

        Args:
            changes: Dotted path to new value. Python and NumPy scalars are checked against the allowed range and become Python
                floats, so they never cost an extra jit trace. Arrays (a batch for `jax.vmap`) and tracers are taken unchecked,
                integers among them converted to floats. The statics `name`, `core`, `formats` and `rounds` can be changed too.

        Returns:
            A new Chip; the gradient flows through the given values.

        Raises:
            ChipError: If a path is unknown, or a concrete value is no number or out of range.
        """
        return replace_leaves(self, changes)

    def get(self, path: str) -> Leaf:
        """The value at a dotted path: `chip.get("tensor.rows")`. Raises ChipError, with the closest name, if there is none."""
        return get_leaf(self, path)

    def __repr__(self) -> str:
        leaves = jax.tree.leaves(self, is_leaf=lambda x: x is None)
        if not all(isinstance(leaf, (int, float)) for leaf in leaves) or len(leaves) != len(leaf_paths(self)):
            kinds = Counter(_kind(leaf) for leaf in leaves)
            return f"Chip({self.name!r}, {self.core}, leaves: {', '.join(f'{n} {kind}' for kind, n in kinds.items())})"
        tensor, hbm = self.tensor, self.hbm
        array = f"{tensor.rows:g}x{tensor.cols:g} at {format_quantity(tensor.clock_hz, 'Hz')}"
        memory = f"{format_quantity(hbm.size_bytes, 'B')} HBM at {format_quantity(hbm.bandwidth_bytes_per_s, 'B/s')}"
        return f"Chip({self.name!r}, {self.core}, {self.cores:g} cores of {array}, {memory})"


def _kind(leaf: Any) -> str:
    """A leaf's type for `repr`, which also has to print tracers, gradients and whatever JAX puts into a record."""
    dtype, shape = getattr(leaf, "dtype", None), getattr(leaf, "shape", None)
    return type(leaf).__name__ if dtype is None or shape is None else f"{dtype}[{','.join(map(str, shape))}]"
