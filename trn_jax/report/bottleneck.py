"""What if one engine took no time? The chip with that engine's rates a million times higher and its fixed costs gone.

gain(engine) = time - time without the engine's costs; the bottleneck is the engine with the largest gain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from trn_jax.graph.instruction import ENGINES

FREE = 1e6  # times as fast
_FASTER: Mapping[str, Sequence[str]] = {
    "tensor": ("tensor.clock_hz",),
    "vector": ("vector.clock_hz",),
    "scalar": ("scalar.clock_hz",),
    "gpsimd": ("gpsimd.clock_hz",),
    "dma": ("dma.bandwidth_bytes_per_s", "hbm.bandwidth_bytes_per_s"),
    "collective": ("link.bandwidth_bytes_per_s",),
}
_GONE: Mapping[str, Sequence[str]] = {
    "scalar": ("scalar.table_load_s",),
    "dma": ("dma.latency_s", "dma.issue_s"),
    "collective": ("link.latency_s",),
}


def freed_chips(chip: Any) -> Any:
    """A batch of 1 + 6 chips: the chip itself, then one for each of `ENGINES` in which that engine takes next to no time."""
    lots = 1 + len(ENGINES)
    changes: dict[str, np.ndarray] = {}
    for lot, engine in enumerate(ENGINES, start=1):
        for path in (*_FASTER[engine], *_GONE.get(engine, ())):
            values = np.full(lots, float(chip.get(path)))
            values[lot] *= FREE if path in _FASTER[engine] else 0.0
            changes[path] = values
    return chip.replace(changes)


def lot(tree: Any, index: int) -> Any:
    """One chip's part of a batch of results."""
    return jax.tree.map(lambda leaf: np.asarray(leaf)[..., index], tree)
