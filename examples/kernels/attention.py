"""Flash attention, forward: scores of 128 queries and 512 keys at a time; running maxima and sums make them one softmax.

m' = max(m, max s)     a = exp(m - m')     l' = a l + sum exp(s - m')     o' = a o + exp(s - m') v     out = o / l
"""

import jax
import jax.numpy as jnp

import trn_jax as trn

QUERIES, KEYS, TILE = 128, 512, 128
LOWEST = -3e38


@trn.kernel
def flash_attention(nc, q, k, v, group: int = 2):
    """softmax(q k^T / sqrt(d)) v of every head, without mask.

    q and k are [heads, d, length], so that they are ready for the array; v is [heads, length, d]; d is at most 128, lengths are
    multiples of 128 `group` (queries) and 512 (keys). `group` tiles of queries take each step together: while one waits for the
    Vector Engine, the Tensor Engine has another.
    """
    (heads, d, length), keys = q.shape, k.shape[2]
    scale, tiles = float(d) ** -0.5, range(group)
    out = nc.ndarray((heads, length, d), q.dtype, buffer="hbm")
    for h in nc.affine_range(heads):
        for i in nc.affine_range(length // (group * QUERIES)):
            rows = [slice((i * group + g) * QUERIES, (i * group + g + 1) * QUERIES) for g in tiles]
            q_tiles = [nc.load(q[h, :, rows[g]]) for g in tiles]
            negative_maximum = [nc.memset(nc.ndarray((QUERIES, 1)), -LOWEST) for _ in tiles]
            total = [nc.memset(nc.ndarray((QUERIES, 1)), 0.0) for _ in tiles]
            mixed = [nc.memset(nc.ndarray((QUERIES, d)), 0.0) for _ in tiles]
            for j in nc.sequential_range(keys // KEYS):
                k_tile = nc.load(k[h, :, j * KEYS : (j + 1) * KEYS])
                v_tile = nc.ndarray((TILE, KEYS // TILE, d), v.dtype, name="v_tile")
                for p in range(KEYS // TILE):
                    nc.load(v[h, j * KEYS + p * TILE : j * KEYS + (p + 1) * TILE, :], dst=v_tile[:, p, :], queue="sync:2")
                scores = [nc.nc_matmul(q_tiles[g], k_tile, dst=nc.ndarray((QUERIES, KEYS), buffer="psum", buffers=1)) for g in tiles]
                largest = [nc.tensor_reduce("maximum", scores[g]) for g in tiles]
                lower = [nc.tensor_scalar(largest[g], "multiply", -scale, "minimum", negative_maximum[g]) for g in tiles]
                weights = [nc.activation_reduce("exp", scores[g], bias=lower[g], scale=scale, dtype=q.dtype) for g in tiles]
                shrink = [nc.activation("exp", negative_maximum[g], scale=-1.0, bias=lower[g]) for g in tiles]
                for g in tiles:
                    nc.tensor_copy(lower[g], dst=negative_maximum[g])
                    nc.tensor_scalar(total[g], "multiply", shrink[g], "add", weights[g][1], dst=total[g])
                turned = [nc.ndarray((TILE, KEYS // TILE, QUERIES), q.dtype, "psum", buffers=1) for _ in tiles]
                for p in range(KEYS // TILE):
                    for g in tiles:
                        nc.nc_transpose(weights[g][0][:, p * TILE : (p + 1) * TILE], dst=turned[g][:, p, :])
                turned = [nc.tensor_copy(turned[g], engine="scalar" if g % 2 else "vector") for g in tiles]
                product = [nc.ndarray((QUERIES, d), buffer="psum", buffers=1) for _ in tiles]
                for p in range(KEYS // TILE):
                    for g in tiles:
                        nc.nc_matmul(turned[g][:, p, :], v_tile[:, p, :], dst=product[g])
                for g in tiles:
                    nc.tensor_tensor(nc.tensor_scalar(mixed[g], "multiply", shrink[g]), product[g], "add", dst=mixed[g])
            for g in tiles:
                nc.store(out[h, rows[g], :], nc.tensor_scalar(mixed[g], "multiply", nc.reciprocal(total[g]), dtype=out.dtype))
    return out


def plain(q, k, v):
    """The same in JAX, in fp32."""
    q, k, v_wide = (x.astype(jnp.float32) for x in (q, k, v))
    scores = jnp.einsum("hdq,hdk->hqk", q, k) * q.shape[1] ** -0.5
    return jnp.einsum("hqk,hkd->hqd", jax.nn.softmax(scores, axis=-1), v_wide).astype(v.dtype)
