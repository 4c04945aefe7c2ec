"""Overlap: how far engines and collectives run side by side, from 0 (one row after the other) to 1 (as far as data and engines allow).

    T(o) = o T(concurrent) + (d - o) T(compute in turn) + (1 - d) T(serial),    d = min(1, o / 0.8)

Published kernels behave like o = 0.8: DMA is hidden behind compute, of the compute engines the longest counts and 0.2 of the others.
Compiled training steps behave like 0. So DMA overlaps first, compute engines last; d is how far DMA does. A level of its own for
collectives puts further schedules between these: collectives alone, or engines in turn beside them.
"""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from trn_jax.errors import ProgramError
from trn_jax.timing.program import Program

KERNEL = 0.8  # Basis: calibrated on published single kernels
SERIAL = "serial"
# Compute engines in turn, tile by tile, with DMA beside them: no schedule of its own, but one of `steps.MODES` that takes at least as
# long as all their work.
IN_TURN = {"compute_in_turn": "concurrent", "compute_in_turn_alone": "collectives_alone"}
_LEVELS = ("engines", "collectives")


def default_overlap(overlap: Any, *programs: Program) -> Any:
    """`overlap`, where None stands for 1 if the programs' schedules are given: then nothing is left for a scheduler to lose."""
    return 1.0 if overlap is None and all(program.structure.issued is not None for program in programs) else overlap


def overlap_levels(overlap: Any) -> tuple[Any, Any]:
    """Levels of engines and of collectives.

    Args:
        overlap: None (one kernel: 0.8 for both; see `default_overlap`), "compiled" (0 for both: today's compiled graphs), a number or
            scalar array for both, or {"engines": number, "collectives": number}; a level left out is that of None.

    Returns:
        (engines, collectives), as given.

    Raises:
        ProgramError: Anything else, or a level outside [0, 1] where it is a concrete number.
    """
    accepted = 'Give None (0.8), "compiled" (0), a number from 0 to 1, or {"engines": number, "collectives": number}.'
    if overlap is None:
        levels: tuple[Any, Any] = (KERNEL, KERNEL)
    elif isinstance(overlap, str) and overlap == "compiled":
        levels = (0.0, 0.0)
    elif isinstance(overlap, Mapping):
        unknown = [key for key in overlap if key not in _LEVELS]
        if unknown:
            raise ProgramError(f"overlap has no level {unknown[0]!r}. {accepted}")
        levels = (overlap.get("engines", KERNEL), overlap.get("collectives", KERNEL))
    else:
        levels = (overlap, overlap)
    for level in levels:
        if isinstance(level, (str, bool, list, tuple)) or jnp.shape(level) != ():
            raise ProgramError(f"overlap = {overlap!r}. {accepted}")
        if isinstance(level, (numbers.Real, np.generic)) and not 0 <= float(level) <= 1:
            raise ProgramError(f"overlap = {overlap!r}: {float(level):g} is not between 0 and 1. {accepted}")
    return levels


def mixture(overlap: Any, has_collectives: bool) -> dict[str, Any]:
    """Schedules to make (`steps.MODES`, `IN_TURN`, "serial") and the weight of each; weights add up to 1.

    With a threshold u between 0 and 1, whatever has a level above u runs concurrently; this is the mean over u. The level of DMA
    against compute is that of the engines over `KERNEL`, at most 1.
    """
    engines, collectives = overlap_levels(overlap)
    known = all(isinstance(level, (numbers.Real, np.generic)) for level in (engines, collectives))
    least, most, one = (min, max, 1.0) if known else (jnp.minimum, jnp.maximum, jnp.ones(()))
    dma = least(engines / KERNEL, one)
    if not has_collectives or collectives is engines:
        weights = {"concurrent": engines, "compute_in_turn": dma - engines, SERIAL: 1 - dma}
        if has_collectives:
            weights["compute_in_turn_alone"] = weights.pop("compute_in_turn")
    else:
        weights = {
            "concurrent": least(engines, collectives),
            "collectives_alone": most(engines - collectives, 0 * one),
            "compute_in_turn": most(least(dma, collectives) - engines, 0 * one),
            "compute_in_turn_alone": most(dma - most(engines, collectives), 0 * one),
            "engines_in_turn": most(collectives - dma, 0 * one),
            SERIAL: 1 - most(dma, collectives),
        }
    return {mode: weight for mode, weight in weights.items() if not known or weight > 0}
