"""What was rounded on the way: the roundings of instructions, for whoever wants to measure them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

from trn_jax.graph.instruction import Instruction


class Rounded(NamedTuple):
    """One rounding as it happened: operand or output number `position` of an instruction, before and after, both in fp32."""

    instruction: Instruction
    role: str  # "operand" or "write"
    position: int
    fmt: str
    before: Any
    after: Any


_roundings: ContextVar[list[Rounded] | None] = ContextVar("trn_jax_roundings", default=None)


@contextmanager
def noting_roundings() -> Iterator[list[Rounded]]:
    """While active, the list holds every rounding that instructions of this context make."""
    noted: list[Rounded] = []
    token = _roundings.set(noted)
    try:
        yield noted
    finally:
        _roundings.reset(token)


def are_noted() -> bool:
    """Whether anybody wants to know, for whoever would have to compute something for it."""
    return _roundings.get() is not None


def note_rounding(*rounded: Any) -> None:
    """To be called with the fields of `Rounded` by whatever rounds."""
    noted = _roundings.get()
    if noted is not None:
        noted.append(Rounded(*rounded))
