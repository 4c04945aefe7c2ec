"""Reductions, scans along an axis and window reductions: the Vector Engine.

Basis: documented (NKI: tensor_reduce, tensor_tensor_scan, max8; a sum over partitions would go through the Tensor Engine, a
layout choice that is not modelled here).
"""

from __future__ import annotations

import math

from trn_jax.graph.graph import Op
from trn_jax.graph.instruction import Instruction
from trn_jax.graph.numerics import Numerics
from trn_jax.graph.rules.registry import register_rule, streaming

REDUCTIONS = {
    "reduce_sum": "add",
    "reduce_max": "maximum",
    "reduce_min": "minimum",
    "reduce_prod": "multiply",
    "reduce_and": "bitwise_and",
    "reduce_or": "bitwise_or",
    "reduce_xor": "bitwise_xor",
    "reduce": "custom",
}

SCANS = {"cumsum": "add", "cumprod": "multiply", "cummax": "maximum", "cummin": "minimum", "cumlogsumexp": "logaddexp"}

WINDOWS = {
    "reduce_window": "custom",
    "reduce_window_sum": "add",
    "reduce_window_max": "maximum",
    "reduce_window_min": "minimum",
    "select_and_gather_add": "add",
    "select_and_scatter_add": "add",
    "select_and_scatter": "custom",
}


@register_rule(*REDUCTIONS)
def _reduce(op: Op, numerics: Numerics) -> Instruction:
    return streaming(op, numerics, "vector", "tensor_reduce", REDUCTIONS[op.name])


@register_rule("argmax", "argmin")
def _arg_reduce(op: Op, numerics: Numerics) -> Instruction:
    """max8 and find_index8 of the Vector Engine: two passes over the data."""
    return streaming(op, numerics, "vector", "max8", elements=2 * op.inputs[0].size)


@register_rule(*SCANS)
def _scan(op: Op, numerics: Numerics) -> Instruction:
    return streaming(op, numerics, "vector", "tensor_tensor_scan", SCANS[op.name])


@register_rule(*WINDOWS)
def _window(op: Op, numerics: Numerics) -> Instruction:
    """Every output reads its whole window."""
    window = math.prod(op.params.get("window_dimensions", (1,)))
    elements = max(min(value.size for value in (*op.inputs[:1], *op.outputs)) * window, op.inputs[0].size)
    return streaming(op, numerics, "vector", "tensor_reduce", WINDOWS[op.name], elements=elements)
