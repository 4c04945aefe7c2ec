"""PSUM accumulation: a matrix product as a sum over K tiles, in the order in which the Tensor Engine issues them.

psum = tile 0;   psum = psum + tile 1;   psum = psum + tile 2;   ...          tile i = lhs[:, K_i] @ rhs[K_i, :] in fp32
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Float32

from trn_jax.engines.contraction import DotDimensionNumbers, Layout, OneAxis


@partial(jax.jit, static_argnames=("layout", "rows"))
def tiled(lhs: Float[Array, "*lhs"], rhs: Float[Array, "*rhs"], layout: Layout, rows: int) -> Float32[Array, "*out"]:
    """Sums the products of K tiles of `rows` in order, in fp32.

    The first tile overwrites PSUM. The last one is filled up with zeros, as idle rows of the array are. Tiles are read from the
    operands where they lie, since moving K to the front costs more than the dots gain.

    Args:
        lhs: Left operand, already rounded.
        rhs: Right operand, already rounded.
        layout: How the two are contracted.
        rows: Contraction depth of one tile.

    Returns:
        The product with the layout's output axes.

    Gradient: JAX's, through the loop; `engines.tensor` replaces it.
    Basis: documented (fp32 accumulation in PSUM in the order of issue); the order inside one tile is XLA's.
    """
    x = layout.one_axis(lhs, rhs)
    depth = x.lhs.shape[x.lhs_axis]
    tiles = -(-depth // rows)
    if tiles <= 1:
        return layout.finish(dot(x.lhs, x.rhs, x.dimension_numbers), lhs.shape, rhs.shape)
    x = x._replace(lhs=_fill(x.lhs, x.lhs_axis, tiles * rows), rhs=_fill(x.rhs, x.rhs_axis, tiles * rows))
    if tiles == 2:  # one dot with the tile as a batch axis: half the program of a loop, and the same sum
        both = _dot_of_tiles(x, rows)
        return layout.finish(both[0] + both[1], lhs.shape, rhs.shape)

    psum = tiled_by(partial(dot, dimension_numbers=x.dimension_numbers), x.lhs, x.rhs, axes=(x.lhs_axis, x.rhs_axis), rows=rows)
    return layout.finish(psum, lhs.shape, rhs.shape)


def tiled_by(
    product: Callable[[Array, Array], Array], lhs: Float[Array, "*lhs"], rhs: Float[Array, "*rhs"], *, axes: tuple[int, int], rows: int
) -> Float32[Array, "*out"]:
    """As `tiled`, of any `product` that is a sum over K: the axis `axes[0]` of lhs and `axes[1]` of rhs.

    Gradient: JAX's, through the loop; `engines.tensor` replaces it. Basis: as `tiled`.
    """
    tiles = -(-lhs.shape[axes[0]] // rows)
    if tiles <= 1:
        return product(lhs, rhs)
    lhs, rhs = _fill(lhs, axes[0], tiles * rows), _fill(rhs, axes[1], tiles * rows)

    def tile(i) -> Array:
        start = i * np.uint32(rows)  # unsigned, because JAX adds code that counts a signed start from the end
        return product(lax.dynamic_slice_in_dim(lhs, start, rows, axes[0]), lax.dynamic_slice_in_dim(rhs, start, rows, axes[1]))

    return lax.fori_loop(np.uint32(1), np.uint32(tiles), lambda i, psum: psum + tile(i), tile(np.uint32(0)))


def dot(lhs: Array, rhs: Array, dimension_numbers: DotDimensionNumbers) -> Float32[Array, "*out"]:
    """One dot with fp32 products and sums on every backend."""
    # Some products of a transposed narrow operand with an fp32 result do not exist in XLA's CPU backend.
    transposed = lhs.dtype.itemsize < 4 and lhs.ndim - 1 not in dimension_numbers[0][0]
    if lhs.dtype != rhs.dtype or transposed:
        lhs, rhs = lhs.astype(jnp.float32), rhs.astype(jnp.float32)
    # Without HIGHEST, a GPU or TPU would round fp32 operands to fewer bits of its own choice.
    return lax.dot_general(lhs, rhs, dimension_numbers, precision=lax.Precision.HIGHEST, preferred_element_type=jnp.float32)


def _fill(x: Array, axis: int, size: int) -> Array:
    """`x` with zeros behind it along `axis`."""
    missing = size - x.shape[axis]
    return x if not missing else lax.pad(x, jnp.zeros((), x.dtype), [(0, missing if i == axis else 0, 0) for i in range(x.ndim)])


def _dot_of_tiles(x: OneAxis, rows: int) -> Array:
    """The products of all K tiles at once, on a leading axis."""
    _, (lhs_batch, rhs_batch) = x.dimension_numbers
    contract = ((x.lhs_axis + 1,), (x.rhs_axis + 1,))
    batch = (_shift(x.lhs_axis, lhs_batch), _shift(x.rhs_axis, rhs_batch))
    return dot(_cut(x.lhs, x.lhs_axis, rows), _cut(x.rhs, x.rhs_axis, rows), (contract, batch))


def _cut(x: Array, axis: int, rows: int) -> Array:
    """`x` with `axis` as two axes: tile, and row within the tile."""
    return x.reshape(*x.shape[:axis], x.shape[axis] // rows, rows, *x.shape[axis + 1 :])


def _shift(axis: int, batch: tuple[int, ...]) -> tuple[int, ...]:
    """Batch axes after `axis` became two, led by the tile."""
    return (axis, *(i if i < axis else i + 1 for i in batch))
