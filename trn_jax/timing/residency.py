"""What stays in SBUF between two uses, if whatever is needed last is evicted first, for a ladder of SBUF sizes at once.

In the order of their next use, each piece of data keeps what the pieces needed sooner leave of SBUF during all its waiting time:

    kept(v) = min(size(v), S - max over the time v waits of the bytes kept by others)

Between the sizes of the ladder the evicted bytes are interpolated: min(size, slope max(0, room - S)), two numbers per use.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from trn_jax.units import GIB, MIB

SIZES_BYTES = np.array([4, 8, 16, 24, 28, 32, 48, 64, 128, 256, 1024, np.inf]) * MIB  # those of today's chips among them
SMALLEST_SBUF_BYTES = float(SIZES_BYTES[0])  # SBUF below this counts as this
assert SIZES_BYTES[-2] == GIB


class Room(NamedTuple):
    """What a use needs to find its data in SBUF: min(size, slope max(0, size_bytes - SBUF)) bytes of them are missing."""

    size_bytes: float = 0.0
    slope: float = 1.0

    @property
    def may_be_missing(self) -> bool:
        """Whether some SBUF of the ladder is too small."""
        return self.size_bytes > SMALLEST_SBUF_BYTES


ALWAYS = Room()  # in SBUF, however small
NEVER = Room(float("inf"))  # not in SBUF, however large


class Residency(NamedTuple):
    """A `Room` for each interval, and for each slot the bytes kept, by size of SBUF."""

    rooms: list[Room]
    kept_bytes: np.ndarray


def residency(starts: Sequence[int], stops: Sequence[int], sizes_bytes: Sequence[float], base_bytes: np.ndarray) -> Residency:
    """Evictions of data that wait from `starts` to before `stops`, in slots of time.

    Args:
        starts: First time slot of each interval.
        stops: Slot after its last one: where the data are used again.
        sizes_bytes: Bytes that wait.
        base_bytes: [slots, sizes] bytes that are kept in any case (what happens inside a loop), for every size of the ladder.

    Returns:
        A `Residency`: exact at the sizes next to where an interval begins to be evicted, linear between.

    Time: each interval touches the slots it spans once.
    Basis: derived (Belady's rule; for data of equal size no other choice evicts less).
    """
    kept_by_slot = base_bytes.astype(np.float64)
    kept = np.zeros((len(starts), len(SIZES_BYTES)))
    room = np.zeros(len(starts))
    for i in sorted(range(len(starts)), key=lambda i: (stops[i], -starts[i], i)):
        span = kept_by_slot[starts[i] : stops[i]]
        most = span.max(0) if len(span) else np.zeros(len(SIZES_BYTES))
        kept[i] = np.clip(SIZES_BYTES - most, 0.0, sizes_bytes[i])
        span += kept[i]
        room[i] = sizes_bytes[i] + most[-1]  # where everything needed sooner is kept too
    evicted = np.minimum.accumulate(np.asarray(sizes_bytes, np.float64)[:, None] - kept, axis=1)
    whole = (evicted <= 0).argmax(1)  # first size of the ladder that evicts nothing; infinite SBUF never does
    room = np.where(whole < len(SIZES_BYTES) - 1, SIZES_BYTES[whole], room)
    below = np.maximum(whole - 1, 0)
    missing = evicted[np.arange(len(starts)), below]
    partly = (missing > 0) & (missing < np.asarray(sizes_bytes)) & (whole < len(SIZES_BYTES) - 1)
    room = np.where(partly, np.minimum(room, SIZES_BYTES[below] + missing), room)  # each further byte of SBUF keeps one more
    width = np.where(whole > 0, room - SIZES_BYTES[below], 1.0)
    slope = np.where(missing > 0, missing / np.where(width > 0, width, 1.0), 1.0)
    return Residency([Room(*pair) for pair in zip(room.tolist(), slope.tolist(), strict=True)], kept_by_slot)
