"""Tensor Engine warm-up: after idling it runs at a share of its clock until it has been busy for a while.

    extra = (1 / share - 1) min(busy, share x warm-up time)        for every stretch of work that begins cold

It is cold at the start, and again once it was busy for less than half of some warm-up time, taken as a gap of half of one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from trn_jax.report.slices import Slice


def warmup_s(slices: Iterable[Slice], chip: Any) -> float:
    """Seconds the Tensor Engine loses to its warm-up in a schedule.

    Args:
        slices: Of all engines, in order.
        chip: `tensor.warmup_share` and `tensor.warmup_s` are read; share 1 loses nothing.

    Returns:
        Seconds on top of the schedule, as if no other engine hid any of them: an upper estimate.

    Basis: documented (AWS Neuron Explorer, throttling: about half of the peak after idle, full after about 3 us of work, armed again
        below half utilisation); assumed (one step from the share to the full clock; work is delayed, not reordered).
    """
    share, window_s = float(chip.tensor.warmup_share), float(chip.tensor.warmup_s)
    if share >= 1.0 or window_s <= 0.0:
        return 0.0

    def lost_s(busy_s: float) -> float:
        return (1.0 / share - 1.0) * min(busy_s, share * window_s)

    total_s, stretch_s, free_s = 0.0, 0.0, float("-inf")
    for item in slices:
        if item.engine != "tensor":
            continue
        if item.begin_s - free_s > window_s / 2:
            total_s += lost_s(stretch_s)
            stretch_s = 0.0
        once_s = item.duration_s / item.iterations
        if item.interval_s - once_s > window_s / 2:  # every iteration begins cold
            total_s += lost_s(stretch_s) + (item.iterations - 1.0) * lost_s(once_s)
            stretch_s = once_s
        else:
            stretch_s += item.duration_s
        free_s = item.end_s
    return total_s + lost_s(stretch_s)
