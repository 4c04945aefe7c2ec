"""What a matmul's result is allowed to be: NumPy references in a stated order, and bounds for sums in an unstated one."""

import numpy as np

FP32_ULP = 2.0**-23


def tiled_reference(lhs_MK, rhs_KN, rows):
    """K tiles in order, each tile's product exact enough (float64) to be rounded once, then added in fp32."""
    psum = None
    for start in range(0, lhs_MK.shape[1], rows):
        stop = start + rows
        tile = (lhs_MK[:, start:stop].astype(np.float64) @ rhs_KN[start:stop].astype(np.float64)).astype(np.float32)
        psum = tile if psum is None else psum + tile
    return psum


def sequential_reference(lhs_MK, rhs_KN, rows):
    """K tiles in order; within a tile each product is rounded to fp32 and added to the sum of those before."""
    psum = None
    for start in range(0, lhs_MK.shape[1], rows):
        tile = np.zeros((lhs_MK.shape[0], rhs_KN.shape[1]), np.float32)
        for k in range(start, min(start + rows, lhs_MK.shape[1])):
            tile = tile + lhs_MK[:, k : k + 1] * rhs_KN[k : k + 1]
        psum = tile if psum is None else psum + tile
    return psum


def order_bound(lhs_MK, rhs_KN):
    """How far two fp32 sums of the same products in any two orders can be apart: 2 gamma_K |lhs| |rhs|."""
    depth = lhs_MK.shape[1]
    gamma = depth * FP32_ULP / 2 / (1 - depth * FP32_ULP / 2)
    return 2 * gamma * (np.abs(lhs_MK).astype(np.float64) @ np.abs(rhs_KN).astype(np.float64))


def whole_numbers(seed, shape, largest=8):
    """fp32 integers so small that every sum of their products is exact, in any order."""
    return np.random.default_rng(seed).integers(-largest, largest + 1, shape).astype(np.float32)


def normals(seed, shape):
    """fp32 normal variates."""
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)
