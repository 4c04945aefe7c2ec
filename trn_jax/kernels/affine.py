"""Affine: what a kernel computes from loop indices, such as `i * 128 + 64`: a sum of indices times integers, and an integer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from trn_jax.errors import ProgramError

if TYPE_CHECKING:
    from trn_jax.kernels.record import Loop


@dataclass(frozen=True, slots=True, eq=False)
class Affine:
    """A number that is known iteration by iteration only; it can be added, subtracted, and multiplied by integers."""

    terms: tuple[tuple[Loop, int], ...]
    constant: int = 0

    def __add__(self, other: Any) -> Affine:
        other = as_affine(other)
        factors = dict(self.terms)
        for loop, factor in other.terms:
            factors[loop] = factors.get(loop, 0) + factor
        return Affine(tuple((loop, factor) for loop, factor in factors.items() if factor), self.constant + other.constant)

    def __mul__(self, other: Any) -> Affine:
        if isinstance(other, Affine):
            if other.terms:
                self._refuse("multiplied by another index")
            other = other.constant
        return Affine(tuple((loop, factor * int(other)) for loop, factor in self.terms if other), self.constant * int(other))

    def __neg__(self) -> Affine:
        return self * -1

    def __sub__(self, other: Any) -> Affine:
        return self + as_affine(other) * -1

    def __rsub__(self, other: Any) -> Affine:
        return as_affine(other) - self

    __radd__ = __add__
    __rmul__ = __mul__

    def at(self, indices: Mapping[Loop, Any]) -> Any:
        """Its value in one iteration; a Python int where all indices are."""
        return self.constant + sum(indices[loop] * factor for loop, factor in self.terms)

    def bounds(self, indices: Mapping[Loop, int]) -> tuple[int, int]:
        """Smallest and largest value over all iterations of the loops that `indices` does not fix."""
        low = high = self.constant
        for loop, factor in self.terms:
            ends = [factor * i for i in ([indices[loop]] if loop in indices else [0, loop.trips - 1])]
            low, high = low + min(ends), high + max(ends)
        return low, high

    def __str__(self) -> str:
        parts = [f"{loop.name}" if factor == 1 else f"{factor} {loop.name}" for loop, factor in self.terms]
        return " + ".join([*parts, *([str(self.constant)] if self.constant or not parts else [])])

    def _refuse(self, what: str) -> NoReturn:
        raise ProgramError(
            f"The loop index expression {self} cannot be {what}: the body of an affine_range or sequential_range is recorded once for all "
            "iterations, and an index can only be added, subtracted and multiplied by integers. Use Python's range() where the body has "
            "to know the number."
        )

    def __bool__(self) -> bool:
        self._refuse("used as a condition")

    def __index__(self) -> int:
        self._refuse("used as a Python integer")

    __int__ = __index__

    def __eq__(self, other: object) -> bool:
        self._refuse("compared")

    def __lt__(self, other: object) -> bool:
        self._refuse("compared")

    __le__ = __gt__ = __ge__ = __lt__
    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __floordiv__(self, other: object) -> Affine:
        self._refuse("divided")

    __truediv__ = __mod__ = __floordiv__


def as_affine(value: Any) -> Affine:
    """An int as a constant."""
    return value if isinstance(value, Affine) else Affine((), int(value))
