"""Flash attention, forward: scores of 128 queries and 512 keys at a time; running maxima and sums make them one softmax.

m' = max(m, max s)     a = exp(m - m')     l' = a l + sum exp(s - m')     o' = a o + exp(s - m') v     out = o / l
"""

import jax
import jax.numpy as jnp

import trn_jax as trn

QUERIES, KEYS, TILE = 128, 512, 128
LOWEST = -3e38


@trn.kernel
def flash_attention(nc, q, k, v):
    """softmax(q k^T / sqrt(d)) v of every head, without mask.

    q and k are [heads, d, length], so that they are ready for the array; v is [heads, length, d]; d is at most 128, lengths are
    multiples of 128 (queries) and 512 (keys).
    """
    (heads, d, length), keys = q.shape, k.shape[2]
    scale = float(d) ** -0.5
    out = nc.ndarray((heads, length, d), q.dtype, buffer="hbm")
    for h in nc.affine_range(heads):
        for i in nc.affine_range(length // QUERIES):
            rows = slice(i * QUERIES, (i + 1) * QUERIES)
            q_tile = nc.load(q[h, :, rows])
            negative_maximum = nc.memset(nc.ndarray((QUERIES, 1), name="negative_maximum"), -LOWEST)
            total = nc.memset(nc.ndarray((QUERIES, 1), name="total"), 0.0)
            mixed = nc.memset(nc.ndarray((QUERIES, d), name="mixed"), 0.0)
            for j in nc.sequential_range(keys // KEYS):
                columns = slice(j * KEYS, (j + 1) * KEYS)
                k_tile = nc.load(k[h, :, columns])
                v_tile = nc.ndarray((TILE, KEYS // TILE, d), v.dtype, name="v_tile")
                for p in range(KEYS // TILE):
                    nc.load(v[h, j * KEYS + p * TILE : j * KEYS + (p + 1) * TILE, :], dst=v_tile[:, p, :], queue="scalar")
                scores = nc.nc_matmul(q_tile, k_tile)
                largest = nc.tensor_reduce("maximum", scores, dtype="float32")
                lower = nc.tensor_scalar(largest, "multiply", -scale, "minimum", negative_maximum)
                shrink = nc.activation("exp", nc.tensor_tensor(lower, negative_maximum, "subtract"))
                weights, added = nc.activation_reduce("exp", scores, bias=lower, scale=scale, dtype=q.dtype)
                nc.tensor_copy(lower, dst=negative_maximum)
                nc.tensor_tensor(nc.tensor_scalar(total, "multiply", shrink), added, "add", dst=total)
                product = nc.ndarray((QUERIES, d), buffer="psum", name="product")
                turned = nc.ndarray((TILE, KEYS // TILE, QUERIES), q.dtype, "psum", name="turned")
                for p in range(KEYS // TILE):
                    nc.nc_transpose(weights[:, p * TILE : (p + 1) * TILE], dst=turned[:, p, :])
                turned = nc.tensor_copy(turned)
                for p in range(KEYS // TILE):
                    nc.nc_matmul(turned[:, p, :], v_tile[:, p, :], dst=product)
                nc.tensor_tensor(nc.tensor_scalar(mixed, "multiply", shrink), product, "add", dst=mixed)
            nc.store(out[h, rows, :], nc.tensor_scalar(mixed, "multiply", nc.reciprocal(total), dtype=out.dtype))
    return out


def plain(q, k, v):
    """The same in JAX, in fp32."""
    q, k, v_wide = (x.astype(jnp.float32) for x in (q, k, v))
    scores = jnp.einsum("hdq,hdk->hqk", q, k) * q.shape[1] ** -0.5
    return jnp.einsum("hqk,hkd->hqd", jax.nn.softmax(scores, axis=-1), v_wide).astype(v.dtype)
