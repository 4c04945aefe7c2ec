"""The error of every rounding of a program, over all the times it happens: worst absolute, worst relative, overflows, underflows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from trn_jax.graph.graph import Op
from trn_jax.numerics import BLOCK_FORMATS, get_format
from trn_jax.observe.sites import Path
from trn_jax.observe.thread import Seen

MEASURES = ("max_abs_error", "max_rel_error", "overflows", "underflows")
_WORST = MEASURES[:2]  # kept as a maximum; the others are counts


class Point(NamedTuple):
    """What a rounding is recognised by: its operation, the kind of instruction, operand or write, and which of them."""

    path: Path
    instruction: str
    role: str
    position: int


class ErrorProbe:
    """Measures every rounding of a list; `state` is a dict of arrays with one element for each."""

    def __init__(self, points: Sequence[Point]):
        self._index = {point: index for index, point in enumerate(points)}
        self._zero = {name: jnp.zeros(len(points), jnp.float32 if name in _WORST else jnp.uint32) for name in MEASURES}
        self.state = self._zero

    @property
    def state(self) -> dict[str, Any]:
        """Errors so far, the roundings seen since it was last read included."""
        if self._seen:
            index = jnp.asarray([index for index, _ in self._seen])
            new = {name: jnp.stack([errors[name] for _, errors in self._seen]) for name in MEASURES}
            add = {name: self._state[name].at[index] for name in MEASURES}
            self.state = {name: add[name].max(new[name]) if name in _WORST else add[name].add(new[name]) for name in MEASURES}
        return self._state

    @state.setter
    def state(self, state: dict[str, Any]) -> None:
        self._state = state
        self._seen: list[tuple[int, dict[str, Any]]] = []

    def see(self, seen: Seen) -> None:
        """Measures the roundings of one operation."""
        op = seen.path[-1]
        assert isinstance(op, Op)
        if op.name == "round_to":
            self._measure(Point(seen.path, "round_to", "write", 0), op.params["fmt"], seen.inputs[0], seen.outputs[0])
        for x in seen.roundings:
            self._measure(Point(seen.path, x.instruction.kind, x.role, x.position), x.fmt, x.before, x.after)

    def _measure(self, point: Point, fmt: str, before: Any, after: Any) -> None:
        self._seen.append((self._index[point], rounding_errors(fmt, before, after)))

    def fresh(self, path: Path) -> dict[str, Any]:
        """Nothing yet."""
        return self._zero

    def gather(self, path: Path, iterations: tuple[Any, ...], ranks: dict[str, Any]) -> None:
        """The worst of all ranks, and all counts together."""
        worst = {name: jnp.maximum(self.state[name], ranks[name].max(0)) for name in _WORST}
        self.state = worst | {name: self.state[name] + ranks[name].sum(0, dtype=jnp.uint32) for name in MEASURES if name not in _WORST}


def rounding_errors(fmt: str, before: Any, after: Any) -> dict[str, Any]:
    """What one rounding of an array did to its elements: a scalar for each of `MEASURES`."""
    before, after = (jax.lax.stop_gradient(jnp.asarray(x)).astype(jnp.float32) for x in (before, after))
    finite = jnp.isfinite(before)
    largest = jnp.inf if fmt in BLOCK_FORMATS else get_format(fmt).max_finite  # blocks have no largest value of their own
    overflow = finite & (~jnp.isfinite(after) | ((jnp.abs(before) > largest) & (jnp.abs(after) == largest)))
    error = jnp.where(finite & ~overflow, jnp.abs(after - before), 0)
    nonzero = finite & (before != 0)
    return {
        "max_abs_error": error.max(initial=0),
        "max_rel_error": jnp.where(nonzero, error / jnp.where(nonzero, jnp.abs(before), 1), 0).max(initial=0),
        "overflows": overflow.sum(dtype=jnp.uint32),
        "underflows": (nonzero & (after == 0)).sum(dtype=jnp.uint32),
    }
