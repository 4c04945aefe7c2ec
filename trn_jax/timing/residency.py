"""How large SBUF must be for data to still be there at their next use, if whatever is needed last is evicted first.

room(v) = size(v) + max over the time between its two uses of the size of all other data waiting there for an earlier use

With S bytes of SBUF the best eviction (furthest next use first, fractions allowed) leaves out exactly
min(size, max(0, room - S)) bytes of v, for every S at once: which is why one number per use is enough.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def rooms(
    starts: Sequence[int], stops: Sequence[int], sizes_bytes: Sequence[float], base_bytes: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Room of each interval between two uses.

    Args:
        starts: First time slot of each interval.
        stops: Slot after its last one: where it is used again.
        sizes_bytes: Bytes that wait.
        base_bytes: Per slot, bytes that are needed in any case (what happens inside a loop).

    Returns:
        Room in bytes of each interval, and the bytes waiting in each slot when all intervals are kept.

    Time: one pass over the intervals in the order of their ends, each touching the slots it spans.
    Basis: derived (Belady's rule with fractions; Mattson et al. 1970 show that it needs no knowledge of S).
    """
    waiting = base_bytes.astype(np.float64)
    result = np.zeros(len(starts))
    order = sorted(range(len(starts)), key=lambda i: (stops[i], -starts[i], i))
    for i in order:
        span = waiting[starts[i] : stops[i]]
        result[i] = sizes_bytes[i] + (span.max() if len(span) else 0.0)
        span += sizes_bytes[i]
    return result, waiting
