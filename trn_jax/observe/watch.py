"""watched: a function run as emulate runs it, with a probe that sees every operation."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax

from trn_jax._compat import Traced, is_dynamic, trace_values
from trn_jax.chips.schema import Chip
from trn_jax.emulate import emulate
from trn_jax.graph.numerics import Numerics
from trn_jax.graph.run import run_program
from trn_jax.numerics.seed import as_seed
from trn_jax.observe.thread import Probe, Thread, WatchedWalker

AnyProbe = TypeVar("AnyProbe", bound=Probe)


def watched(
    fn: Callable[..., Any],
    chip: Chip,
    make_probe: Callable[..., AnyProbe],
    report: Callable[[AnyProbe, Any], Any],
    seed: Any = None,
    trace: Callable[..., Traced] = trace_values,
    walker: type[WatchedWalker] = WatchedWalker,
    **options: Any,
) -> Callable[..., Any]:
    """A callable with `fn`'s signature that returns `report(probe, outputs)` after running `fn` on the chip.

    The probe is `make_probe(traced, numerics, names of the inputs)`.

    Raises:
        As `emulate`.
    """
    numerics: Numerics = emulate(fn, chip, seed=seed, **options).numerics  # pyright: ignore[reportFunctionMemberAccess]

    @functools.wraps(fn)
    def run(*args: Any, **kwargs: Any) -> Any:
        traced = trace(fn, *args, **kwargs)
        start = None if seed is None else as_seed(seed=seed)
        probe = make_probe(traced, numerics, input_names(args, kwargs))
        outputs = run_program(walker(numerics, control=Thread(probe)), traced.graph, traced.operands, start)
        return report(probe, jax.tree.unflatten(traced.out_tree, outputs))

    return run


def input_names(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, ...]:
    """Every traced leaf of the arguments by its place: "args[0]['weight']"."""
    leaves = jax.tree_util.tree_leaves_with_path((args, kwargs))
    return tuple(("args", "kwargs")[path[0].idx] + jax.tree_util.keystr(path[1:]) for path, leaf in leaves if is_dynamic(leaf))
