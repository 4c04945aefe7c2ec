"""Scalar Engine (ACT): functions of one tensor from tables, one column per cycle, computed in fp32.

cycles = N + overhead per instruction; scale, bias and the function itself are free, once the function's table is loaded
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp

from trn_jax.chips.schema import Chip
from trn_jax.engines.kind import Cost, Execution, Kind, Static, compute_fp32
from trn_jax.engines.stream import PSUM_COLUMNS, SBUF_COLUMNS, streaming_cost
from trn_jax.graph.instruction import Instruction
from trn_jax.numerics import ActivationTable


def cost_activation(work: Any, chip: Chip, smoothing: Any, static: Static) -> Cost:
    """N columns; the load of the function's table is an instruction of its own."""
    columns = PSUM_COLUMNS if static.function == "evacuate" else SBUF_COLUMNS
    return streaming_cost(work.elements, chip.scalar, smoothing, columns=columns, min_cycles=chip.scalar.min_cycles)


def cost_copy(work: Any, chip: Chip, smoothing: Any, static: Static) -> Cost:
    """N columns; fewer cycles for 16-bit data between SBUF and SBUF where the chip can."""
    fast = static.narrow and static.function != "evacuate"
    if not fast:
        return cost_activation(work, chip, smoothing, static)
    s = chip.scalar
    return streaming_cost(work.elements, s, smoothing, 1 / s.copy_speedup_16bit, min_cycles=s.min_cycles)


def cost_activation_reduce(work: Any, chip: Chip, smoothing: Any, static: Static) -> Cost:
    """N columns, and a second, shortest instruction that reads the accumulator."""
    shortest = chip.scalar.min_cycles
    columns = PSUM_COLUMNS if static.function == "evacuate" else SBUF_COLUMNS
    return streaming_cost(work.elements, chip.scalar, smoothing, columns=columns, min_cycles=shortest, extra_cycles=shortest)


def cost_table_load(work: Any, chip: Chip, smoothing: Any, static: Static) -> Cost:
    """The time of one load, whatever the set; the next activation follows it in order."""
    seconds = chip.scalar.table_load_s + jnp.zeros_like(work.elements)
    return Cost(seconds, seconds, jnp.ones_like(work.elements))


def compute_activation(
    instruction: Instruction, function: Callable[..., list[Any]], operands: Sequence[Any], execution: Execution, key: Any
) -> list[Any]:
    """The function in fp32, exact or from the instruction's table, rounded once on write.

    Gradient: the exact function's in both.
    Basis: documented (NKI reference: functions are evaluated from tables of piecewise polynomials).
    """
    if instruction.table is not None:
        function = _tabulated(cast("ActivationTable", instruction.table), function)
    return compute_fp32(instruction, function, operands, execution, key)


def _tabulated(table: ActivationTable, exact: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    @jax.custom_jvp
    def value(x: Any) -> Any:
        return table(x)

    value.defjvp(lambda primals, tangents: (value(*primals), jax.jvp(lambda x: exact(x)[0], primals, tangents)[1]))
    return lambda x: [value(x)]


TABLE_LOAD = "act_table_load"
WITH_TABLE = frozenset({"activation", "activation_reduce"})  # kinds whose function may need a table

_TABLE = "documented: NKI instruction reference, SDK 2.26, "

KINDS = {
    "activation": Kind(
        cost=cost_activation, compute=compute_activation, basis=_TABLE + "activation: max(64, N)", functions=frozenset({"evacuate"})
    ),
    "activation_reduce": Kind(
        cost=cost_activation_reduce,
        compute=compute_fp32,
        basis=_TABLE + "activation_reduce: max(64, N) + 64",
        functions=frozenset({"evacuate"}),
    ),
    "tensor_copy": Kind(
        cost=cost_copy,
        compute=compute_fp32,
        basis=_TABLE + "tensor_copy: max(64, N); Trainium3 guide: up to twice as fast for 16-bit floats",
        functions=frozenset({"evacuate"}),
    ),
    TABLE_LOAD: Kind(
        cost=cost_table_load,
        compute=None,
        basis="measured: scalar.table_load_s; no formula is published (AWS profiler screenshots, ACT_TABLE_LOAD)",
    ),
}
