"""Sites: the operations of a program, each at its place under the calls, loops and branches around it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from trn_jax.graph.graph import Branch, Call, Graph, Node, Op, Scan, While, bodies
from trn_jax.graph.numerics import Numerics
from trn_jax.graph.rules import lower

Path = tuple[Node, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """One operation of a program, as text.

    Attributes:
        primitive: JAX primitive.
        instruction: NKI name of the instruction that writes its result; "view" where no data change.
        engine: Engine that runs it; "" for a view.
        source: User's line.
        scope: jax.named_scope path.
        operands: Dtype and shape of each operand.
        outputs: Dtype and shape of each output.
        loops: Source lines of the loops around it, outermost first.
    """

    primitive: str
    instruction: str
    engine: str
    source: str
    scope: str
    operands: tuple[str, ...]
    outputs: tuple[str, ...]
    loops: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.primitive} ({self.engine or 'view'}) at {self.source}" + (f" in {self.scope}" if self.scope else "")


def sites(graph: Graph, numerics: Numerics, path: Path = ()) -> Iterator[tuple[Path, Numerics]]:
    """Every operation that a watched walk meets, as its path, in program order; bodies that two branches share are met twice."""
    for node in graph.nodes:
        below = (*path, node)
        match node:
            case Op():
                yield below, numerics
            case Call():
                yield from sites(node.body, numerics.entering(node), below)
            case Scan() | While() | Branch():
                for body in bodies(node):
                    yield from sites(body, numerics, below)


def scope_of(path: Path) -> str:
    """The named scopes around and at an operation."""
    return "/".join(node.scope for node in path if node.scope)


def site(path: Path, numerics: Numerics) -> Site:
    """A place in words."""
    op = path[-1]
    assert isinstance(op, Op)
    instruction = next(iter(lower(op, numerics)), None)
    return Site(
        primitive=op.name,
        instruction=instruction.kind if instruction else "view",
        engine=instruction.engine if instruction else "",
        source=op.source,
        scope=scope_of(path),
        operands=tuple(map(repr, op.inputs)),
        outputs=tuple(map(repr, op.outputs)),
        loops=tuple(node.source for node in path if isinstance(node, (Scan, While))),
    )
