"""jax.experimental.sparse: matrices kept as their stored numbers and indices, gathered and multiplied on GpSimd.

Basis: assumed (one lane operation per stored number and dense column; no sparse unit for such formats is documented).
"""

from __future__ import annotations

from trn_jax.graph.graph import Op
from trn_jax.graph.instruction import Instruction
from trn_jax.graph.numerics import Numerics
from trn_jax.graph.rules.registry import register_rule, streaming

PRODUCTS = (
    "bcoo_dot_general bcoo_dot_general_sampled bcoo_spdot_general bcsr_dot_general coo_matmat coo_matvec coo_spmm coo_spmv csr_matmat "
    "csr_matvec csr_spmm csr_spmv spsolve"
).split()

CONVERSIONS = (
    "bcoo_extract bcoo_fromdense bcoo_sort_indices bcoo_sum_duplicates bcoo_todense bcoo_transpose bcsr_extract bcsr_fromdense "
    "bcsr_todense coo_fromdense coo_todense csr_fromdense csr_todense todense"
).split()


@register_rule(*PRODUCTS)
def _product(op: Op, numerics: Numerics) -> Instruction:
    """The first operand holds the stored numbers."""
    shape = op.outputs[0].shape
    columns = shape[-1] if len(shape) > 1 else 1
    return streaming(op, numerics, "gpsimd", "custom", elements=op.inputs[0].size * columns)


@register_rule(*CONVERSIONS)
def _conversion(op: Op, numerics: Numerics) -> Instruction:
    return streaming(op, numerics, "gpsimd", "custom")
