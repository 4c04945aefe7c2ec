"""Element-wise primitives: arithmetic on the Vector Engine, functions of one argument on the Scalar Engine.

Basis: documented (NKI architecture guide and API: Vector takes two-tensor operations, Scalar takes activation functions,
32-bit integer arithmetic is native on GpSimd only).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from trn_jax.graph.graph import Op
from trn_jax.graph.instruction import Instruction
from trn_jax.graph.numerics import Numerics
from trn_jax.graph.rules.registry import register_rule, register_views, streaming

# primitive -> ALU operation of the Vector Engine, in NKI's words
ALU = {
    "add": "add",
    "add_any": "add",
    "sub": "subtract",
    "mul": "multiply",
    "div": "divide",
    "rem": "mod",
    "max": "maximum",
    "min": "minimum",
    "neg": "negative",
    "abs": "abs",
    "sign": "sign",
    "pow": "power",
    "integer_pow": "power",
    "square": "square",
    "floor": "floor",
    "ceil": "ceil",
    "round": "rint",
    "and": "bitwise_and",
    "or": "bitwise_or",
    "xor": "bitwise_xor",
    "not": "invert",
    "shift_left": "left_shift",
    "shift_right_logical": "right_shift",
    "shift_right_arithmetic": "arithmetic_right_shift",
    "eq": "equal",
    "ne": "not_equal",
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
    "eq_to": "equal",
    "lt_to": "less",
    "le_to": "less_equal",
    "is_finite": "is_finite",
    "nextafter": "nextafter",
    "clamp": "clamp",
    "clz": "count_leading_zeros",
    "population_count": "population_count",
    "one_minus_square": "one_minus_square",
}

# primitives that the Scalar Engine evaluates from its tables
ACTIVATIONS = (
    "exp exp2 log log2 log1p expm1 tanh logistic sin cos tan asin acos atan atan2 sinh cosh asinh acosh atanh sqrt rsqrt cbrt "
    "erf erfc erf_inv lgamma digamma bessel_i0e bessel_i1e"
).split()

# special functions of several arguments, evaluated by iteration on GpSimd
SPECIAL = "igamma igammac igamma_grad_a polygamma zeta regularized_incomplete_beta random_gamma_grad polynomial".split()

COPIES = {
    "convert_element_type": "cast",
    "reduce_precision": "cast",
    "round_to": "cast",  # trn_jax.round_to in a user's function
    "copy": "copy",
    "copy_p": "copy",
    "real": "copy",
    "imag": "copy",
}

CASTS = frozenset(name for name, function in COPIES.items() if function == "cast")

# results that are one of the operands, exactly representable or not a float: nothing to round if the operands were rounded
EXACT = frozenset("max min neg abs sign select_n clamp copy real imag floor ceil round stop_gradient".split())

register_views(
    "stop_gradient",
    "name",
    "optimization_barrier",
    "pvary",
    "pcast",
    "replicated",
    "sharding_constraint",
    "mesh_cast",
    "reshard",
    "device_put",
    "layout_constraint",
    "with_memory_space_constraint",
    "preduced",
    "reduced_vary_cast",
    "reduced_vary_cast_p",
    "vary_unreduced_cast",
    "vary_unreduced_cast_p",
    "relayout",
    "inspect_sharding",
    "xla_metadata_value",
    "tie",
    "dce_sink",
    "platform_index",
)


def _is_wide_integer(op: Op) -> bool:
    return all(value.dtype in (np.dtype(np.int32), np.dtype(np.uint32), np.dtype(np.int64), np.dtype(np.uint64)) for value in op.outputs)


@register_rule(*ALU)
def _alu(op: Op, numerics: Numerics) -> Instruction:
    """tensor_tensor, or tensor_scalar where at most one operand is a full tensor; 32-bit integer arithmetic on GpSimd."""
    function = ALU[op.name]
    if function in ("add", "subtract", "multiply", "divide", "mod", "power") and _is_wide_integer(op):
        return streaming(op, numerics, "gpsimd", "tensor_tensor", function)
    instruction = streaming(op, numerics, "vector", "tensor_tensor", function)
    return instruction if instruction.work.operands > 1 else replace(instruction, kind="tensor_scalar")


@register_rule(*ACTIVATIONS)
def _activation(op: Op, numerics: Numerics) -> Instruction:
    return replace(streaming(op, numerics, "scalar", "activation"), table=numerics.table_of(op.name))


@register_rule(*SPECIAL, "complex", "conj")
def _special(op: Op, numerics: Numerics) -> Instruction:
    return streaming(op, numerics, "gpsimd", "custom")


@register_rule(*COPIES)
def _copy(op: Op, numerics: Numerics) -> tuple[Instruction, ...]:
    """A copy; a view where a conversion only makes a weak type strong."""
    if op.name == "convert_element_type" and op.inputs[0].dtype == op.outputs[0].dtype:
        return ()
    return (streaming(op, numerics, "vector", "tensor_copy", COPIES[op.name]),)


@register_rule("select_n")
def _select(op: Op, numerics: Numerics) -> Instruction:
    return streaming(op, numerics, "vector", "select")


@register_rule("bitcast_convert_type")
def _bitcast(op: Op, numerics: Numerics) -> tuple[Instruction, ...]:
    """A view where the element width stays, a copy where it changes."""
    same_width = op.inputs[0].size == op.outputs[0].size
    return () if same_width else (streaming(op, numerics, "vector", "tensor_copy", "copy"),)
