"""Which part of the model a step's time goes to, by the named scopes of `trn_jax.models`.

A scope such as `transpose(jvp(block2))/mlp` is the backward pass of an MLP: the innermost known name is the part, and a transposition
or a recomputation makes it backward.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Protocol

PARTS = ("embedding", "attention", "mlp", "norm", "dropout", "head", "loss", "accumulation", "optimizer")
OTHER = "other"


class Timed(Protocol):
    """Seconds spent in a scope."""

    @property
    def scope(self) -> str:
        """The path of named scopes."""
        ...

    @property
    def seconds(self) -> float:
        """Time, one instruction after the other."""
        ...


def seconds_by_part(operations: Iterable[Timed]) -> dict[str, tuple[float, float]]:
    """Seconds forward and backward of each part that takes any, longest first."""
    total: dict[str, list[float]] = {}
    for operation in operations:
        names = [name for name in re.findall(r"\w+", operation.scope) if name in PARTS]
        backward = "transpose(" in operation.scope or "rematted" in operation.scope
        total.setdefault(names[-1] if names else OTHER, [0.0, 0.0])[backward] += operation.seconds
    return {part: (times[0], times[1]) for part, times in sorted(total.items(), key=lambda item: -sum(item[1]))}


def parts_text(operations: Iterable[Timed]) -> str:
    """The same as a table, with each part's share of the sum."""
    parts = seconds_by_part(operations)
    whole = sum(map(sum, parts.values())) or 1.0
    lines = [f"  {'part of the model':<18}{'forward':>12}{'backward':>12}{'share':>9}"]
    for part, (forward, backward) in parts.items():
        lines.append(f"  {part:<18}{_milliseconds(forward):>12}{_milliseconds(backward):>12}{100 * (forward + backward) / whole:>7.1f} %")
    return "\n".join(lines)


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.3f} ms" if seconds else ""
