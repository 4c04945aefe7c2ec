"""Elasticities: by how many percent the time changes when a parameter of the chip grows by one percent.

    e_p = d log t / d log p          sum over p of (power of seconds in the unit of p) e_p = 1

The second line holds because all time comes from the chip: measure seconds in another unit and t scales as every latency does,
and against every clock and bandwidth. A constant in seconds hidden in the code would break it.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from trn_jax.chips import Chip
from trn_jax.chips.paths import leaves_by_path
from trn_jax.errors import ChipError
from trn_jax.timing.latency import latency
from trn_jax.timing.program import Program
from trn_jax.timing.schedule import check_chip
from trn_jax.units import format_quantity, time_power, unit_of


class Elasticities(dict[str, float]):
    """Dotted path of a chip parameter to its elasticity, largest first.

    Attributes:
        latency_s: The time they belong to.
        smoothing: Of that time.
        values_by_path: The parameters themselves.
    """

    def __init__(self, entries: dict[str, float], latency_s: float, values_by_path: dict[str, float], smoothing: float = 0.0):
        super().__init__(sorted(entries.items(), key=lambda item: (-abs(item[1]), item[0])))
        self.latency_s = latency_s
        self.smoothing = smoothing
        self.values_by_path = values_by_path

    def to_table(self) -> list[dict[str, Any]]:
        """One dict per parameter: `path, value, unit, elasticity`."""
        return [
            {"path": path, "value": self.values_by_path[path], "unit": unit_of(path), "elasticity": elasticity}
            for path, elasticity in self.items()
        ]

    @property
    def time_power_sum(self) -> float:
        """Sum of (power of seconds) x elasticity: 1, up to rounding."""
        return float(sum(time_power(path) * elasticity for path, elasticity in self.items()))

    def __repr__(self) -> str:
        lines = [f"Elasticities of {format_quantity(self.latency_s, 's')}: d log t / d log p"]
        for path, elasticity in self.items():
            if abs(elasticity) >= 5e-4:
                lines.append(f"  {elasticity:+.3f}  {path} = {format_quantity(self.values_by_path[path], unit_of(path))}")
        steps = "  (array and tile sizes act in whole steps and show only with smoothing=0.05 or so)"
        return "\n".join([*lines, "  all others below 0.0005 in size", *([] if self.smoothing else [steps])])


def elasticity(program: Program, chip: Chip, *, smoothing: float = 0.0, overlap: Any = None) -> Elasticities:
    """What the time of a program is made of, parameter by parameter.

    Args:
        program: From `trn_jax.trace`, one workload.
        chip: One chip, concrete numbers.
        smoothing: 0 gives the exact derivative: nothing for array sizes between their steps and for engines that are not the
            bottleneck. A few percent show those too.
        overlap: As for `trn_jax.latency`.

    Returns:
        Elasticities by dotted path, dimensionless; print it, or use it as a dict.

    Raises:
        ProgramError: Not a Program, or an unknown overlap.
        ChipError: Not a Chip, or a batch of them.

    Basis: derived (the gradient of `latency` in float64).
    """
    check_chip(chip)
    batched = [path for path, leaf in leaves_by_path(chip).items() if np.ndim(leaf)]
    if batched:
        raise ChipError(f"elasticity takes one chip; {batched[0]} has shape {np.shape(leaves_by_path(chip)[batched[0]])}. Give a number.")
    values = {path: float(leaf) for path, leaf in leaves_by_path(chip).items()}
    with jax.enable_x64(True):
        exact = jax.tree.map(np.float64, chip)
        time_s, gradient = jax.value_and_grad(lambda c: latency(program, c, smoothing=smoothing, overlap=overlap))(exact)
        slopes = {path: float(leaf) for path, leaf in leaves_by_path(gradient).items()}
    time_s = float(time_s)
    entries = {path: slopes[path] * value / time_s if time_s else 0.0 for path, value in values.items()}
    return Elasticities(entries, time_s, values, float(smoothing))
