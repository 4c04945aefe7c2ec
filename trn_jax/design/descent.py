"""One gradient step of many chips at once.

    d objective / d u = (partial objective / partial u) + sum over programs (d objective / d latency) (d latency / d u)

The latencies and their derivatives are compiled once per structure of program; the objective, which is small, by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from trn_jax.design.objective import Objective, objectives
from trn_jax.timing.latency import latency
from trn_jax.timing.program import Program


def gradient(
    goal: Objective, programs: Sequence[Program], chip: Any, paths: tuple[str, ...], low: Any, high: Any, u: Any, smoothing: Any
) -> tuple[Any, Any]:
    """Relaxed objective of every chip, and its gradient.

    Args:
        goal: What to make small.
        programs: In the order of the goal's names.
        chip: All values that are not free.
        paths: Free values.
        low: [paths] least values.
        high: [paths] largest values.
        u: [chips, paths] positions in the logarithmic ranges, 0 to 1.
        smoothing: Relaxation, a scalar.

    Returns:
        Objectives [chips], and gradients [chips, paths] with 0 where one is not finite.
    """
    timed = [_latency_gradient(program, chip, low, high, u, smoothing, paths=paths, levels=goal.levels) for program in programs]
    values, own, weights = _objective_gradient(goal, chip, low, high, u, [time_s for time_s, _ in timed], paths=paths)
    total = own + sum(weight[:, None] * slope for weight, (_, slope) in zip(weights, timed, strict=True))
    return values, jnp.where(jnp.isfinite(total), total, 0.0)


def chips_at(chip: Any, paths: tuple[str, ...], low: Any, high: Any, u: Any) -> Any:
    """The batch of chips at positions u."""
    low, high = low[None], high[None]
    values = low * (high / low) ** u
    return chip.replace({path: values[:, index] for index, path in enumerate(paths)})


@partial(jax.jit, static_argnames=("paths", "levels"))
def _latency_gradient(
    program: Program, chip: Any, low: Any, high: Any, u: Any, smoothing: Any, *, paths: tuple[str, ...], levels: tuple[float, float]
) -> tuple[Any, Any]:
    """Latencies [chips] in seconds, and their derivatives [chips, paths]."""
    overlap = dict(zip(("engines", "collectives"), levels, strict=True))

    def total(u: Any) -> tuple[Any, Any]:
        time_s = latency(program, chips_at(chip, paths, low, high, u), smoothing=smoothing, overlap=overlap)
        return time_s.sum(), time_s

    slope, time_s = jax.grad(total, has_aux=True)(u)
    return time_s, slope


@partial(jax.jit, static_argnames=("goal", "paths"))
def _objective_gradient(
    goal: Objective, chip: Any, low: Any, high: Any, u: Any, latencies_s: list[Any], *, paths: tuple[str, ...]
) -> tuple[Any, Any, Any]:
    """Objectives [chips], their direct derivatives in u [chips, paths], and in each program's latency [chips]."""

    def total(u: Any, latencies_s: list[Any]) -> tuple[Any, Any]:
        values = objectives(goal, chips_at(chip, paths, low, high, u), latencies_s)
        return values.sum(), values

    (own, weights), values = jax.grad(total, argnums=(0, 1), has_aux=True)(u, latencies_s)
    return values, own, weights
