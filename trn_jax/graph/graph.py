"""The Graph: a jaxpr without JAX's version-dependent details, as ops, calls, loops and branches over named values.

It is lossless: `run.evaluate_plain(graph, operands)` gives what the traced function gives. Only `trn_jax._compat` builds one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


class Value:
    """One array of the traced function; compared by identity.

    Attributes:
        aval: What JAX knows about it.
        shape: () for a token.
        dtype: NumPy dtype, or an extended dtype (PRNG keys); of no bytes for a token.
        size: Number of elements.
        size_bytes: Bytes in memory; a PRNG key counts as the words that back it.
    """

    __slots__ = ("aval", "shape", "dtype", "size", "size_bytes")

    def __init__(self, aval: Any):
        self.aval = aval
        self.shape: tuple[int, ...] = tuple(getattr(aval, "shape", ()))
        self.dtype: Any = getattr(aval, "dtype", jax.dtypes.float0)
        self.size: int = math.prod(self.shape)
        self.size_bytes: int = self.size * (self.dtype.itemsize if isinstance(self.dtype, np.dtype) else 8)

    @property
    def is_float(self) -> bool:
        """Whether the elements are real floating point numbers of any width."""
        return jnp.issubdtype(self.dtype, jnp.floating)

    def __repr__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


class Constant(Value):
    """A literal of the jaxpr: a scalar known when tracing."""

    __slots__ = ("value",)

    def __init__(self, aval: Any, value: Any):
        super().__init__(aval)
        self.value = value


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Node:
    """What every step of a Graph has; `source` is the user's line and `scope` the jax.named_scope path."""

    name: str
    index: int
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    source: str
    scope: str
    cotangent: int | None = None  # which operand is a cotangent, if this is a product and part of a backward pass


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Op(Node):
    """A primitive without sub-programs. `bind(*operands, **changed_params)` evaluates it as JAX would; returns a list."""

    params: Mapping[str, Any]
    bind: Callable[..., list[Any]]


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Call(Node):
    """A primitive that runs `body` once: jit, remat, custom_jvp, custom_vjp, shard_map.

    `rebuild(evaluate, operands, stream)` wraps the same transformation around `evaluate(body, operands, stream)`, so that a
    user's custom rule, a remat policy or a mesh survives while every body is interpreted. None where nothing is to be kept but
    the call itself.
    """

    body: Graph
    rebuild: Callable[..., list[Any]] | None
    params: Mapping[str, Any]
    known_as: str = ""  # name under which `Numerics.inside` knows the called function, if it does
    ranks: int = 0  # shards on which the body runs at once; what it then gives beyond its outputs comes back stacked over them


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Scan(Node):
    """`length` iterations of `body(*constants, *carry, *slices) -> (*carry, *stacked)`."""

    body: Graph
    num_consts: int
    num_carry: int
    length: int
    reverse: bool
    unroll: int | bool


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class While(Node):
    """`body` as long as `condition` holds; each has its own leading constants, then the carry."""

    condition: Graph
    body: Graph
    condition_num_consts: int
    body_num_consts: int


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Branch(Node):
    """One of `branches`, picked by the first input (an int32 index), or by the platform where `platforms` names those of each."""

    branches: tuple[Graph, ...]
    platforms: tuple[tuple[str, ...] | None, ...] | None = None


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Graph:
    """Inputs, captured arrays, nodes in program order, outputs."""

    inputs: tuple[Value, ...]
    constants: tuple[tuple[Value, Any], ...]
    nodes: tuple[Node, ...]
    outputs: tuple[Value, ...]
    last_use: Mapping[Value, int] = field(repr=False)  # index in `nodes` after which a value is dead; outputs never are
    jitted: dict[Any, Any] = field(default_factory=dict, repr=False)  # this graph as a jitted function, by who evaluates it


def last_uses(nodes: Sequence[Node], outputs: Sequence[Value]) -> dict[Value, int]:
    """For every value the position of the last node that reads it; program outputs stay alive."""
    uses, kept = {value: position for position, node in enumerate(nodes) for value in node.inputs}, set(outputs)
    return {value: position for value, position in uses.items() if value not in kept}


def bodies(node: Node) -> tuple[Graph, ...]:
    """The sub-programs of a node."""
    match node:
        case Call() | Scan():
            return (node.body,)
        case While():
            return (node.condition, node.body)
        case Branch():
            return node.branches
    return ()


def walk(graph: Graph) -> Iterator[Node]:
    """Every node of a graph and of its sub-programs, outermost first."""
    for node in graph.nodes:
        yield node
        for body in bodies(node):
            yield from walk(body)
