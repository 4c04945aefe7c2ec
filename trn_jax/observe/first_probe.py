"""The probe of find_nonfinite: the ranges of the values of a body, and the first operation in it that made a NaN or an infinity.

An operation makes a NaN when none of its operands holds one, and an infinity when all its operands are finite. Ranges say it all:
min and max of an array pass NaN on, and are finite only if everything between them is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trn_jax._compat import Traced
from trn_jax.graph.numerics import Numerics
from trn_jax.observe.sites import Path, site, sites
from trn_jax.observe.thread import Seen

_NO_RANGE = (np.float32(0), np.float32(0))  # of what holds no floats: finite


class FirstProbe:
    """Keeps the ranges of one body's values, and takes the first operation of it that made something into the state at its end."""

    def __init__(self, traced: Traced, numerics: Numerics, names: tuple[str, ...]):
        places = list(dict.fromkeys(sites(traced.graph, numerics)))
        self.number = {path: index for index, (path, _) in enumerate(places)}
        self.sites = tuple(site(path, numerics) for path, numerics in places)
        depth = max((len(place.loops) for place in self.sites), default=0)
        operands = max((len(place.operands) for place in self.sites), default=0)
        self._empty = {
            "found": jnp.bool_(False),
            "index": jnp.int32(0),
            "iterations": jnp.full(depth, -1, jnp.int32),
            "operand_ranges": jnp.zeros((operands, 2), jnp.float32),
            "output_range": jnp.zeros(2, jnp.float32),
            "rank": jnp.int32(-1),
            "clock": jnp.int32(0),  # operations so far, until something is found
        }
        self.state = self._empty
        self.names = (*names, *(f"captured {value!r}" for value, _ in traced.graph.constants))
        given = (*traced.operands, *(x for _, x in traced.graph.constants))
        finite = jnp.stack([jnp.isfinite(jnp.stack(_range(x))).all() for x in given] or [jnp.bool_(True)])
        self.input_index = jnp.where(finite.all(), -1, jnp.argmin(finite).astype(jnp.int32))

    @property
    def state(self) -> dict[str, Any]:
        """What was found so far, the operations seen since it was last read included."""
        if self._seen:
            self._state = self._first()
        self.state = self._state
        return self._state

    @state.setter
    def state(self, state: dict[str, Any]) -> None:
        self._state = state
        self._seen: list[tuple[int, list[int], list[int], Sequence[Any]]] = []  # operation, positions of operands and of outputs, loops
        self._ranges = [_NO_RANGE]  # of the arrays of this body; the first stands for none
        self._position: dict[int, int] = {}  # of an array, by its id, in `_ranges`
        self._alive: list[Any] = []

    def see(self, seen: Seen) -> None:
        """Measures what was not measured yet."""
        number = self.number[seen.path]
        inputs = [self._measured(x) for x in seen.inputs]
        is_view = not self.sites[number].engine
        if is_view and len(seen.inputs) == len(seen.outputs) == 1 and np.size(seen.inputs[0]) <= np.size(seen.outputs[0]):
            self._position[id(seen.outputs[0])] = inputs[0]
            self._alive.append(seen.outputs[0])
        else:
            self._seen.append((number, inputs, [self._measured(x) for x in seen.outputs], seen.iterations))

    def fresh(self, path: Path) -> dict[str, Any]:
        """Nothing found."""
        return self._empty

    def gather(self, path: Path, iterations: tuple[Any, ...], ranks: dict[str, Any]) -> None:
        """The rank that was first, unless something was found before; collectives spread it to the others."""
        rank = jnp.argmin(jnp.where(ranks["found"], ranks["clock"], jnp.iinfo(jnp.int32).max))
        here = {name: x[rank] for name, x in ranks.items()} | {"rank": rank.astype(jnp.int32)}
        here["clock"] += self.state["clock"]
        self.state = _earlier(self.state, here)

    def _measured(self, x: Any) -> int:
        """Where in `_ranges` the range of an array is, measured once in a body."""
        if id(x) not in self._position:
            self._alive.append(x)  # so that its id stays its own
            self._position[id(x)] = len(self._ranges)
            self._ranges.append(_range(x))
        return self._position[id(x)]

    def _first(self) -> dict[str, Any]:
        """The state after the operations seen."""
        empty, iterations = self._empty, self._seen[0][3]
        ranges = jnp.stack([jnp.asarray(bound, jnp.float32) for pair in self._ranges for bound in pair]).reshape(-1, 2)
        operands = _table([inputs for _, inputs, _, _ in self._seen], len(empty["operand_ranges"]))
        results = _table([outputs for _, _, outputs, _ in self._seen])
        infinite, nan = ~jnp.isfinite(ranges).all(1), jnp.isnan(ranges[:, 0])
        made = (infinite[results].any(1) & ~infinite[operands].any(1)) | (nan[results].any(1) & ~nan[operands].any(1))
        first = jnp.argmax(made)
        output = ranges[jnp.asarray(results)[first]]
        found = {
            "found": made[first],
            "index": jnp.asarray([number for number, *_ in self._seen], jnp.int32)[first],
            "iterations": empty["iterations"].at[: len(iterations)].set(jnp.stack(iterations)) if iterations else empty["iterations"],
            "operand_ranges": ranges[jnp.asarray(operands)[first]],
            "output_range": jnp.stack([output[:, 0].min(), output[:, 1].max()]),
            "rank": empty["rank"],
            "clock": self._state["clock"] + jnp.where(made.any(), first.astype(jnp.int32), len(self._seen)),
        }
        return _earlier(self._state, found)


def _table(rows: Sequence[Sequence[int]], width: int = 1) -> np.ndarray:
    """Rows of positions as one array, filled up with position 0, where nothing is."""
    width = max([width, *map(len, rows)])
    return np.array([[*row, *[0] * (width - len(row))] for row in rows])


def _earlier(state: dict[str, Any], later: dict[str, Any]) -> dict[str, Any]:
    chosen = {name: jnp.where(state["found"] | ~later["found"], old, later[name]) for name, old in state.items()}
    return chosen | {"clock": jnp.where(state["found"], state["clock"], later["clock"])}


def _range(x: Any) -> tuple[Any, Any]:
    """Smallest and largest element in fp32, NaN if there is one."""
    dtype = x.dtype if hasattr(x, "dtype") else np.result_type(x)
    if not np.size(x) or not jnp.issubdtype(dtype, jnp.inexact):
        return _NO_RANGE
    x = jax.lax.stop_gradient(x)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return _join([_range(jnp.real(x)), _range(jnp.imag(x))])
    if jnp.ndim(x) == 0:
        return (x, x)
    return jnp.min(x), jnp.max(x)


def _join(ranges: Sequence[tuple[Any, Any]]) -> tuple[Any, Any]:
    """The range of several arrays together."""
    (low, high), *rest = ranges
    for other_low, other_high in rest:
        low, high = jnp.minimum(low, other_low), jnp.maximum(high, other_high)
    return low, high
