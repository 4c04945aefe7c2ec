"""Flow: which operations made a value, through the calls, loops and branches that it crosses."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from trn_jax.graph.graph import Branch, Call, Graph, Node, Op, Scan, Value, While
from trn_jax.observe.sites import Path

Place = tuple[Path, Value]  # a value in the body that this path leads to


class Flow:
    """The ways of values through a program."""

    def __init__(self, graph: Graph):
        self._same: defaultdict[Place, list[Place]] = defaultdict(list)  # where a value that crosses the edge of a body comes from
        self._made: dict[Place, tuple[Path, int]] = {}
        self._follow(graph, ())

    def operands(self, path: Path) -> list[tuple[Path, int]]:
        """The operations, with the position of the output, that made what the operation at the end of `path` reads."""
        waiting: list[Place] = [(path[:-1], value) for value in path[-1].inputs]
        met = set(waiting)
        found = []
        while waiting:
            place = waiting.pop()
            if place in self._made:
                found.append(self._made[place])
            new = [origin for origin in self._same.get(place, ()) if origin not in met]
            waiting += new
            met.update(new)
        return found

    def _follow(self, graph: Graph, path: Path) -> None:
        for node in graph.nodes:
            below = (*path, node)
            if isinstance(node, Op):
                self._made |= {(path, value): (below, position) for position, value in enumerate(node.outputs)}
            for body, operands, gives in _edges(node):
                self._link(((below, value) for value in body.inputs), path, operands)
                if gives:
                    self._link(((path, value) for value in node.outputs), below, body.outputs)
                if isinstance(node, (Scan, While)):  # a carry also comes from the iteration before
                    carry, results = _carry(node, body)
                    self._link(((below, value) for value in carry), below, results)
                self._follow(body, below)

    def _link(self, places: Iterator[Place], path: Path, origins: Sequence[Value]) -> None:
        for place, origin in zip(places, origins, strict=True):
            self._same[place].append((path, origin))


def _edges(node: Node) -> Iterator[tuple[Graph, Sequence[Value], bool]]:
    """Each body of a node, what its inputs are outside, and whether its outputs are the node's."""
    match node:
        case Call() | Scan():
            yield node.body, node.inputs, True
        case While():
            ours, constants = node.condition_num_consts, node.condition_num_consts + node.body_num_consts
            yield node.condition, (*node.inputs[:ours], *node.inputs[constants:]), False
            yield node.body, node.inputs[ours:], True
        case Branch():
            for body in node.branches:
                yield body, node.inputs[len(node.inputs) - len(body.inputs) :], True


def _carry(node: Scan | While, body: Graph) -> tuple[Sequence[Value], Sequence[Value]]:
    """The inputs of a loop's body that are its carry, and the values that the next iteration gets for them."""
    if isinstance(node, Scan):
        return body.inputs[node.num_consts : node.num_consts + node.num_carry], body.outputs[: node.num_carry]
    constants = node.body_num_consts if body is node.body else node.condition_num_consts
    return body.inputs[constants:], node.body.outputs
