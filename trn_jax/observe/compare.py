"""compare_exact: a program on the chip beside its exact twin in fp32, operation by operation, to see where the error grows.

rel_error = |emulated - exact| / |exact|          (Euclidean norms over the whole value, all iterations and ranks)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from trn_jax.chips.schema import Chip
from trn_jax.engines.kind import is_narrow_float
from trn_jax.errors import ProgramError
from trn_jax.graph.graph import Graph, Node, Op, Value
from trn_jax.graph.run import as_declared, in_fp32
from trn_jax.observe.sites import Site
from trn_jax.observe.taps import TapProbe, check_scopes
from trn_jax.observe.thread import WatchedWalker
from trn_jax.observe.watch import watched


@partial(jax.tree_util.register_dataclass, data_fields=["rel_error", "max_abs_error", "operand_error"], meta_fields=["names", "sites"])
@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The error of every floating point value of a program, in program order; a pytree. `print` it, or `worst()`.

    Attributes:
        rel_error: [values] |emulated - exact| / |exact|, 0 where both are zero.
        max_abs_error: [values] largest difference of an element.
        operand_error: [values] largest rel_error among the operands that are in the table, wherever they were made; 0 for inputs.
        names: Scope and operation, as `tap` names them.
        sites: Line, engine and the rest.
    """

    rel_error: Any
    max_abs_error: Any
    operand_error: Any
    names: tuple[str, ...]
    sites: tuple[Site, ...]

    def worst(self, count: int = 10) -> tuple[str, ...]:
        """Names of the values where most error was added: rel_error less that of the operands."""
        error, before = np.asarray(self.rel_error), np.asarray(self.operand_error)
        added = np.subtract(error, before, out=np.zeros_like(error), where=error != before)  # infinite behind infinite adds nothing
        added = np.nan_to_num(added, nan=np.inf)
        return tuple(self.names[i] for i in np.argsort(-added, kind="stable")[:count])

    def to_table(self) -> str:
        """One line per value, columns aligned."""
        lines = [("value", "engine", "rel error", "of operands", "max abs error", "source")]
        columns = (self.names, self.sites, *(np.asarray(x) for x in (self.rel_error, self.operand_error, self.max_abs_error)))
        for name, place, error, before, largest in zip(*columns, strict=True):
            lines.append((name, place.engine or "view", f"{error:.2e}", f"{before:.2e}", f"{largest:.2e}", place.source))
        widths = [max(len(line[column]) for line in lines) for column in range(6)]
        return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines)

    def __repr__(self) -> str:
        measured = not isinstance(self.rel_error, Tracer) and np.ndim(self.rel_error) == 1
        return self.to_table() if measured else f"Comparison({len(self.names)} values)"


def compare_exact(fn: Callable[..., Any], chip: Chip, scopes: Sequence[str] = ("*",), **options: Any) -> Callable[..., Comparison]:
    """Runs `fn` as `emulate(fn, chip, **options)` does, and beside it with every float in fp32 and nothing rounded, and compares.

    Both runs walk the same program and meet only in the table. They decide branches and while loops for themselves: where they
    decide differently, values of a while loop are those of each one's last iteration, of a branch not taken zeros. Explicit
    `lax.reduce_precision` is part of the program and stays. All compared values are in memory at once.

    Args:
        fn: Any function `emulate` takes.
        chip: The chip.
        scopes: Which values to compare, as in `tap`.
        **options: Those of `emulate`.

    Returns:
        A callable with `fn`'s signature that returns a `Comparison`; it may be jitted, vmapped and scanned.

    Raises:
        ProgramError: When called: no operation in these scopes computes floats.
        Otherwise as `tap`.

    Units: errors absolute in the unit of the values, and relative. Gradient: none. Basis: derived.
    """
    check_scopes(scopes)
    runs = [
        watched(fn, chip, _probe(scopes, keeps_fp32), lambda probe, outputs: probe, walker=walker, **options)
        for walker, keeps_fp32 in ((WatchedWalker, False), (ExactWalker, True))
    ]

    def compare(*args: Any, **kwargs: Any) -> Comparison:
        emulated, exact = (run(*args, **kwargs) for run in runs)
        floats = [i for i, value in enumerate(emulated.tapped) if value.is_float]
        if not floats:
            raise ProgramError("Nothing to compare: no operation in these scopes has a floating point result.")
        errors = [_errors(emulated.state[0][i], exact.state[0][i]) for i in floats]
        rel_error, max_abs_error = (jnp.stack(column) for column in zip(*errors, strict=True))
        operands = emulated.operands()
        before = [[floats.index(k) for k in operands[i] if k in floats] for i in floats]
        return Comparison(
            rel_error=rel_error,
            max_abs_error=max_abs_error,
            operand_error=jnp.stack([rel_error[np.array(known)].max() if known else jnp.float32(0) for known in before]),
            names=tuple(emulated.names[i] for i in floats),
            sites=tuple(emulated.sites[i] for i in floats),
        )

    return compare


def _probe(scopes: Sequence[str], keeps_fp32: bool) -> Callable[..., TapProbe]:
    return lambda traced, numerics, names: TapProbe(traced, numerics, scopes, keeps_fp32=keeps_fp32)


def _errors(emulated: Any, exact: Any) -> tuple[Any, Any]:
    """Relative and largest absolute error of one value; elements that are the same infinity, or both NaN, have none."""
    exact = jax.lax.stop_gradient(exact)
    emulated = jax.lax.stop_gradient(emulated).astype(exact.dtype)
    same = (emulated == exact) | (jnp.isnan(emulated) & jnp.isnan(exact))
    difference = jnp.where(same, 0, emulated - exact)
    size = jnp.linalg.norm(jnp.where(jnp.isfinite(exact), exact, 0).ravel())
    error = jnp.linalg.norm(difference.ravel())
    return jnp.where(error == 0, 0, error / size), jnp.abs(difference).max(initial=0)


@dataclass(frozen=True)
class ExactWalker(WatchedWalker):
    """Every float in fp32 from the inputs on, whatever its dtype, nothing rounded: each operation as JAX computes it on fp32 operands."""

    def __call__(self, graph: Graph, operands: Sequence[Any], stream: Any, *, linear: Sequence[Value] = ()) -> list[Any]:
        """As the walker's, with wide results."""
        return _widen(super().__call__(graph, operands, stream, linear=linear))

    def node(self, node: Node, inputs: list[Any], *context: Any) -> list[Any]:
        """As the walker's, of wide operands."""
        return super().node(node, _widen(inputs), *context)

    def evaluate(self, op: Op, inputs: list[Any], *context: Any) -> list[Any]:
        """What an operation gives in fp32."""
        if not any(is_narrow_float(value.aval) for value in (*op.inputs, *op.outputs)):
            return op.bind(*inputs)
        if op.name == "bitcast_convert_type":  # the bits of the narrow value are meant
            return _widen(op.bind(*(as_declared(x, value) for x, value in zip(inputs, op.inputs, strict=True))))
        return _widen(in_fp32(op)(*inputs))


def _widen(values: Sequence[Any]) -> list[Any]:
    return [jnp.asarray(x, jnp.float32) if is_narrow_float(x) else x for x in values]
