"""Scans that are one Vector instruction: state = decay * state + entering, every state kept (tensor_tensor_scan).

Basis: documented (NKI: tensor_tensor_scan multiplies and adds along the free dimension, the state in the lane; fused Mamba tutorial).
"""

from __future__ import annotations

from trn_jax.graph.graph import Op, Scan
from trn_jax.graph.instruction import Instruction, Work

RECURRENCE = "linear_recurrence"


def is_linear_recurrence(scan: Scan) -> bool:
    """Whether a scan multiplies its only carry by something known beforehand, adds something known beforehand, and does no more."""
    if scan.num_carry != 1 or len(scan.body.nodes) != 2:
        return False
    state = scan.body.inputs[scan.num_consts]
    multiply, add = scan.body.nodes
    if not (isinstance(multiply, Op) and isinstance(add, Op)) or (multiply.name, add.name) != ("mul", "add"):
        return False
    (product,), (total,) = multiply.outputs, add.outputs
    once = multiply.inputs.count(state) == 1 and add.inputs.count(product) == 1 and state not in add.inputs
    return once and state.is_float and state.size > 0 and all(value is total for value in scan.body.outputs)


def scan_instruction(scan: Scan) -> Instruction:
    """The instruction that runs all iterations of a linear recurrence."""
    state = scan.body.inputs[scan.num_consts]
    work = Work(elements=float(state.size * scan.length), operands=2.0, rows=float(state.size))
    return Instruction(
        engine="vector", kind="tensor_tensor_scan", function=RECURRENCE, work=work, write_formats=("",), narrow=state.dtype.itemsize < 4
    )
