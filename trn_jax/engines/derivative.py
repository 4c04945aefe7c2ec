"""The derivative of a matrix product, whatever loop makes its value: d(a b) = da b + a db."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

Product = Callable[[Array, Array], Array]


def with_derivative_of(plain: Product, compute: Product) -> Product:
    """`compute`, differentiated as the bilinear `plain`: one dot per operand, forward and reverse, to any order.

    JAX's own derivative of a loop over tiles or clock cycles keeps every step of it; this keeps the operands.
    """
    product = jax.custom_jvp(compute)

    def jvp(primals: tuple[Array, Array], tangents: tuple[Any, Any]) -> tuple[Array, Array]:
        (lhs, rhs), (lhs_dot, rhs_dot) = primals, tangents
        out = product(lhs, rhs)
        terms = [] if _is_zero(lhs_dot) else [plain(lhs_dot, rhs)]
        terms += [] if _is_zero(rhs_dot) else [plain(lhs, rhs_dot)]
        return out, sum(terms[1:], terms[0]) if terms else jnp.zeros_like(out)

    product.defjvp(jvp, symbolic_zeros=True)
    return product


def _is_zero(tangent: Any) -> bool:
    return isinstance(tangent, jax.custom_derivatives.SymbolicZero)
