"""Scalar Engine (ACT): functions of one tensor from tables, one column per cycle, computed in fp32.

cycles = N + overhead per instruction; scale, bias and the function itself are free
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import jax

from trn_jax.chips.schema import Chip
from trn_jax.engines.kind import Cost, Execution, Kind, Static, compute_fp32
from trn_jax.engines.stream import PSUM_COLUMNS, SBUF_COLUMNS, streaming_cost
from trn_jax.graph.instruction import Instruction
from trn_jax.numerics import ActivationTable


def cost_activation(work: Any, chip: Chip, smoothing: Any, static: Static) -> Cost:
    """N columns; loading the function's table is left out, as a good order of instructions seldom changes it."""
    columns = PSUM_COLUMNS if static.function == "evacuate" else SBUF_COLUMNS
    return streaming_cost(work.elements, chip.scalar, smoothing, columns=columns, min_cycles=chip.scalar.min_cycles)


def cost_activation_reduce(work: Any, chip: Chip, smoothing: Any, static: Static) -> Cost:
    """N columns, and a second, shortest instruction that reads the accumulator."""
    shortest = chip.scalar.min_cycles
    columns = PSUM_COLUMNS if static.function == "evacuate" else SBUF_COLUMNS
    return streaming_cost(work.elements, chip.scalar, smoothing, columns=columns, min_cycles=shortest, extra_cycles=shortest)


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
        cost=cost_activation, compute=compute_fp32, basis=_TABLE + "tensor_copy: max(64, N)", functions=frozenset({"evacuate"})
    ),
}
