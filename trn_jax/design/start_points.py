"""Starting points that cover a box evenly: multiples of irrational steps, shifted by the seed.

u_i = (shift + i (1/g, 1/g^2, ...)) mod 1          g: the root of g^(d+1) = g + 1 (Roberts' generalised golden ratio)
"""

from __future__ import annotations

import numpy as np


def start_points(count: int, dimensions: int, seed: int) -> np.ndarray:
    """`count` points of [0, 1)^dimensions, [count, dimensions]; the same for the same seed."""
    ratio = 2.0
    for _ in range(64):
        ratio = (1.0 + ratio) ** (1.0 / (dimensions + 1))
    steps = ratio ** -np.arange(1.0, dimensions + 1)
    shift = np.random.default_rng(seed).random(dimensions)
    return (shift + np.arange(1, count + 1)[:, None] * steps) % 1.0
