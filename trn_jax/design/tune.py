"""tune: a better chip inside given ranges, by gradient from many starting points at once.

p = low (high / low)^u,   0 <= u <= 1          Adam on u, ceilings and maxima relaxed less and less, then rounded and timed exactly
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from trn_jax.chips.fields import RANGES, checked_number
from trn_jax.chips.paths import known_path
from trn_jax.design.buildable import has_buildable
from trn_jax.design.descent import gradient
from trn_jax.design.objective import Objective
from trn_jax.design.polish import Exact, polished
from trn_jax.design.start_points import start_points
from trn_jax.design.tuned import Tuned
from trn_jax.errors import ChipError, ProgramError, UnsupportedError
from trn_jax.report.inputs import Programs, check_one_chip, named_programs
from trn_jax.timing.exact import precision
from trn_jax.timing.overlap import default_overlap, overlap_levels

_LAST_SHARE = 0.05  # of the learning rate in the last step


def tune(
    programs: Programs,
    chip: Any,
    free: Mapping[str, tuple[float, float]],
    *,
    objective: str | Callable[..., Any] = "latency_s",
    starts: int = 16,
    steps: int = 200,
    seed: int = 0,
    smoothing: tuple[float, float] = (0.3, 0.01),
    learning_rate: float = 0.05,
    overlap: Any = None,
    budget: None = None,
    progress: bool | Callable[[int, int], None] = False,
) -> Tuned:
    """Searches ranges of chip parameters for the lowest objective.

    All starting points go down at once, in one batch and one compilation, in log space, so nothing ever becomes negative. The
    relaxation of ceilings and maxima shrinks on the way. Then every end point, the corners of the ranges and the given chip
    are rounded to what can be built, timed exactly, and the best one is improved value by value.

    Args:
        programs: One program from `trn_jax.trace`, or a list or dict of them.
        chip: The chip to start from; what is not free stays as it is there.
        free: Dotted path to (low, high), in the leaf's unit, with 0 < low < high.
        objective: "latency_s" (for several programs their geometric mean), or a function of (chip, latency_s) that returns one
            number to be made small, in `jax.numpy`: `lambda chip, latency_s: latency_s * price(chip)`. For several programs
            its latency_s is a dict by name. Without a price the best chip is the largest one allowed.
        starts: Starting points: the given chip, moved into the ranges, and others spread evenly.
        steps: Gradient steps.
        seed: Of the other starting points.
        smoothing: Relaxation at the first and at the last step; both greater than 0.
        learning_rate: Of Adam, as a share of the (logarithmic) range per step; falls to a twentieth of it.
        overlap: As for `trn_jax.latency`.
        budget: Not supported yet.
        progress: True for a progress bar, or a function called with (steps done, steps in all).

    Returns:
        A `Tuned`: `.chip`, `.latency_s`, `.free`, `.history`. Never worse than the given chip if that one is inside the ranges
        and can be built.

    Raises:
        ChipError: An unknown path, or a range that is empty, not positive, outside what a chip may have, or without a value
            that can be built.
        ProgramError: Not a program; a setting out of range; an objective that is not one finite number; no chip in the ranges
            can hold the programs.
        UnsupportedError: A budget was given, or optax is not installed.

    Units: as the leaves. Gradient: none. Basis: as `latency`.
    """
    if budget is not None:
        raise UnsupportedError(
            "tune has no budgets yet: give ranges in `free`, and price what a chip costs in the objective, for example "
            "objective=lambda chip, latency_s: latency_s * (chip.tensor.rows * chip.tensor.cols + ...)."
        )
    named = named_programs("tune", programs)
    check_one_chip("tune", chip, "Give the concrete chip to start from.")
    ranges = _checked_ranges(free)
    _check_settings(starts, steps, smoothing, learning_rate)
    engines, collectives = overlap_levels(default_overlap(overlap, *named.values()))
    goal = Objective(objective, tuple(named), (float(engines), float(collectives)))
    optimizer = _optimizer()
    report = _reporter(progress, steps)

    paths = tuple(ranges)
    low, high = (np.array([ranges[path][end] for path in paths]) for end in (0, 1))
    given = np.array([float(chip.get(path)) for path in paths])
    u = start_points(starts, len(paths), seed)
    u[0] = np.clip(np.log(given / low) / np.log(high / low), 0.0, 1.0)
    exact = Exact(goal, tuple(named.values()), chip, paths, low, high)
    start = exact.start()

    with precision("float64"):
        u, scale = jnp.asarray(u), jnp.asarray(abs(start.objective) or 1.0)
        state, history = optimizer.init(u), np.empty((steps, starts))
        for step in range(steps):
            part = step / max(steps - 1, 1)
            relaxation = jnp.asarray(smoothing[0] * (smoothing[1] / smoothing[0]) ** part)
            rate = learning_rate * (_LAST_SHARE + (1 - _LAST_SHARE) * 0.5 * (1 + np.cos(np.pi * part)))
            history[step], slope = gradient(goal, tuple(named.values()), chip, paths, low, high, u, relaxation)
            direction, state = optimizer.update(slope / scale, state)
            u = jnp.clip(u - rate * direction, 0.0, 1.0)
            report(step + 1)
    best = polished(exact, np.asarray(u), start)
    return Tuned(
        chip=best.chip,
        latencies_s=best.latencies_s,
        objective=best.objective,
        free={path: float(best.chip.get(path)) for path in paths},
        ranges=ranges,
        start_chip=chip,
        start_latencies_s=start.latencies_s,
        start_objective=start.objective,
        history=history,
    )


def _optimizer() -> Any:
    try:
        import optax
    except ModuleNotFoundError:
        raise UnsupportedError("tune needs optax, which is not installed: pip install 'trn_jax[train]'.") from None
    return optax.scale_by_adam()


def _checked_ranges(free: Any) -> dict[str, tuple[float, float]]:
    """Path to (low, high) as floats."""
    if not isinstance(free, Mapping) or not free:
        raise ChipError(f"tune: free = {free!r}; give a dict of dotted paths and ranges, like {{'tensor.rows': (64, 256)}}.")
    return {path: _checked_range(path, ends) for path, ends in free.items()}


def _checked_range(path: Any, ends: Any) -> tuple[float, float]:
    known_path("tune", path)
    if path not in RANGES:
        raise ChipError(f"tune: {path!r} is no number, so it cannot be tuned.")
    if not isinstance(ends, (tuple, list, np.ndarray)) or len(ends) != 2:
        raise ChipError(f"tune: {path} = {ends!r}; give its range as (low, high).")
    low, high = (checked_number("tune", path, end) for end in ends)
    if not 0.0 < low < high:
        raise ChipError(f"tune: the range of {path} is ({low:g}, {high:g}); give 0 < low < high, because the search is in log space.")
    if not has_buildable(path, low, high):
        raise ChipError(f"tune: the range of {path}, ({low:g}, {high:g}), holds no value that can be built; it comes in whole steps.")
    return low, high


def _check_settings(starts: Any, steps: Any, smoothing: Any, learning_rate: Any) -> None:
    for name, value in (("starts", starts), ("steps", steps)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ProgramError(f"tune: {name} = {value!r} is not accepted; give a positive int.")
    if not isinstance(smoothing, (tuple, list)) or len(smoothing) != 2 or not all(0.0 < value <= 1.0 for value in smoothing):
        raise ProgramError(f"tune: smoothing = {smoothing!r} is not accepted; give (first, last), both above 0 and at most 1.")
    if not 0.0 < learning_rate <= 1.0:
        raise ProgramError(f"tune: learning_rate = {learning_rate!r} is not accepted; give a number above 0 and at most 1.")


def _reporter(progress: bool | Callable[[int, int], None], steps: int) -> Callable[[int], None]:
    if callable(progress):
        return lambda done: progress(done, steps)
    if not progress:
        return lambda done: None
    from tqdm.auto import tqdm

    bar = tqdm(total=steps, desc="tune", unit="step")

    def show(done: int) -> None:
        bar.update(done - bar.n)
        if done >= steps:
            bar.close()

    return show
