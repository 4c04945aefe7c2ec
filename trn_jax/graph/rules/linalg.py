"""Dense linear algebra that JAX keeps as primitives: no unit of the NeuronCore does it, so it is priced as GpSimd work.

Basis: assumed (one lane operation per multiply-add of the textbook algorithm, n^3 for an n x n factorisation).
"""

from __future__ import annotations

from trn_jax.graph.graph import Op
from trn_jax.graph.instruction import Instruction
from trn_jax.graph.numerics import Numerics
from trn_jax.graph.rules.registry import register_rule, streaming

FACTORISATIONS = (
    "cholesky cholesky_update lu lu_pivots_to_permutation qr geqrf geqp3 householder_product ormqr eig eigh svd schur hessenberg "
    "tridiagonal tridiagonal_solve triangular_solve symmetric_product"
).split()


@register_rule(*FACTORISATIONS)
def _factorise(op: Op, numerics: Numerics) -> Instruction:
    largest = max(op.inputs, key=lambda value: value.size)
    side = min(largest.shape[-2:], default=1) if largest.shape else 1
    return streaming(op, numerics, "gpsimd", "custom", elements=largest.size * max(1, side))
