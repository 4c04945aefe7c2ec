"""The schedule's recurrence: each row in turn, every engine in order, by max and plus alone.

    begin_i   = max(max_j visible_j + gap_i, end of the row before on its engine)        j: the rows it waits for
                (max_j end_j + gap_i where row i works in one piece)
    end_i     = max(begin_i + occupancy_i, max_j end_j + gap_i + first_i)
    visible_i = begin_i + first_i                          gap = latency - occupancy,  first = occupancy / tiles

Rows that share a loop over tiles take turns tile by tile: the second of two neighbours on an engine may begin at the first's
visible, and ends no sooner than the first's end + its own occupancy.

`begin` is when results start to come out; a consumer follows its producer piece by piece and ends one piece after it. Every
weight is non-negative, so nothing that takes less time can make the end later.

The reverse pass is a scan of its own: it keeps the two numbers of each row, recomputes the local step and its gradient, and adds
to the rows it read, in place. Differentiating the scan itself would add a whole table of zeros at each step.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from trn_jax.timing.cost import Table
from trn_jax.timing.plan import Plan
from trn_jax.timing.smoothing import smooth_max
from trn_jax.timing.steps import WAITS

Slots = tuple[Any, Any]  # ends and first pieces, each [slots, tokens, lots]; one array of both would be written by slower code
NEVER = -1e12  # earlier than anything: what has not happened in the iteration that a token marks; any such number gives the same


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def run(plan: Plan, hard: bool, table: Table, smoothing: Any) -> Any:
    """Ends and first pieces of the results that a plan returns.

    Args:
        plan: Static steps.
        hard: Whether smoothing is a concrete 0.
        table: Seconds of each row, for `lots` chips at once.
        smoothing: Scalar; without effect if `hard`.

    Returns:
        [outputs, 2, tokens, lots]: end and first visible, in seconds, as seen from each token.

    Gradient: exact (reverse mode, any order). Soft maxima of one row have a total width of smoothing times its occupancy.
    """
    return _outputs(plan, _forward(plan, hard, table, smoothing))


def _outputs(plan: Plan, slots: Slots) -> Any:
    return jnp.stack([numbers[plan.outputs] for numbers in slots], axis=1)


def _forward(plan: Plan, hard: bool, table: Table, smoothing: Any) -> Slots:
    """Slots after the last step."""

    def step(slots: Slots, x: Any) -> tuple[Slots, None]:
        end, visible = _local(plan, hard, x, _read(plan, hard, x, slots, table), smoothing)
        return (_put(slots[0], end, x["writes"]), _put(slots[1], visible, x["writes"])), None

    slots, _ = lax.scan(step, _start(plan, table), _steps(plan))
    return slots


def _start(plan: Plan, table: Table) -> Slots:
    """Slots before the first step: the origin of time at 0; or, seen from each token, that token at 0 and all else never."""
    start = np.full((2, plan.slots, plan.tokens, 1), NEVER if plan.marks else 0.0)
    for slot, number, token in plan.marks:
        start[number, slot, token] = 0.0
    shape = (*start.shape[1:-1], table.gap.shape[-1])
    end, visible = (jnp.broadcast_to(jnp.asarray(numbers, table.gap.dtype), shape) for numbers in start)
    return end, visible


def _steps(plan: Plan) -> dict[str, np.ndarray]:
    """What a step reads, entry by entry."""
    names = ("cost", "scale", "previous", "waits", "writes", "held", "share", "real", "full", "ordered", "interleaved", "in_turn")
    return {name: getattr(plan, name) for name in names}


def _read(plan: Plan, hard: bool, x: Any, slots: Slots, table: Table) -> tuple[Any, ...]:
    """Operands of a step: ends and first pieces it waits for, those of the row before, cost and scale in seconds."""
    ends, visibles = ([_at(numbers, x["waits"][k]) for k in range(WAITS)] for numbers in slots)
    previous = tuple(_at(numbers, x["previous"]) for numbers in slots)
    occupancy, gap, first = (_at(seconds, x["cost"])[None] for seconds in table[:3])
    whole = jnp.maximum(_at(table.whole, x["scale"]), x["full"].astype(gap.dtype))
    scale = None if hard else _at(table.occupancy, x["scale"])[None]
    return ends, visibles, previous, occupancy, gap, first, scale, whole


def _at(array: Any, index: Any) -> Any:
    return lax.dynamic_index_in_dim(array, index, 0, keepdims=False)


def _put(array: Any, value: Any, index: Any) -> Any:
    return lax.dynamic_update_index_in_dim(array, value, index, 0)


def _local(plan: Plan, hard: bool, x: Any, operands: tuple[Any, ...], smoothing: Any) -> tuple[Any, Any]:
    """One step: end and first visible, each [tokens, lots]."""
    ends, visibles, (previous, turn), occupancy, gap, first, scale, whole = operands
    flags = {name: x[name].astype(gap.dtype) for name in ("share", "real", "ordered", "interleaved", "in_turn")}

    def latest(a: Any, b: Any, flag: Any) -> Any:
        return jnp.maximum(a, b) if hard else smooth_max(a, b, smoothing * flags["share"] * scale * flag)

    visibles = [jnp.where(whole > 0, e, v) for e, v in zip(ends, visibles, strict=True)]
    if plan.in_turn.any():
        previous = previous + flags["in_turn"] * gap
    free = jnp.where(flags["interleaved"] > 0, turn, previous)
    ready, ended = visibles[0], ends[0]
    for k in range(1, WAITS):
        ready = latest(ready, visibles[k], flags["real"][k])
        ended = latest(ended, ends[k], flags["real"][k])
    begin = latest(ready + gap, free, flags["ordered"])
    end = latest(begin + occupancy, ended + gap + first, flags["real"][0])
    if plan.interleaved.any():
        end = jnp.where(flags["interleaved"] > 0, latest(end, previous + occupancy, flags["interleaved"]), end)
    return end, begin + first


def _run_forward(plan: Plan, hard: bool, table: Table, smoothing: Any) -> tuple[Any, Any]:
    kept = plan.kept or plan
    history = _forward(kept, hard, table, smoothing)
    return _outputs(kept, history), (table, smoothing, history)


def _run_backward(plan: Plan, hard: bool, residuals: Any, cotangent: Any) -> tuple[Any, Any]:
    table, smoothing, history = residuals
    return _reverse(plan, hard, table, smoothing, history, cotangent)


def _reverse(plan: Plan, hard: bool, table: Table, smoothing: Any, history: Slots, cotangent: Any) -> tuple[Any, Any]:
    """Cotangents of the table and of smoothing."""
    kept = plan.kept or plan
    _, tokens, lots = history[0].shape

    def add(slots: Slots, slot: Any, values: tuple[Any, Any], held: Any) -> Slots:
        end, visible = (_put(n, _at(n, slot) * held.astype(v.dtype) + v, slot) for n, v in zip(slots, values, strict=True))
        return end, visible

    def result_bar(slots: Slots, adjoint: Any) -> Slots:
        end, visible = (_at(numbers, adjoint["writes"]) * adjoint["held"][-1].astype(numbers.dtype) for numbers in slots)
        return end, visible

    def step(carry: Any, x: Any) -> tuple[Any, Any]:
        slots, bar, smoothing_bar = carry
        adjoint, primal, before = x
        operands = _read(kept, hard, primal, history, table)
        _, pull = jax.vjp(lambda operands, s: _local(kept, hard, primal, operands, s), operands, smoothing)
        (ends, visibles, previous_bar, *cost_bar, scale_bar, _), local_bar = pull(bar)
        for k in range(WAITS):
            slots = add(slots, adjoint["waits"][k], (ends[k], visibles[k]), adjoint["held"][k])
        slots = add(slots, adjoint["previous"], previous_bar, adjoint["held"][WAITS])
        return (slots, result_bar(slots, before), smoothing_bar + local_bar), (
            tuple(bar[0] for bar in cost_bar),
            None if hard else scale_bar[0],
        )

    nothing = jnp.zeros((plan.slots, tokens, lots), table.gap.dtype)
    slots = (nothing.at[plan.outputs].add(cotangent[:, 0]), nothing.at[plan.outputs].add(cotangent[:, 1]))  # one may be returned twice
    steps = _steps(plan)
    before = {name: np.roll(steps[name], 1, axis=0) for name in ("writes", "held")}  # a bar is read one step early, so that slots
    last = {name: before[name][0] for name in before}  # are only ever updated in place
    carry = (slots, result_bar(slots, last), jnp.zeros_like(smoothing))
    (_, _, smoothing_bar), (cost_bars, scale_bars) = lax.scan(step, carry, (steps, _steps(kept), before), reverse=True)
    seconds = (jnp.zeros_like(table.gap).at[kept.cost].add(bars) for bars in cost_bars)
    table_bar = Table(*seconds, whole=jnp.zeros_like(table.whole))
    if not hard:
        table_bar = table_bar._replace(occupancy=table_bar.occupancy.at[kept.scale].add(scale_bars))
    return table_bar, smoothing_bar


run.defvjp(_run_forward, _run_backward)
