"""Softmax of rows: the maximum on Vector, exp and its sum in one pass on Scalar, the division as a product with 1 / sum."""

import jax

import trn_jax as trn

ROWS = 128


@trn.kernel
def softmax(nc, x):
    """Softmax over the last axis of x [rows, columns]; rows are a multiple of 128."""
    out = nc.ndarray(x.shape, x.dtype, buffer="hbm")
    for i in nc.affine_range(x.shape[0] // ROWS):
        rows = slice(i * ROWS, (i + 1) * ROWS)
        scores = nc.load(x[rows, :])
        least = nc.tensor_reduce("maximum", scores, negate=True, dtype="float32")
        powers, total = nc.activation_reduce("exp", scores, bias=least, dtype="float32")
        nc.store(out[rows, :], nc.tensor_scalar(powers, "multiply", nc.reciprocal(total), dtype=x.dtype))
    return out


def plain(x):
    """The same in JAX."""
    return jax.nn.softmax(x.astype("float32"), axis=-1).astype(x.dtype)
