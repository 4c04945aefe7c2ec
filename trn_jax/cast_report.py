"""The cast report: every rounding a function meets on a chip; where, from which format to which, and how many elements."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from trn_jax._compat import trace_graph
from trn_jax.chips.schema import Chip
from trn_jax.emulate import emulate
from trn_jax.graph.chains import internal_values
from trn_jax.graph.graph import Branch, Call, Graph, Op, Scan, While
from trn_jax.graph.numerics import Numerics
from trn_jax.graph.rules import lower
from trn_jax.numerics import format_of


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


class CastReport(tuple[Cast, ...]):
    """The casts in program order; `to_table()` prints them, `total_elements` counts what is rounded."""

    @property
    def total_elements(self) -> int:
        """Elements rounded in one call, loops included; a while body counts once."""
        return sum(cast.elements * (1 if cast.executions is None else cast.executions) for cast in self)

    def to_table(self) -> str:
        """One line per cast, columns aligned."""
        head = ("primitive", "instruction", "role", "from", "to", "elements", "times", "source", "scope")
        lines = [
            (
                c.primitive,
                c.instruction,
                c.role,
                c.from_format,
                c.to_format,
                f"{c.elements:,}",
                str(c.executions or "while"),
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
        A callable with `fn`'s signature that returns a `CastReport`; arguments may be `jax.ShapeDtypeStruct`s. Both branches
        of a conditional are listed. Roundings that a chain of element-wise operations leaves out are left out.

    Raises:
        As `emulate`.
    """
    if options.get("rounding") == "stochastic":
        options.setdefault("seed", 0)
    emulated = emulate(fn, chip, **options)
    numerics: Numerics = emulated.numerics  # pyright: ignore[reportFunctionMemberAccess]

    def report(*args: Any, **kwargs: Any) -> CastReport:
        return CastReport(_casts(trace_graph(fn, *args, **kwargs).graph, numerics, 1))

    return report


def _casts(graph: Graph, numerics: Numerics, executions: int | None, scope: str = "") -> Iterator[Cast]:
    """The casts of a graph inside a scope."""
    internal = internal_values(graph) if numerics.writes == "instruction" else frozenset()
    for node in graph.nodes:
        within = "/".join(filter(None, (scope, node.scope)))
        match node:
            case Op():
                casts = _op_casts(node, numerics, executions, within)
                yield from (cast for cast in casts if cast.role != "write" or internal.isdisjoint(node.outputs))
            case Call():
                yield from _casts(node.body, numerics.inside(node.known_as), executions, within)
            case Scan():
                yield from _casts(node.body, numerics, None if executions is None else executions * node.length, within)
            case While():
                yield from _casts(node.condition, numerics, None, within)
                yield from _casts(node.body, numerics, None, within)
            case Branch():
                for branch in node.branches:
                    yield from _casts(branch, numerics, executions, within)


def _op_casts(op: Op, numerics: Numerics, executions: int | None, scope: str) -> Iterator[Cast]:
    where = {"primitive": op.name, "executions": executions, "source": op.source, "scope": scope}
    if op.name == "round_to":
        yield Cast(
            instruction="tensor_copy", role="write", from_format="fp32", to_format=op.params["fmt"], elements=op.outputs[0].size, **where
        )
    for instruction in lower(op, numerics):
        if numerics.rounds and instruction.kind == "nc_matmul":
            for role, value, fmt in zip(("lhs", "rhs"), op.inputs, instruction.operand_formats, strict=False):
                given = format_of(value.dtype)
                if fmt and fmt != given:
                    yield Cast(instruction="nc_matmul", role=role, from_format=given or "", to_format=fmt, elements=value.size, **where)
        for value, fmt in zip(op.outputs, instruction.write_formats, strict=False):
            if fmt:
                yield Cast(instruction=instruction.kind, role="write", from_format="fp32", to_format=fmt, elements=value.size, **where)
