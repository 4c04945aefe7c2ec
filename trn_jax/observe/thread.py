"""One state threaded through a program: a probe sees every operation the walker evaluates, in program order, inside every body.

    state -> op -> state -> scan(state, carry) -> state -> ...

Loops carry the state, branches return it, calls pass it on; each rank of a shard_map begins afresh and its states come back stacked.
So what a probe collects is ordinary data: jit, vmap and scan go around it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from trn_jax.engines.rounded import Rounded, noting_roundings
from trn_jax.graph.control import Control
from trn_jax.graph.graph import Branch, Call, Node, Op
from trn_jax.graph.run import Walker


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One evaluation of one operation.

    Attributes:
        path: The loops, branches and calls around the operation, outermost first, and the operation: its place in the program.
        inputs: Operands.
        outputs: Results, as they are written.
        roundings: What was rounded on the way, with the values before and after.
        iterations: int32 counters of the loops around, outermost first, in order of execution.
    """

    path: tuple[Node, ...]
    inputs: Sequence[Any]
    outputs: Sequence[Any]
    roundings: Sequence[Rounded]
    iterations: tuple[Any, ...]


class Probe(Protocol):
    """What looks at a program. `state` is a pytree of arrays of fixed shapes that is read and set between operations."""

    state: Any

    def see(self, seen: Seen) -> None:
        """Takes one evaluation into `state`."""
        ...

    def fresh(self, path: tuple[Node, ...]) -> Any:
        """The state with which each rank of a shard_map at `path` begins."""
        ...

    def gather(self, path: tuple[Node, ...], iterations: tuple[Any, ...], ranks: Any) -> None:
        """Takes the states of all ranks of a shard_map, stacked on a leading axis, into `state`."""
        ...


class Thread(Control):
    """Control flow that carries a probe's state along, and knows where in the program it is."""

    def __init__(self, probe: Probe):
        self.probe = probe
        self.path: tuple[Node, ...] = ()
        self.iterations: tuple[Any, ...] = ()
        self.watching = True

    @contextmanager
    def at(self, path: tuple[Node, ...], iterations: tuple[Any, ...]) -> Iterator[None]:
        """While what lies at `path` is evaluated."""
        before = self.path, self.iterations
        self.path, self.iterations = path, iterations
        try:
            yield
        finally:
            self.path, self.iterations = before

    def inside(self, node: Node, *iteration: Any) -> AbstractContextManager[None]:
        """While the body of `node` is evaluated, for a loop in this iteration."""
        return self.at((*self.path, node), (*self.iterations, *iteration))

    @contextmanager
    def unwatched(self) -> Iterator[None]:
        """While nothing is shown to the probe."""
        before, self.watching = self.watching, False
        try:
            yield
        finally:
            self.watching = before

    def scan(self, node: Node, body: Callable[..., Any], carry: Any, xs: Any, **how: Any) -> tuple[Any, Any]:
        """lax.scan that also carries the state and a counter."""
        if not self.watching:
            return super().scan(node, body, carry, xs, **how)

        def step(carried: Any, x: Any) -> tuple[Any, Any]:
            self.probe.state, iteration, inner = carried
            with self.inside(node, iteration):
                inner, ys = body(inner, x)
            return (self.probe.state, iteration + 1, inner), ys

        (self.probe.state, _, final), stacked = lax.scan(step, (self.probe.state, jnp.int32(0), carry), xs, **how)
        return final, stacked

    def while_loop(self, node: Node, condition: Callable[..., Any], body: Callable[..., Any], carry: Any) -> Any:
        """lax.while_loop that also carries the state and a counter.

        A condition cannot change the state, so it is evaluated again where it can: in the body, and once more after the loop.
        """
        if not self.watching:
            return super().while_loop(node, condition, body, carry)

        def go_on(carried: Any) -> Any:
            with self.unwatched():
                return condition(carried[2])

        def step(carried: Any) -> Any:
            self.probe.state, iteration, inner = carried
            with self.inside(node, iteration):
                condition(inner)
                inner = body(inner)
            return self.probe.state, iteration + 1, inner

        self.probe.state, iterations, final = lax.while_loop(go_on, step, (self.probe.state, jnp.int32(0), carry))
        with self.inside(node, iterations):
            condition(final)
        return final

    def branch(self, node: Branch, index: Any, branches: Sequence[Callable[..., Any]], *operands: Any) -> Any:
        """A branch that also returns the state."""
        if not self.watching:
            return super().branch(node, index, branches, *operands)

        def watched(taken: Callable[..., Any]) -> Callable[..., Any]:
            def run(state: Any, *inner: Any) -> Any:
                self.probe.state = state
                with self.inside(node):
                    outputs = taken(*inner)
                return self.probe.state, outputs

            return run

        self.probe.state, outputs = super().branch(node, index, [watched(taken) for taken in branches], self.probe.state, *operands)
        return outputs


