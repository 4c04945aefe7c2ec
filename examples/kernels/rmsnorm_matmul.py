"""RMSNorm fused with the product behind it: rows are normalised in SBUF, transposed on the Tensor Engine and multiplied."""

import jax
import jax.numpy as jnp

import trn_jax as trn

TILE, COLUMNS = 128, 512


@trn.kernel
def rmsnorm_matmul(nc, x, w, epsilon: float = 1e-6):
    """rmsnorm(x) @ w for x [rows, K] and w [K, N], all of w in SBUF; rows and K are multiples of 128, N of 512."""
    (rows, depth), n = x.shape, w.shape[1]
    tiles = depth // TILE
    out = nc.ndarray((rows, n), x.dtype, buffer="hbm")
    weights = nc.ndarray((TILE, tiles, n), w.dtype, name="weights")
    for p in nc.affine_range(tiles):
        nc.load(w[p * TILE : (p + 1) * TILE, :], dst=weights[:, p, :], queue="scalar")
    smallest = nc.memset(nc.ndarray((TILE, 1), name="epsilon"), epsilon)
    for i in nc.affine_range(rows // TILE):
        part = slice(i * TILE, (i + 1) * TILE)
        x_tile = nc.load(x[part, :])
        _, squares = nc.activation_reduce("square", x_tile, dtype="float32")
        inverse = nc.activation("rsqrt", squares, scale=1.0 / depth, bias=smallest)
        normal = nc.tensor_scalar(x_tile, "multiply", inverse)
        turned = nc.ndarray((TILE, tiles, TILE), x.dtype, name="turned")
        for p in nc.affine_range(tiles):
            nc.tensor_copy(nc.nc_transpose(normal[:, p * TILE : (p + 1) * TILE]), dst=turned[:, p, :], engine="scalar")
        for j in nc.affine_range(n // COLUMNS):
            columns = slice(j * COLUMNS, (j + 1) * COLUMNS)
            total = nc.ndarray((TILE, COLUMNS), buffer="psum")
            for p in nc.affine_range(tiles):
                nc.nc_matmul(turned[:, p, :], weights[:, p, columns], dst=total)
            nc.store(out[part, columns], nc.tensor_copy(total, dtype=out.dtype))
    return out


def plain(x, w, epsilon: float = 1e-6):
    """The same in JAX, normalised in fp32 and rounded once before the product."""
    wide = x.astype(jnp.float32)
    normal = (wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + epsilon)).astype(x.dtype)
    return jnp.matmul(normal, w, preferred_element_type=jnp.float32).astype(x.dtype)
