"""Chains of element-wise operations, found once on the Graph: what `writes="instruction"` keeps in fp32 and what time may fuse.

A value is internal to a chain when exactly one operation reads it, that operation and the one that made it are element-wise
over the same number of elements, and no explicit cast of the user's ends there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from trn_jax.graph.graph import Graph, Node, Op, Value
from trn_jax.graph.rules.elementwise import ACTIVATIONS, ALU, CASTS, COPIES

ELEMENTWISE = frozenset({*ALU, *ACTIVATIONS, *COPIES, "select_n"})


def is_elementwise(node: Node) -> bool:
    """Whether a node is one element-wise operation with one floating point result."""
    return isinstance(node, Op) and node.name in ELEMENTWISE and len(node.outputs) == 1


def internal_values(graph: Graph) -> frozenset[Value]:
    """Values that never leave the instruction chain that makes them."""
    reads = Counter(value for node in graph.nodes for value in node.inputs)
    reads.update(graph.outputs)
    reader: dict[Value, Node] = {value: node for node in graph.nodes for value in node.inputs}
    return frozenset(
        value
        for node in graph.nodes
        if is_elementwise(node)
        for value in node.outputs
        if reads[value] == 1 and value in reader and _joins(node, reader[value], value)
    )


def _joins(producer: Node, consumer: Node, value: Value) -> bool:
    return value.is_float and producer.name not in CASTS and is_elementwise(consumer) and consumer.outputs[0].size == value.size


def chains(graph: Graph, internal: Callable[[Graph], frozenset[Value]] = internal_values) -> dict[int, int]:
    """For every element-wise node of a chain longer than one, the index of the chain's last node (the one that writes)."""
    inner = internal(graph)
    reader = {value: node.index for node in graph.nodes for value in node.inputs}
    last: dict[int, int] = {}
    for node in reversed(graph.nodes):
        for value in node.outputs:
            if value in inner:
                last[node.index] = last.get(reader[value], reader[value])
    for end in set(last.values()):
        last[end] = end
    return last
