"""The derivative of a matrix product, whatever loop makes its value: d(a b) = da b + a db."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

Product = Callable[[Array, Array], Array]


def with_derivative_of(
    plain: Callable[..., Array], compute: Callable[..., Array], rounded: Callable[..., Any] | None = None
) -> Callable[..., Array]:
    """`compute`, differentiated as the bilinear `plain`: one dot per operand, forward and reverse, to any order.

    The derivative is taken at the operands, or at those that `rounded` makes of them, which is itself passed straight through.
    What comes behind two operands (a random stream, the sizes of groups) has no derivative; without `rounded`, `plain` gets it too.

    JAX's own derivative of a loop over tiles or clock cycles keeps every step of it; this keeps the operands.
    """
    product = jax.custom_jvp(compute)

    def jvp(primals: tuple[Array, ...], tangents: tuple[Any, ...]) -> tuple[Array, Array]:
        lhs_dot, rhs_dot, *_ = tangents
        out = product(*primals)
        lhs, rhs, *others = rounded(*primals) if rounded else primals
        terms = [] if _is_zero(lhs_dot) else [plain(lhs_dot, rhs, *others)]
        terms += [] if _is_zero(rhs_dot) else [plain(lhs, rhs_dot, *others)]
        return out, sum(terms[1:], terms[0]) if terms else jnp.zeros_like(out)

    product.defjvp(jvp, symbolic_zeros=True)
    return product


def _is_zero(tangent: Any) -> bool:
    return isinstance(tangent, jax.custom_derivatives.SymbolicZero)
