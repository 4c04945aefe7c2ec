"""Initiation intervals: how long after one iteration of a long loop the next one can be as far.

Engines run in order, so an iteration starts where the one before left each engine, and each carried value. Call these tokens;
T[i, j] is how long after token j was left token i can be left again, along any path of waits and engines. Iteration after
iteration, the slowest cycle decides:

    interval = max over cycles of tokens (sum of T along the cycle / its length) >= the busiest engine, the longest carried chain

Cycles of one and two tokens are looked at. The interval is a maximum of sums, so a faster chip never lengthens it.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from trn_jax.timing.cost import Table, positions
from trn_jax.timing.plan import loop_plan
from trn_jax.timing.program import Structure
from trn_jax.timing.recurrence import run
from trn_jax.timing.shared_rate import shared_s
from trn_jax.timing.smoothing import smooth_max, smooth_max_over, width


def add_intervals(
    structure: Structure, mode: str, table: Table, moving_s: Any, trips: Any, hard: bool, smoothing: Any
) -> tuple[Table, list[Any]]:
    """Gives closing rows the time of the iterations they stand for: trips - 1 intervals, inner loops first.

    Args:
        structure: Static part of the program.
        mode: One of `steps.MODES`.
        table: Seconds of the other rows.
        moving_s: From `shared_rate.moving_s`.
        trips: [rows, 1] or [rows, lots]; at least 1 on closing rows.
        hard: Whether smoothing is a concrete 0.
        smoothing: See `timing.smoothing`.

    Returns:
        The table, and the interval of each loop of the structure, [lots], in seconds.
    """
    position = positions(structure)
    intervals: dict[int, Any] = {}
    for index in sorted(range(len(structure.loops)), key=lambda index: structure.loops[index].end):
        loop = structure.loops[index]
        if all(engine == "loop" for engine in structure.engines[loop.begin : loop.end]):
            intervals[index] = jnp.zeros_like(table.gap[0])
            continue
        plan, left = loop_plan(structure, mode, index)
        after: Any = run(plan, hard, table, smoothing)
        reached = jnp.stack([after[output, number] for output, number in left])
        scale = table.occupancy[position[loop.begin : loop.end]].sum(0) / len(plan.outputs)
        intervals[index] = _slowest_cycle(reached, width(0.0 if hard else smoothing, scale))
        if structure.issued is not None:
            queues_s = shared_s(structure, moving_s, trips, loop.begin, loop.end)
            intervals[index] = smooth_max(intervals[index], queues_s, width(0.0 if hard else smoothing, scale))
        rest_s = jnp.maximum(trips[loop.end] - 1, 0.0) * intervals[index]
        closing = position[loop.end]
        table = table._replace(occupancy=table.occupancy.at[closing].set(rest_s), first=table.first.at[closing].set(rest_s))
    return table, [intervals[index] for index in range(len(structure.loops))]


def serial_rows(structure: Structure, latency_s: Any, trips: Any) -> tuple[Any, list[Any]]:
    """Row by row without any overlap: seconds of each row, [rows, lots], and of one iteration of each loop.

    A closing row takes trips - 1 iterations.
    """
    iterations: dict[int, Any] = {}
    for index in sorted(range(len(structure.loops)), key=lambda index: structure.loops[index].end):
        loop = structure.loops[index]
        iterations[index] = latency_s[loop.begin : loop.end].sum(0)
        latency_s = latency_s.at[loop.end].set(jnp.maximum(trips[loop.end] - 1, 0.0) * iterations[index])
    return latency_s, [iterations[index] for index in range(len(structure.loops))]


def _slowest_cycle(reached: Any, width: Any) -> Any:
    """Largest mean of the cycles of one and of two tokens; `reached` is T, [tokens, tokens, lots]."""
    tokens = reached.shape[0]
    alone = jnp.stack([reached[i, i] for i in range(tokens)])
    left, right = np.triu_indices(tokens, 1)
    pairs = (reached[left, right] + reached[right, left]) / 2
    return smooth_max_over(jnp.concatenate([alone, pairs]), width)
