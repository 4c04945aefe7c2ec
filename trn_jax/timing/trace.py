"""trace: any JAX function as a Program, without weights and without a device."""

from __future__ import annotations

import gc
import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import jax

from trn_jax._compat import trace_graph
from trn_jax.errors import ProgramError
from trn_jax.graph.graph import Graph
from trn_jax.graph.numerics import AutoCast, Numerics, checked_autocast
from trn_jax.kernels import Kernel
from trn_jax.timing.flatten import flatten
from trn_jax.timing.live import live
from trn_jax.timing.operand_layout import read_operands_as_they_lie
from trn_jax.timing.passes import DEFAULT, apply_passes, checked_passes
from trn_jax.timing.program import Array, Program
from trn_jax.timing.rows import build_program
from trn_jax.timing.trip_counts import TripCounts


def trace(
    f: Callable[..., Any],
    *args: Any,
    trip_count: int | Mapping[str, int] | None = None,
    autocast: AutoCast | None = None,
    passes: Iterable[str] = DEFAULT,
    **kwargs: Any,
) -> Program:
    """The instruction stream of `f` at these arguments: what `latency`, `estimate`, `sweep` and `tune` read.

    Calls are inlined, dead code is dropped, scans of up to 8 iterations are unrolled and longer ones kept as one iteration
    and its count. Of a `cond` the branch with the most work is taken, after its condition. Memory traffic is added for every
    size of SBUF at once, so the same program serves all chips.

    Args:
        f: A JAX function, an `emulate`d one (then its own auto-cast and formats hold), a jitted one, or a callable module; or a
            `trn_jax.kernel`, which keeps its own schedule (no passes).
        *args: Arrays, `jax.ShapeDtypeStruct`s or trees of them; only shapes and dtypes matter. Other leaves are static.
        trip_count: Iterations of `while` loops: one number for all, or a dict from a part of the loop's source line or
            jax.named_scope to its number. Scans know theirs.
        autocast: Formats of matmul operands and writes, as for `emulate`; None casts nothing.
        passes: Names of the fusions to apply, of `trn_jax.timing.passes.PASSES`; `()` for none.
        **kwargs: Keyword arguments of `f`.

    Returns:
        A `Program`: static structure and a numeric table, its only leaves. Equal functions at different sizes have the same
        structure if the same data fit on chip, and then form a batch under `jax.tree.map(jnp.stack, ...)`.

    Raises:
        ProgramError: `f` is not callable, runs no instruction, or has a while loop without a trip count; an unknown pass;
            a trip count that is not a non-negative int or that names no loop; `autocast` given for an emulated function.
        NoRuleError, UnsupportedError: For a primitive without a rule, or one refused for a stated reason.

    Units: bytes and counts. Gradient: none (a Program is data); `latency` is differentiable in chip and table.
    Basis: see the rules, `timing.memory` and `timing.passes`.
    """
    if isinstance(inner := _unjitted(f), Kernel):
        if trip_count is not None or autocast is not None:
            raise ProgramError(
                f"trip_count= and autocast= are for traced functions; the kernel {inner.name} has its own loops and formats."
            )
        return inner.program(*args, **kwargs)
    if not callable(f):
        raise ProgramError(
            f"trace takes a function and its arguments, but its first argument is {f!r}. Give the function itself, not its result."
        )
    TripCounts(trip_count)  # refuses what is no count before anything is traced
    passes = checked_passes(passes)
    function, numerics = _emulated(f)
    if numerics is None:
        numerics = Numerics(autocast=checked_autocast(autocast))
    elif autocast is not None:
        raise ProgramError(
            "autocast= was given for a function from trn_jax.emulate, which has its own. Set it there, or trace the plain function."
        )
    name, arguments = getattr(f, "__name__", type(f).__name__), _arguments(f, args, kwargs)
    with _nothing_collected():
        graph = trace_graph(function, *args, **kwargs).graph
        return _Origin(graph=graph, numerics=numerics, trip_count=trip_count, name=name, arguments=arguments).build(passes)


@contextmanager
def _nothing_collected() -> Iterator[None]:
    """Pauses the search for garbage: all that tracing makes lives on, and looking at it again and again takes a fifth of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Origin:
    """A traced function, to be lowered with any passes."""

    graph: Graph
    numerics: Numerics
    trip_count: int | Mapping[str, int] | None
    name: str
    arguments: Mapping[str, tuple[Array, ...]]
    passes: tuple[str, ...] = ()

    @property
    def results(self) -> tuple[Array, ...]:
        """Arrays that the function returns."""
        return tuple(Array(value.shape, str(value.dtype), float(value.size_bytes)) for value in self.graph.outputs)

    @property
    def captured_bytes(self) -> float:
        """Bytes of arrays that the function holds without their being arguments."""
        return float(sum(value.size_bytes for value, _ in self.graph.constants))

    def build(self, passes: tuple[str, ...]) -> Program:
        """The program with these passes."""
        stream = live(read_operands_as_they_lie(flatten(self.graph, self.numerics, self.trip_count)))
        if not stream.items:
            raise ProgramError(
                f"{self.name} runs no instruction: its outputs are its inputs, constants or views of them. There is nothing to time; "
                "return something computed from the arguments."
            )
        return build_program(apply_passes(stream, passes), replace(self, passes=passes))


def _arguments(f: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, tuple[Array, ...]]:
    """Arrays of each argument, by its name."""
    try:
        bound = inspect.signature(f).bind(*args, **kwargs)
        named: Mapping[str, Any] = bound.arguments
    except (TypeError, ValueError):  # a callable that does not tell its signature
        named = {f"argument {position}": argument for position, argument in enumerate(args)} | dict(kwargs)
    found = {name: tuple(filter(None, map(_array, jax.tree.leaves(argument)))) for name, argument in named.items()}
    return {name: arrays for name, arrays in found.items() if arrays}


def _array(leaf: Any) -> Array | None:
    """One core's part of a leaf, if it is an array."""
    shape, dtype = getattr(leaf, "shape", None), getattr(leaf, "dtype", None)
    if shape is None or dtype is None:
        return None
    if isinstance(sharding := getattr(leaf, "sharding", None), jax.sharding.NamedSharding):
        shape = sharding.shard_shape(tuple(shape))
    return Array(tuple(shape), str(dtype), float(math.prod(shape) * getattr(dtype, "itemsize", 8)))


def _emulated(f: Callable[..., Any]) -> tuple[Callable[..., Any], Numerics | None]:
    """The function inside `emulate`, also under jit, and its numerics; any other function as it is."""
    inner = _unjitted(f)
    numerics = getattr(inner, "numerics", None)
    function = getattr(inner, "function", None)
    # jax.grad and others copy attributes of what they wrap; only emulate's own callable wraps exactly its function.
    if isinstance(numerics, Numerics) and function is not None and getattr(inner, "__wrapped__", None) is function:
        return function, numerics
    return f, None


def _unjitted(f: Any) -> Any:
    """The function inside jax.jit."""
    while isinstance(f, jax.stages.Wrapped) and hasattr(f, "__wrapped__"):
        f = getattr(f, "__wrapped__")  # noqa: B009
    return f
