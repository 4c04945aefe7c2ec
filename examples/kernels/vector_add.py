"""Vector addition in tiles of any width: the width decides how much of the time is fixed cost of transfers."""

import jax.numpy as jnp

import trn_jax as trn

PARTITIONS = 128


@trn.kernel
def vector_add(nc, x, y, width: int = 512):
    """x + y of two vectors whose length is a multiple of 128; `width` elements of each partition at a time, the last tile narrower."""
    (length,) = x.shape
    columns = length // PARTITIONS
    width = min(width, columns)
    out = nc.ndarray((length,), x.dtype, buffer="hbm")
    x, y, result = (vector.reshape((PARTITIONS, columns)) for vector in (x, y, out))

    def add(part: slice) -> None:
        total = nc.tensor_tensor(nc.load(x[:, part]), nc.load(y[:, part], queue="scalar"), "add")
        nc.store(result[:, part], total)

    for i in nc.affine_range(columns // width):
        add(slice(i * width, (i + 1) * width))
    if columns % width:
        add(slice(columns - columns % width, columns))
    return out


def plain(x, y):
    """The same in JAX."""
    return jnp.add(x, y)