@dataclass(frozen=True)
class WatchedWalker(Walker):
    """A walker that shows every operation to the probe of its `control`, a Thread."""

    def op(self, op: Op, inputs: list[Any], *context: Any) -> list[Any]:
        """As the walker's, and seen."""
        with noting_roundings() as roundings:
            outputs = self.evaluate(op, inputs, *context)
        thread = self.thread
        if thread.watching:
            path = (*thread.path, op)
            thread.probe.see(Seen(path=path, inputs=inputs, outputs=outputs, roundings=roundings, iterations=thread.iterations))
        return outputs

    def evaluate(self, op: Op, inputs: list[Any], *context: Any) -> list[Any]:
        """What an operation gives."""
        return super().op(op, inputs, *context)

    def call(self, node: Call, inputs: list[Any], stream: Any) -> list[Any]:
        """The body in place; where the call is more than that, its derivative is that of the call, and unwatched."""
        if not self.thread.watching or node.rebuild is None:
            with self.thread.inside(node):
                return super().call(node, inputs, stream)
        walker, rebuild = replace(self, numerics=self.numerics.entering(node)), node.rebuild
        if node.ranks:
            return self.on_ranks(node, walker, inputs, stream)

        thread, path = self.thread, (*self.thread.path, node)

        @jax.custom_jvp
        def watched(state: Any, iterations: Any, stream: Any, inner: list[Any]) -> tuple[list[Any], Any]:
            thread.probe.state = state
            with thread.at(path, iterations):  # JAX may come back here when it differentiates
                outputs = walker(node.body, inner, stream)
            return outputs, thread.probe.state

        @watched.defjvp
        def _(primals: Any, tangents: Any) -> tuple[Any, Any]:
            _, state = watched(*primals)
            *_, stream, inner = primals
            rebuilt = lambda *operands: list(rebuild(Walker(walker.numerics), operands, stream))
            outputs, directions = jax.jvp(rebuilt, tuple(inner), tuple(tangents[-1]))
            return (outputs, state), (directions, jax.tree.map(_zero_tangent, state))

        outputs, thread.probe.state = watched(thread.probe.state, thread.iterations, stream, inputs)
        return outputs

    def on_ranks(self, node: Call, walker: WatchedWalker, inputs: list[Any], stream: Any) -> list[Any]:
        """A call whose body runs on every rank of a mesh at once."""
        thread, before = self.thread, self.thread.probe.state
        path, structure = (*thread.path, node), jax.tree.structure(None)

        def evaluate(*args: Any, **kwargs: Any) -> list[Any]:
            nonlocal structure
            axes = tuple(jax.sharding.get_abstract_mesh().manual_axes)
            thread.probe.state = jax.tree.map(lambda x: lax.pcast(x, axes, to="varying"), thread.probe.fresh(path))
            with thread.inside(node):
                outputs = walker(*args, **kwargs)
            leaves, structure = jax.tree.flatten(thread.probe.state)
            return [*outputs, *leaves]

        assert node.rebuild is not None
        results = node.rebuild(evaluate, inputs, stream)
        thread.probe.state = before
        count = len(node.outputs)
        thread.probe.gather(path, thread.iterations, jax.tree.unflatten(structure, results[count:]))
        return results[:count]

    @property
    def thread(self) -> Thread:
        """The control flow, as what it is."""
        assert isinstance(self.control, Thread)
        return self.control


def _zero_tangent(x: Any) -> Any:
    aval = jax.typeof(x).to_tangent_aval()
    return np.zeros(aval.shape, aval.dtype) if aval.dtype == jax.dtypes.float0 else jnp.zeros_like(x)
