"""Matrix multiplication, step by step as in AWS's NKI tutorial: each step moves fewer bytes, or the same in longer rows.

All take lhsT [K, M], the left operand transposed, and rhs [K, N], and give [M, N]. K and M are multiples of 128, N of 512, and of the
blocks.
"""

import jax.numpy as jnp

import trn_jax as trn

TILE_K, TILE_M, TILE_N = 128, 128, 512


def tile(index, size):
    """The slice of one tile."""
    return slice(index * size, (index + 1) * size)


@trn.kernel
def basic(nc, lhsT, rhs):
    """One tile: K and M at most 128, N at most 512."""
    out = nc.ndarray((lhsT.shape[1], rhs.shape[1]), lhsT.dtype, buffer="hbm")
    product = nc.nc_matmul(nc.load(lhsT), nc.load(rhs))
    nc.store(out, nc.tensor_copy(product, dtype=out.dtype))
    return out


@trn.kernel
def tiled(nc, lhsT, rhs):
    """Any number of tiles; both operands are loaded for every product."""
    (k, m), n = lhsT.shape, rhs.shape[1]
    out = nc.ndarray((m, n), lhsT.dtype, buffer="hbm")
    for i in nc.affine_range(m // TILE_M):
        for j in nc.affine_range(n // TILE_N):
            total = nc.ndarray((TILE_M, TILE_N), buffer="psum")
            for p in nc.affine_range(k // TILE_K):
                stationary = nc.load(lhsT[tile(p, TILE_K), tile(i, TILE_M)])
                moving = nc.load(rhs[tile(p, TILE_K), tile(j, TILE_N)], queue="scalar")
                nc.nc_matmul(stationary, moving, dst=total)
            nc.store(out[tile(i, TILE_M), tile(j, TILE_N)], nc.tensor_copy(total, dtype=out.dtype))
    return out


@trn.kernel
def hoisted(nc, lhsT, rhs):
    """The tiles of one row of the result are loaded once for that row."""
    (k, m), n = lhsT.shape, rhs.shape[1]
    tiles = k // TILE_K
    out = nc.ndarray((m, n), lhsT.dtype, buffer="hbm")
    for i in nc.affine_range(m // TILE_M):
        stationary = nc.ndarray((TILE_K, tiles, TILE_M), lhsT.dtype, name="lhsT_tiles")
        for p in nc.affine_range(tiles):
            nc.load(lhsT[tile(p, TILE_K), tile(i, TILE_M)], dst=stationary[:, p, :])
        for j in nc.affine_range(n // TILE_N):
            moving = nc.ndarray((TILE_K, tiles, TILE_N), rhs.dtype, name="rhs_tiles")
            for p in nc.affine_range(tiles):
                nc.load(rhs[tile(p, TILE_K), tile(j, TILE_N)], dst=moving[:, p, :], queue="scalar")
            total = nc.ndarray((TILE_M, TILE_N), buffer="psum")
            for p in nc.affine_range(tiles):
                nc.nc_matmul(stationary[:, p, :], moving[:, p, :], dst=total)
            nc.store(out[tile(i, TILE_M), tile(j, TILE_N)], nc.tensor_copy(total, dtype=out.dtype))
    return out


@trn.kernel
def blocked_free(nc, lhsT, rhs, tiles_m: int = 2, tiles_n: int = 2):
    """Blocks of tiles_m x tiles_n tiles of the result share what they load."""
    (k, m), n = lhsT.shape, rhs.shape[1]
    tiles, block_m, block_n = k // TILE_K, tiles_m * TILE_M, tiles_n * TILE_N
    out = nc.ndarray((m, n), lhsT.dtype, buffer="hbm")
    for i in nc.affine_range(m // block_m):
        stationary = nc.ndarray((TILE_K, tiles, block_m), lhsT.dtype, name="lhsT_block")
        for p in nc.affine_range(tiles):
            nc.load(lhsT[tile(p, TILE_K), tile(i, block_m)], dst=stationary[:, p, :])
        for j in nc.affine_range(n // block_n):
            moving = nc.ndarray((TILE_K, tiles, block_n), rhs.dtype, name="rhs_block")
            for p in nc.affine_range(tiles):
                nc.load(rhs[tile(p, TILE_K), tile(j, block_n)], dst=moving[:, p, :], queue="scalar")
            for bm in range(tiles_m):
                for bn in range(tiles_n):
                    total = nc.ndarray((TILE_M, TILE_N), buffer="psum")
                    for p in nc.affine_range(tiles):
                        nc.nc_matmul(stationary[:, p, tile(bm, TILE_M)], moving[:, p, tile(bn, TILE_N)], dst=total)
                    rows, columns = tile(i * tiles_m + bm, TILE_M), tile(j * tiles_n + bn, TILE_N)
                    nc.store(out[rows, columns], nc.tensor_copy(total, dtype=out.dtype))
    return out


@trn.kernel
def blocked(nc, lhsT, rhs, tiles_m: int = 16, tiles_n: int = 1, tiles_k: int = 8):
    """K in blocks too: sums of one block of columns stay in SBUF in fp32 while all of K passes by, and rows of transfers are long."""
    (k, m), n = lhsT.shape, rhs.shape[1]
    block_m, block_n, block_k = tiles_m * TILE_M, tiles_n * TILE_N, tiles_k * TILE_K
    out = nc.ndarray((m, n), lhsT.dtype, buffer="hbm")
    for j in nc.affine_range(n // block_n):
        sums = nc.ndarray((TILE_M, m // TILE_M, block_n), jnp.float32, buffers=1, name="sums")
        nc.memset(sums, 0.0)
        for p in nc.sequential_range(k // block_k):
            moving = nc.ndarray((TILE_K, tiles_k, block_n), rhs.dtype, name="rhs_block")
            for bk in range(tiles_k):
                nc.load(rhs[tile(p * tiles_k + bk, TILE_K), tile(j, block_n)], dst=moving[:, bk, :], queue="scalar")
            for i in nc.affine_range(m // block_m):
                stationary = nc.ndarray((TILE_K, tiles_k, block_m), lhsT.dtype, name="lhsT_block")
                for bk in range(tiles_k):
                    nc.load(lhsT[tile(p * tiles_k + bk, TILE_K), tile(i, block_m)], dst=stationary[:, bk, :])
                for bn in range(tiles_n):
                    for bm in nc.affine_range(tiles_m):
                        product = nc.ndarray((TILE_M, TILE_N), buffer="psum")
                        for bk in range(tiles_k):
                            nc.nc_matmul(stationary[:, bk, tile(bm, TILE_M)], moving[:, bk, tile(bn, TILE_N)], dst=product)
                        part = sums[:, i * tiles_m + bm, tile(bn, TILE_N)]
                        nc.tensor_tensor(part, product, "add", dst=part)
        for i in nc.affine_range(m // TILE_M):
            nc.store(out[tile(i, TILE_M), tile(j, block_n)], nc.tensor_copy(sums[:, i, :], dtype=out.dtype))
    return out


def plain(lhsT, rhs):
    """The same in JAX, summed in fp32."""
    return jnp.matmul(lhsT.T, rhs, preferred_element_type=jnp.float32).astype(lhsT.dtype)
