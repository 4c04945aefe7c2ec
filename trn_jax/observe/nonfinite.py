"""find_nonfinite: the first instruction of a program that makes a NaN or an infinity."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from trn_jax.chips.schema import Chip
from trn_jax.observe.first_probe import FirstProbe
from trn_jax.observe.sites import Site
from trn_jax.observe.watch import watched


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["outputs", "found", "index", "iterations", "operand_ranges", "output_range", "input_index", "rank"],
    meta_fields=["sites", "input_names"],
)
@dataclass(frozen=True, slots=True, kw_only=True)
class NonFinite:
    """Where a NaN or an infinity began; a pytree, so that a jitted function may return it. `print` it.

    Attributes:
        outputs: What the function returned.
        found: Whether an instruction made a NaN or an infinity.
        index: Which of `sites`; meaningless unless `found`.
        iterations: int32[loops]: iteration of each loop around it in order of execution, outermost first, -1 beyond its loops.
        operand_ranges: float32[operands, 2]: smallest and largest element of each operand; (0, 0) for operands without floats.
        output_range: float32[2]: the same of the result: NaN where it holds one, infinite where it holds an infinity.
        input_index: First argument that holds a NaN or an infinity already, in `input_names`; -1 if all are finite.
        rank: Index of the rank where it was made under a shard_map, -1 outside.
        sites: Every operation of the program.
        input_names: Every argument leaf, then "captured" arrays.
    """

    outputs: Any
    found: Any
    index: Any
    iterations: Any
    operand_ranges: Any
    output_range: Any
    input_index: Any
    rank: Any
    sites: tuple[Site, ...]
    input_names: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.found)

    @property
    def site(self) -> Site | None:
        """The instruction that made it; None if there is none."""
        return self.sites[int(self.index)] if self.found else None

    @property
    def input(self) -> str | None:
        """The first argument that was not finite; None if all were."""
        return self.input_names[int(self.input_index)] if self.input_index >= 0 else None

    def __repr__(self) -> str:
        if any(isinstance(x, Tracer) or np.ndim(x) for x in (self.found, self.input_index)):
            return f"NonFinite(found={self.found}, index={self.index})"
        lines = [] if self.input is None else [f"The input {self.input} is not finite to begin with."]
        made = self.site
        if made is None:
            return "\n".join([*lines, "Nothing non-finite is made."])
        low, high = (float(x) for x in self.output_range)
        what = "NaN" if np.isnan(low) else " and ".join(str(x) for x in sorted({low, high}) if np.isinf(x))
        lines.append(f"{what} is made by {made}, instruction {made.instruction}")
        for number, (operand, (low, high)) in enumerate(zip(made.operands, np.asarray(self.operand_ranges), strict=False)):
            lines.append(f"  operand {number}: {operand}" + (f" in [{low:.6g}, {high:.6g}]" if "float" in operand else ""))
        lines += [f"  iteration {i} of the loop at {loop}" for loop, i in zip(made.loops, np.asarray(self.iterations), strict=False)]
        return "\n".join(lines + ([f"  on rank {int(self.rank)}"] if self.rank >= 0 else []))


def find_nonfinite(fn: Callable[..., Any], chip: Chip, **options: Any) -> Callable[..., NonFinite]:
    """Runs `fn` as `emulate(fn, chip, **options)` does and says which instruction is the first, in order of execution, to make a NaN
    out of operands without one, or an infinity out of finite operands.

    Inside scans, while loops, branches, calls, custom derivative rules and shard_map too. An infinity that is written in the program
    (a mask of -inf) is not made by it; a NaN that follows from it is.

    Args:
        fn: Any function `emulate` takes.
        chip: The chip.
        **options: Those of `emulate`.

    Returns:
        A callable with `fn`'s signature that returns a `NonFinite`: `print` it, or test `.found`. It may be jitted, vmapped and
        scanned, and belongs in a training loop as it is: `.outputs` are those of the step.

    Raises:
        As `emulate`.

    Units: none. Gradient: that of `fn` in `.outputs`; none elsewhere. Basis: as `emulate`.
    """

    def report(probe: FirstProbe, outputs: Any) -> NonFinite:
        found = {name: x for name, x in probe.state.items() if name != "clock"}
        return NonFinite(outputs=outputs, sites=probe.sites, input_names=probe.names, input_index=probe.input_index, **found)

    return watched(fn, chip, FirstProbe, report, **options)  # pyright: ignore[reportArgumentType]
