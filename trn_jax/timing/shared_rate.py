"""What DMA queues share: each is in order by itself, and all of them together are no faster than the DMA engines.

Issuing a transfer is every queue's own business, moving its bytes is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from trn_jax.engines.dma import TRANSPOSE_SHARE, copy_s
from trn_jax.timing.program import Structure


def moving_s(structure: Structure, columns: Mapping[str, Any], chip: Any, smoothing: Any) -> Any:
    """Seconds that the DMA engines need for the bytes of each row, [rows, lots]; 0 for rows of other engines and loops.

    Basis: documented (queues share the engines, round robin; a queue's transfers are issued by its owner).
    """
    if structure.issued is None:
        return None
    share = np.array([TRANSPOSE_SHARE if kind == "dma_transpose" else 1.0 for kind in structure.kinds])[:, None]
    is_dma = np.array([engine == "dma" for engine in structure.engines], float)[:, None]
    return copy_s(columns["bytes"] * (is_dma / share), columns["row_bytes"], chip, smoothing)


def shared_s(structure: Structure, moving_s: Any, trips: Any, begin: int, end: int) -> Any:
    """Seconds that all transfers of rows `begin` to `end` need at least, [lots]; loops inside count all their iterations."""
    rows = np.arange(begin, end)
    repeats: Any = 1.0
    for loop in structure.loops:
        if begin <= loop.begin and loop.end < end:
            inside = ((rows >= loop.begin) & (rows < loop.end))[:, None]
            repeats = repeats * (1 + inside * (trips[loop.end][None] - 1))
    return jnp.sum(moving_s[begin:end] * repeats, axis=0)
