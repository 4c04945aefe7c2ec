"""tap: what the operations inside a program compute, as arrays.

An operation in a scan of n iterations gives [n, ...], on r ranks of a shard_map [r, ...], outer loops first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trn_jax._compat import Traced
from trn_jax.chips.schema import Chip
from trn_jax.engines.kind import is_narrow_float
from trn_jax.errors import ProgramError, did_you_mean
from trn_jax.graph.graph import Call, Op, Scan, Value, While
from trn_jax.graph.numerics import Numerics
from trn_jax.observe.flow import Flow
from trn_jax.observe.sites import Path, Site, scope_of, site, sites
from trn_jax.observe.thread import Seen
from trn_jax.observe.watch import watched


@partial(jax.tree_util.register_dataclass, data_fields=["outputs", "arrays", "executions"], meta_fields=["names", "sites"])
@dataclass(frozen=True, slots=True, kw_only=True)
class Taps(Mapping[str, Any]):
    """What operations of a program computed: a mapping from "scope/operation" to an array, in program order; a pytree.

    Operations of one name in one scope are numbered: "mlp/mul", "mlp/mul_1"; outputs of one operation too: "sort.0", "sort.1".

    Attributes:
        outputs: What the function returned.
        arrays: One per name, of the dtype in the program.
        executions: How often each was computed, loops and ranks together; where it is 0 the array is zeros.
        names: The keys.
        sites: The operation behind each key.
    """

    outputs: Any
    arrays: tuple[Any, ...]
    executions: tuple[Any, ...]
    names: tuple[str, ...]
    sites: tuple[Site, ...]

    def __getitem__(self, name: str) -> Any:
        if name not in self.names:
            raise KeyError(f"Nothing is tapped under {name!r}. {did_you_mean(name, self.names)}")
        return self.arrays[self.names.index(name)]

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def scope(self, pattern: str) -> dict[str, Any]:
        """What is tapped in the scopes that match, as from `tap(scopes=[pattern])`."""
        return {name: x for name, x, place in zip(self.names, self.arrays, self.sites, strict=True) if in_scope(place.scope, pattern)}

    def __repr__(self) -> str:
        rows = zip(self.names, self.arrays, self.sites, strict=True)
        return "\n".join(f"{name}: {x.dtype}{list(x.shape)}  {place.source}" for name, x, place in rows)


def tap(fn: Callable[..., Any], chip: Chip, scopes: Sequence[str] = ("*",), **options: Any) -> Callable[..., Taps]:
    """Runs `fn` as `emulate(fn, chip, **options)` does and returns the intermediate values of some `jax.named_scope`s.

    Args:
        fn: Any function `emulate` takes.
        chip: The chip.
        scopes: Scope paths as the cast report prints them, or glob patterns; each stands for all scopes below it too: "attention",
            "layer_*/softmax", "*" for everything. A derivative's scopes are wrapped, as in "transpose(jvp(attention))".
        **options: Those of `emulate`.

    Returns:
        A callable with `fn`'s signature that returns `Taps`; it may be jitted, vmapped and scanned. Every operation is there, those
        that only move data too. Of a while loop the last iteration is kept, conditions are evaluated once more than the body.

    Raises:
        ProgramError: When called: a pattern matches no scope of the program.
        Otherwise as `emulate`.

    Units: those of the program. Gradient: values inside bodies with a custom derivative rule are constants, all others have that of
    the emulated program. Basis: as `emulate`.
    """
    check_scopes(scopes)

    def report(probe: TapProbe, outputs: Any) -> Taps:
        return Taps(outputs=outputs, arrays=probe.state[0], executions=probe.state[1], names=probe.names, sites=probe.sites)

    def probe(traced: Traced, numerics: Numerics, names: tuple[str, ...]) -> TapProbe:
        return TapProbe(traced, numerics, scopes)

    return watched(fn, chip, probe, report, **options)


def check_scopes(scopes: Any) -> None:
    """Raises TypeError unless it is a sequence of strings, and not one string."""
    if isinstance(scopes, str):
        raise TypeError(f"scopes takes a list of scope patterns, but got the string {scopes!r}. Write [{scopes!r}].")
    if not isinstance(scopes, Sequence) or not all(isinstance(pattern, str) for pattern in scopes):
        raise TypeError(f"scopes takes a list of scope patterns, but got {scopes!r}. Give strings, like ['attention/*'].")


def in_scope(scope: str, pattern: str) -> bool:
    """Whether a scope path matches a pattern or lies below one that does."""
    return fnmatchcase(scope, pattern) or fnmatchcase(scope, f"{pattern}/*")


class TapProbe:
    """Keeps chosen values; `state` is (arrays, counts)."""

    def __init__(self, traced: Traced, numerics: Numerics, scopes: Sequence[str], *, keeps_fp32: bool = False):
        self._graph = traced.graph
        places = dict(sites(traced.graph, numerics))
        known = {scope_of(path) for path in places}
        for pattern in scopes:
            if not any(in_scope(scope, pattern) for scope in known):
                named = sorted(known - {""})
                hint = did_you_mean(pattern, named) if named else "It has none; name parts of it: with jax.named_scope('attention'): ..."
                raise ProgramError(f"No operation of the program is in a scope that matches {pattern!r}. {hint}")
        self._keys = [
            (path, position)
            for path in places
            if any(in_scope(scope_of(path), pattern) for pattern in scopes)
            for position, value in enumerate(path[-1].outputs)
            if isinstance(value.dtype, np.dtype) and value.dtype != jax.dtypes.float0
        ]
        self.paths = [path for path, _ in self._keys]
        self.sites = tuple(site(path, places[path]) for path in self.paths)
        self.names = _names(self._keys)
        self._index = {key: index for index, key in enumerate(self._keys)}
        self._keeps_fp32 = keeps_fp32 or numerics.writes == "instruction"
        self.state = self.fresh(())

    @property
    def tapped(self) -> list[Value]:
        """The value behind every name."""
        return [path[-1].outputs[position] for path, position in self._keys]

    def operands(self) -> list[list[int]]:
        """For every tapped value those that its operation reads, as far as they are tapped."""
        flow = Flow(self._graph)
        return [[self._index[key] for key in flow.operands(path) if key in self._index] for path in self.paths]

    def see(self, seen: Seen) -> None:
        """Puts the outputs of one operation in their places."""
        self._put(seen.path, seen.iterations, [(position, x, 1) for position, x in enumerate(seen.outputs)])

    def fresh(self, path: Path) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Zeros for what lies below `path`, nothing for the rest."""
        below = [key[0][: len(path)] == path for key in self._keys]
        buffers = [self._buffer(*key, len(path)) if inside else () for key, inside in zip(self._keys, below, strict=True)]
        return tuple(buffers), tuple(jnp.int32(0) if inside else () for inside in below)

    def gather(self, path: Path, iterations: tuple[Any, ...], ranks: tuple[tuple[Any, ...], tuple[Any, ...]]) -> None:
        """Puts what all ranks tapped in its place."""
        for (tapped, position), x, count in zip(self._keys, *ranks, strict=True):
            if tapped[: len(path)] == path:
                self._put(tapped, iterations, [(position, x, count.sum())], len(path) - 1)

    def _put(self, path: Path, iterations: tuple[Any, ...], outputs: Sequence[tuple[int, Any, Any]], end: int | None = None) -> None:
        values, counts = (list(part) for part in self.state)
        # Within a shard_map a state has the axes of the loops inside it only.
        begin = max((depth + 1 for depth, node in enumerate(path[:end]) if isinstance(node, Call) and node.ranks), default=0)
        outside = sum(isinstance(node, (Scan, While)) for node in path[:begin])
        loops = zip((node for node in path[begin:end] if isinstance(node, (Scan, While))), iterations[outside:], strict=True)
        where = tuple(node.length - 1 - i if node.reverse else i for node, i in loops if isinstance(node, Scan))
        for position, x, count in outputs:
            index = self._index.get((path, position))
            if index is not None:
                x = jnp.asarray(x).astype(values[index].dtype)
                values[index] = values[index].at[where].set(x) if where else x
                counts[index] = counts[index] + count
        self.state = tuple(values), tuple(counts)

    def _buffer(self, path: Path, position: int, begin: int) -> Any:
        value = path[-1].outputs[position]
        axes = []
        for node in path[begin:]:
            if isinstance(node, Scan):
                axes.append(node.length)
            elif isinstance(node, Call) and node.ranks:
                axes.append(node.ranks)
        dtype = jnp.float32 if self._keeps_fp32 and is_narrow_float(value.aval) else value.dtype
        return jnp.zeros((*axes, *value.shape), dtype)


def _names(keys: Sequence[tuple[Path, int]]) -> tuple[str, ...]:
    """A name for every tapped value: scope, operation, its number among equals, and the output's if there are several."""
    met: Counter[str] = Counter()
    names, of = [], {}
    for path, position in keys:
        op = path[-1]
        assert isinstance(op, Op)
        if path not in of:
            base = "/".join(filter(None, (scope_of(path), op.name)))
            of[path] = f"{base}_{met[base]}" if met[base] else base
            met[base] += 1
        names.append(of[path] if len(op.outputs) == 1 else f"{of[path]}.{position}")
    return tuple(names)
