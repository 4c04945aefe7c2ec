"""An instruction kind: what it computes and what it costs. Each engine's file holds a table KINDS of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp

from trn_jax.engines.integers import through_fp32
from trn_jax.engines.rounded import note_rounding
from trn_jax.faults import Fault
from trn_jax.graph.instruction import Instruction
from trn_jax.numerics import Overflow, Rounding, rounder


class Cost(NamedTuple):
    """Time of one instruction record, in seconds (arrays that broadcast over records and chips).

    occupancy_s: how long its engine is busy. latency_s >= occupancy_s: from start to the whole result visible. The first of
    `tiles` pieces is visible after occupancy / tiles, which is when a consumer may start to stream.
    """

    occupancy_s: Any
    latency_s: Any
    tiles: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Static:
    """What a cost may depend on besides sizes: the fields of an `Instruction` that are part of the jit key."""

    narrow: bool = False
    function: str = ""
    operand_formats: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """How the chip computes, as far as an instruction needs to know it."""

    rounding: Rounding = "nearest"
    overflow: Overflow | None = None
    fidelity: str = "tiled"
    rows: int = 128
    cols: int = 128
    psum: str = "fp32"  # format of PSUM
    array_faults: tuple[Fault, ...] = ()  # those of the Tensor Engine's array


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One row of an engine's table.

    Attributes:
        cost: `cost(work, chip, smoothing, static) -> Cost`; `work` holds arrays in place of numbers, `static` is a `Static`.
        compute: `compute(instruction, function, operands, execution, key) -> list of outputs`, where `function(*operands)`
            is the mathematics in fp32, or None for an instruction that only prepares data and leaves values as they are.
        basis: documented, derived, measured or assumed, with the source of the cost.
        functions: Functions that its cost tells apart; any other reaches it as "", so that rows are priced together.
    """

    cost: Callable[..., Cost]
    compute: Callable[..., list[Any]] | None
    basis: str
    functions: frozenset[str] = frozenset()


def is_narrow_float(x: Any) -> bool:
    """Whether `x` holds floats narrower than fp32."""
    dtype = jnp.result_type(x)
    return jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize < 4


def compute_fp32(
    instruction: Instruction, function: Callable[..., list[Any]], operands: Sequence[Any], execution: Execution, key: Any
) -> list[Any]:
    """Vector, Scalar and GpSimd arithmetic: widen to fp32, compute, round once on write. Values stay fp32 here.

    Basis: documented (NKI architecture guide: the engines cast to fp32, compute in fp32 and cast to the output's dtype).
    """
    if instruction.integers_in_fp32:
        return through_fp32(function, operands)
    widened = [jnp.asarray(x, jnp.float32) if is_narrow_float(x) else x for x in operands]
    return write(instruction, function(*widened), execution, key)


def compute_move(
    instruction: Instruction, function: Callable[..., list[Any]], operands: Sequence[Any], execution: Execution, key: Any
) -> list[Any]:
    """Pure data movement: the values stay what they are."""
    return function(*operands)


def write(instruction: Instruction, values: Sequence[Any], execution: Execution, key: Any) -> list[Any]:
    """Rounds each value to its write format, every output with its own random stream."""
    outputs = []
    for position, (value, fmt) in enumerate(zip(values, instruction.write_formats, strict=True)):
        if fmt:
            stream = None if key is None else key.split(position)
            rounded = rounder(fmt, execution.rounding, execution.overflow)(value, stream)
            note_rounding(instruction, "write", position, fmt, value, rounded)
            value = rounded
        outputs.append(value)
    return outputs
