"""What DMA queues share: each is in order by itself, and all of them together are no faster than the DMA engines."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from trn_jax.timing.cost import Table, positions
from trn_jax.timing.program import Structure


def shared_s(structure: Structure, table: Table, trips: Any, begin: int, end: int) -> Any:
    """Seconds that the DMA engines are busy in rows `begin` to `end`, [lots]; loops inside count all their iterations.

    Basis: documented (queues share the engines, round robin); assumed (issuing transfers is shared as well).
    """
    rows = np.array([row for row in range(begin, end) if structure.engines[row] == "dma"], int)
    repeats = jnp.ones((len(rows), trips.shape[-1]), table.gap.dtype)
    for loop in structure.loops:
        if begin <= loop.begin and loop.end < end:
            inside = ((rows >= loop.begin) & (rows < loop.end))[:, None]
            repeats = repeats * (1 + inside * (trips[loop.end][None] - 1))
    return (table.occupancy[positions(structure)[rows]] * repeats).sum(0)
