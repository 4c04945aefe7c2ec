"""Operands sharded over an explicit mesh: a loop over tiles needs the axes it walks along whole on every device.

JAX places one dot of sharded operands by itself; slices of a sharded axis it refuses. So those axes are gathered first, and the result
is placed as JAX would have placed that of the one dot.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
from jax import Array

from trn_jax.engines.derivative import Product


def with_whole_axes(
    compute: Product, plain: Product, lhs_axes: Sequence[int] | None = None, rhs_axes: Sequence[int] | None = None
) -> Product:
    """`compute` on operands with these axes (by default all) gathered, its result sharded as that of `plain`; on one device just `compute`.

    Under shard_map, on automatic meshes and on one device nothing is sharded explicitly and nothing happens.
    """

    def product(lhs: Array, rhs: Array) -> Array:
        if not (_is_sharded(lhs) or _is_sharded(rhs)):
            return compute(lhs, rhs)
        placed = jax.eval_shape(plain, lhs, rhs).sharding
        return jax.reshard(compute(_gather(lhs, lhs_axes), _gather(rhs, rhs_axes)), placed)

    return product


def _is_sharded(x: Array) -> bool:
    return any(axis is not None for axis in jax.typeof(x).sharding.spec)


def _gather(x: Array, axes: Sequence[int] | None) -> Array:
    mesh, spec = jax.typeof(x).sharding.mesh, jax.typeof(x).sharding.spec
    whole = jax.P(*(None if axes is None or axis in axes else name for axis, name in enumerate(spec)))
    return jax.reshard(x, jax.NamedSharding(mesh, whole))
