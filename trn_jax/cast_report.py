"""The cast report: every rounding a function meets on a chip; where, from which format to which, how many elements, how wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from trn_jax._compat import is_dynamic, trace_graph
from trn_jax.chips.schema import Chip
from trn_jax.emulate import emulate
from trn_jax.graph.chains import internal_values
from trn_jax.graph.graph import Branch, Call, Graph, Op, Scan, While
from trn_jax.graph.numerics import Numerics
from trn_jax.graph.rules import lower
from trn_jax.numerics import format_of
from trn_jax.observe.rounding_errors import MEASURES, ErrorProbe, Point
from trn_jax.observe.sites import Path, scope_of
from trn_jax.observe.watch import watched


@dataclass(frozen=True, slots=True, kw_only=True)
class Cast:
    """One rounding point.

    Attributes:
        primitive: JAX primitive.
        instruction: "nc_matmul" for an operand of a matmul, otherwise the instruction that writes.
        role: "lhs", "rhs" or "write".
        from_format: Format the value arrives in.
        to_format: Format it is rounded to.
        elements: Elements rounded in one execution.
        executions: How often it runs; None inside a while loop, whose trip count is not known.
        source: User's line.
        scope: jax.named_scope path.
        max_abs_error: Largest |rounded - exact| of elements that stay finite. This and what follows is measured, over all
            executions; None where only shapes were given.
        max_rel_error: Largest |rounded - exact| / |exact| of them.
        overflows: Finite elements past the largest of the format, that became infinite, NaN or (saturating) that largest one.
        underflows: Elements that became zero.
    """

    primitive: str
    instruction: str
    role: str
    from_format: str
    to_format: str
    elements: int
    executions: int | None
    source: str
    scope: str
    max_abs_error: Any = None
    max_rel_error: Any = None
    overflows: Any = None
    underflows: Any = None


@partial(jax.tree_util.register_dataclass, data_fields=["measured"], meta_fields=["points"])
@dataclass(frozen=True, slots=True)
class CastReport:
    """The casts in program order; `to_table()` prints them, `total_elements` counts what is rounded.

    A sequence of `Cast`s, and a pytree: a jitted function may return it.

    Attributes:
        points: The casts without measurements.
        measured: Arrays by name, one element per cast, or None.
    """

    points: tuple[Cast, ...]
    measured: dict[str, Any] | None = None

    def __len__(self) -> int:
        return len(self.points)

    def __iter__(self) -> Iterator[Cast]:
        return map(self.__getitem__, range(len(self.points)))

    def __getitem__(self, index: int) -> Cast:
        measured = {} if self.measured is None else {name: x[..., index] for name, x in self.measured.items()}
        return replace(self.points[index], **measured)

    @property
    def total_elements(self) -> int:
        """Elements rounded in one call, loops included; a while body counts once."""
        return sum(cast.elements * (1 if cast.executions is None else cast.executions) for cast in self.points)

    def to_table(self) -> str:
        """One line per cast, columns aligned."""
        numbers = MEASURES if self.measured and not any(isinstance(x, Tracer) or np.ndim(x) > 1 for x in self.measured.values()) else ()
        head = ("primitive", "instruction", "role", "from", "to", "elements", "times", *numbers, "source", "scope")
        lines = [
            (
                c.primitive,
                c.instruction,
                c.role,
                c.from_format,
                c.to_format,
                f"{c.elements:,}",
                str(c.executions or "while"),
                *(f"{float(getattr(c, name)):.3g}" for name in numbers),
                c.source,
                c.scope,
            )
            for c in self
        ]
        widths = [max(len(line[column]) for line in [head, *lines]) for column in range(len(head))]
        return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in [head, *lines])

    def __repr__(self) -> str:
        return self.to_table() if self else "CastReport: nothing is rounded"


def cast_report(fn: Callable[..., Any], chip: Chip, **options: Any) -> Callable[..., CastReport]:
    """What `emulate(fn, chip, **options)` rounds.

    Args:
        fn: Any function `emulate` takes, or one it returned (then its own chip and options hold, and `options` must be empty).
        chip: The chip.
        **options: Those of `emulate`.

    Returns:
        A callable with `fn`'s signature that returns a `CastReport`. Arguments may be `jax.ShapeDtypeStruct`s; given arrays, `fn` is
        run and the error of every rounding measured (also under jit, vmap and scan). Both branches of a conditional are listed.
        Roundings that a chain of element-wise operations leaves out are left out.

    Raises:
        As `emulate`.

    Units: errors in the unit of the values. Gradient: none. Basis: as `emulate`.
    """
    options.setdefault("seed", 0)  # also for functions emulated inside
    numerics: Numerics = emulate(fn, chip, **options).numerics  # pyright: ignore[reportFunctionMemberAccess]

    def probe(traced: Any, numerics: Numerics, names: tuple[str, ...]) -> ErrorProbe:
        return ErrorProbe([point for point, _ in _casts(traced.graph, numerics, 1)])

    measure = watched(fn, chip, probe, lambda probe, outputs: probe.state, trace=trace_graph, **options)

    def report(*args: Any, **kwargs: Any) -> CastReport:
        graph = trace_graph(fn, *args, **kwargs).graph
        casts = tuple(cast for _, cast in _casts(graph, numerics, 1))
        leaves, treedef = jax.tree.flatten((args, kwargs))
        arrays = {number: leaf for number, leaf in enumerate(leaves) if is_dynamic(leaf)}
        if not casts or not all(isinstance(leaf, (jax.Array, np.ndarray, np.generic)) for leaf in arrays.values()):
            return CastReport(casts)

        def compiled(arrays: dict[int, Any]) -> dict[str, Any]:
            args, kwargs = jax.tree.unflatten(treedef, [arrays.get(number, leaf) for number, leaf in enumerate(leaves)])
            return measure(*args, **kwargs)

        return CastReport(casts, jax.jit(compiled)(arrays))

    return report


def _casts(graph: Graph, numerics: Numerics, executions: int | None, path: Path = ()) -> Iterator[tuple[Point, Cast]]:
    """The casts of a graph, each with what it is recognised by when it happens."""
    internal = internal_values(graph) if numerics.writes == "instruction" else frozenset()
    for node in graph.nodes:
        below = (*path, node)
        match node:
            case Op():
                casts = _op_casts(node, numerics, executions, below)
                yield from (pair for pair in casts if pair[1].role != "write" or internal.isdisjoint(node.outputs))
            case Call():
                yield from _casts(node.body, numerics.entering(node), executions, below)
            case Scan():
                yield from _casts(node.body, numerics, None if executions is None else executions * node.length, below)
            case While():
                yield from _casts(node.condition, numerics, None, below)
                yield from _casts(node.body, numerics, None, below)
            case Branch():
                for branch in node.branches:
                    yield from _casts(branch, numerics, executions, below)


def _op_casts(op: Op, numerics: Numerics, executions: int | None, path: Path) -> Iterator[tuple[Point, Cast]]:
    where = {"primitive": op.name, "executions": executions, "source": op.source, "scope": scope_of(path)}
    if op.name == "round_to":
        cast = Cast(
            instruction="tensor_copy", role="write", from_format="fp32", to_format=op.params["fmt"], elements=op.outputs[0].size, **where
        )
        yield Point(path, "round_to", "write", 0), cast
    for instruction in lower(op, numerics):
        if numerics.rounds and instruction.kind == "nc_matmul":
            for position, (role, value, fmt) in enumerate(zip(("lhs", "rhs"), op.inputs, instruction.operand_formats, strict=False)):
                given = format_of(value.dtype)
                if fmt and fmt != given:
                    cast = Cast(instruction="nc_matmul", role=role, from_format=given or "", to_format=fmt, elements=value.size, **where)
                    yield Point(path, "nc_matmul", "operand", position), cast
        for position, (value, fmt) in enumerate(zip(op.outputs, instruction.write_formats, strict=False)):
            if fmt:
                cast = Cast(instruction=instruction.kind, role="write", from_format="fp32", to_format=fmt, elements=value.size, **where)
                yield Point(path, instruction.kind, "write", position), cast
