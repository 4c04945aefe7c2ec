"""The walker: evaluates a Graph with the chip's arithmetic. It knows nodes and instructions, and no operation by name.

An op whose instructions change no value is bound as JAX would bind it; any other op is handed, instruction by instruction,
to its engines. Loops, branches and calls are rebuilt around interpreted bodies, so every JAX transformation still applies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

import jax.core
import jax.numpy as jnp
from jax import lax

from trn_jax.engines import KINDS
from trn_jax.engines.corrupt import corrupt_arguments, corrupt_results
from trn_jax.engines.kind import Execution, is_narrow_float
from trn_jax.graph.chains import internal_values
from trn_jax.graph.control import JAX_CONTROL, Control
from trn_jax.graph.graph import Branch, Call, Constant, Graph, Node, Op, Scan, Value, While, walk
from trn_jax.graph.held import Held, note_formats, without_idle_roundings
from trn_jax.graph.instruction import Instruction
from trn_jax.graph.numerics import Numerics
from trn_jax.graph.rules import lower
from trn_jax.graph.rules.elementwise import EXACT
from trn_jax.numerics import Stream, format_of, start_stream

Observer = Callable[[Op, Instruction, bool], None]
_observer: ContextVar[Observer | None] = ContextVar("trn_jax_observer", default=None)


@contextmanager
def observe(observer: Observer) -> Iterator[None]:
    """While active, `observer(op, instruction, changes_values)` is called for every instruction the walker meets in tracing."""
    token = _observer.set(observer)
    try:
        yield
    finally:
        _observer.reset(token)


@dataclass(frozen=True)
class Walker:
    """Evaluates graphs under one `Numerics`.

    Where jax.jit is tracing (`staged`), plain calls become jitted functions again: XLA fuses differently across a call than within
    one body, so that calls written in place would change last bits. Elsewhere that would compile them anew every time.
    """

    numerics: Numerics
    staged: bool = False
    control: Control = JAX_CONTROL

    def __call__(self, graph: Graph, operands: Sequence[Any], stream: Stream | None, *, linear: Sequence[Value] = ()) -> list[Any]:
        """Outputs of `graph` at `operands`.

        `stream` gives the random bits; None where nothing is rounded stochastically. Nodes that depend on `linear` inputs (the
        tangents of a custom rule) are evaluated as plain JAX does, because JAX will transpose them.
        """
        environment: dict[Value, Any] = dict(graph.constants) | dict(zip(graph.inputs, operands, strict=True))
        internal = internal_values(graph) if self.numerics.writes == "instruction" else frozenset()
        straight = set(linear)
        held: Held = {}

        def read(value: Value) -> Any:
            return value.value if isinstance(value, Constant) else environment[value]

        for position, node in enumerate(graph.nodes):
            inputs = [read(value) for value in node.inputs]
            walker = self
            if straight and not straight.isdisjoint(node.inputs):
                straight.update(node.outputs)
                walker = replace(self, numerics=PLAIN)
            outputs = walker.node(node, inputs, stream and stream.split(node.index), internal, held)
            environment.update(zip(node.outputs, outputs, strict=True))
            for value in node.inputs:
                if graph.last_use.get(value) == position:
                    environment.pop(value, None)
        return [_literal(value) if isinstance(value, Constant) else environment[value] for value in graph.outputs]

    def node(self, node: Node, inputs: list[Any], stream: Stream | None, internal: frozenset[Value], held: Held, /) -> list[Any]:
        """Outputs of one node, whose own random stream is `stream`; `held` is kept up to date."""
        match node:
            case Op():
                return self.op(node, inputs, stream, internal, held)
            case Call():
                return self.call(node, inputs, stream and stream.resolved())
            case Scan():
                return self.scan(node, inputs, stream and stream.resolved())
            case While():
                return self.while_loop(node, inputs, stream and stream.resolved())
            case Branch():
                return self.branch(node, inputs, stream and stream.resolved())
        raise AssertionError(f"unknown node {type(node).__name__}")

    def op(self, op: Op, inputs: list[Any], stream: Stream | None, internal: frozenset[Value], held: Held, /) -> list[Any]:
        """Outputs of one primitive: bound unchanged, or computed instruction by instruction."""
        rounding_anew = lower(op, self.numerics)
        instructions = rounding_anew if self.numerics.faults else without_idle_roundings(op, rounding_anew, held)
        if not internal.isdisjoint(op.outputs):
            instructions = (*instructions[:-1], replace(instructions[-1], write_formats=("",) * len(op.outputs)))
        else:
            note_formats(op, rounding_anew, held)
        widened = any(_is_wider(x, value) for x, value in zip(inputs, op.inputs, strict=True))
        changes = [self.changes_values(op, instruction) for instruction in instructions]
        observer = _observer.get()
        if observer is not None:
            for instruction, change in zip(instructions, changes, strict=True):
                observer(op, instruction, change)
        keeps_fp32 = not internal.isdisjoint(op.outputs) and any(is_narrow_float(value.aval) for value in op.outputs)
        if not (any(changes) or widened or keeps_fp32):
            return op.bind(*inputs)
        values = self.compute(op, instructions, inputs, stream)
        outputs = [x if value in internal else as_declared(x, value) for x, value in zip(values, op.outputs, strict=True)]
        return self.corrupted(instructions, len(instructions) - 1, outputs, stream)

    def changes_values(self, op: Op, instruction: Instruction) -> bool:
        """Whether an instruction gives other values than JAX binding the op would."""
        numerics = self.numerics
        if any(fault.hits(instruction) for fault in numerics.faults) and any(value.is_float for value in op.outputs):
            return True
        if instruction.kind == "nc_matmul":
            if not op.outputs[0].is_float:
                return False
            if numerics.array_faults:
                return True
            tiled = numerics.fidelity != "fused" and (instruction.layout is not None or instruction.depth_axes is not None)
            if tiled or not numerics.rounds or numerics.psum != "fp32":
                return tiled or numerics.rounds
            pairs = zip(instruction.operand_formats, op.inputs, strict=False)
            return any(fmt and fmt != format_of(value.dtype) for fmt, value in pairs)
        if instruction.integers_in_fp32 or instruction.table is not None:
            return True
        pairs = zip(instruction.write_formats, op.outputs, strict=True)
        return any(fmt and not (op.name in EXACT and fmt == format_of(value.dtype)) for fmt, value in pairs)

    def compute(self, op: Op, instructions: Sequence[Instruction], inputs: list[Any], stream: Stream | None) -> list[Any]:
        """Runs an op's instructions, each on the values of the one before."""
        execution = Execution(
            rounding=self.numerics.rounding,
            overflow=self.numerics.overflow,
            fidelity=self.numerics.fidelity,
            rows=self.numerics.rows,
            cols=self.numerics.cols,
            psum=self.numerics.psum if self.numerics.rounds else "fp32",
            array_faults=self.numerics.array_faults,
        )
        values, function = inputs, in_fp32(op)
        for position, instruction in enumerate(instructions):
            compute = KINDS[instruction.engine][instruction.kind].compute
            if compute is not None:
                inner = stream and stream.split(position)
                values, function = compute(instruction, function, values, execution, inner), _same
                if position + 1 < len(instructions):
                    values = self.corrupted(instructions, position, values, stream)
        return list(values) if instructions else op.bind(*(as_declared(x, v) for x, v in zip(inputs, op.inputs, strict=True)))

    def corrupted(self, instructions: Sequence[Instruction], position: int, values: list[Any], stream: Stream | None) -> list[Any]:
        """What one of an op's instructions gave, as random faults leave it."""
        if not self.numerics.faults or not instructions:
            return values
        return corrupt_results(self.numerics.faults, instructions[position], values, stream and stream.split(position))

    def call(self, node: Call, inputs: list[Any], stream: Stream | None) -> list[Any]:
        """The call rebuilt around an interpreted body."""
        walker = replace(self, numerics=self.numerics.entering(node))
        if node.rebuild is not None:
            return node.rebuild(walker, inputs, stream)
        if not self.staged or _observer.get() is not None:
            return walker(node.body, inputs, stream)
        if walker not in node.body.jitted:
            function = lambda stream, *operands: walker(node.body, operands, stream)
            function.__name__ = str(node.params.get("name", node.name))
            node.body.jitted[walker] = jax.jit(function)
        return node.body.jitted[walker](stream, *inputs)

    def branch(self, node: Branch, inputs: list[Any], stream: Stream | None) -> list[Any]:
        """lax.switch or lax.platform_dependent with interpreted branches."""
        branches = [lambda *args, body=body: self(body, args[1:], args[0]) for body in node.branches]
        return self.control.branch(node, inputs[0], branches, stream, *inputs[1:])

    def scan(self, node: Scan, inputs: list[Any], stream: Stream | None) -> list[Any]:
        """lax.scan with an interpreted body; every iteration has its own random stream."""
        split, stop = node.num_consts, node.num_consts + node.num_carry
        consts, carry, slices = inputs[:split], inputs[split:stop], inputs[stop:]
        iterations = () if stream is None else jnp.arange(node.length, dtype=jnp.uint32)

        def body(state: list[Any], step: Any) -> tuple[list[Any], list[Any]]:
            iteration, xs = step
            inner = stream and stream.fold_in(iteration)
            outputs = self(node.body, [*consts, *state, *xs], inner)
            return outputs[: node.num_carry], outputs[node.num_carry :]

        how = {"length": node.length, "reverse": node.reverse, "unroll": node.unroll}
        final, stacked = self.control.scan(node, body, carry, (iterations, slices), **how)
        return [*final, *stacked]

    def while_loop(self, node: While, inputs: list[Any], stream: Stream | None) -> list[Any]:
        """lax.while_loop with interpreted condition and body."""
        split, stop = node.condition_num_consts, node.condition_num_consts + node.body_num_consts
        condition_consts, body_consts, carry = inputs[:split], inputs[split:stop], inputs[stop:]
        counter = None if stream is None else jnp.zeros((), jnp.uint32)

        lanes = len(node.condition.outputs[0].shape)  # a loop that vmap batched ends in each lane by itself

        def go_on(state: Any) -> Any:
            iteration, values = state
            inner = stream and stream.fold_in(iteration).split(0)
            return self(node.condition, [*condition_consts, *values], inner)[0]

        def condition(state: Any) -> Any:
            return jnp.any(go_on(state)) if lanes else go_on(state)

        def body(state: Any) -> Any:
            iteration, before = state
            inner = stream and stream.fold_in(iteration).split(1)
            values = self(node.body, [*body_consts, *before], inner)
            if lanes:
                runs = go_on(state)
                values = [lax.select(_as_shape(runs, x.shape), x, old) for x, old in zip(values, before, strict=True)]
            return (None if iteration is None else iteration + jnp.uint32(1), values)

        return list(self.control.while_loop(node, condition, body, (counter, carry))[1])


def program_stream(seed: Any, graph: Graph) -> Stream:
    """The random stream of one run of a graph: of a uint32 seed, with words enough for its largest array."""
    values = (value for node in walk(graph) for value in (*node.inputs, *node.outputs))
    return start_stream(seed, max((value.size for value in values if value.is_float), default=0))


def run_program(walker: Walker, graph: Graph, arguments: Sequence[Any], seed: Any) -> list[Any]:
    """Outputs of a whole program; `seed` is a uint32 scalar, or None where nothing is left to chance."""
    stream = None if seed is None else program_stream(seed, graph)
    return walker(graph, corrupt_arguments(walker.numerics.faults, arguments, stream), stream)


PLAIN = Numerics(rounds=False, fidelity="fused")


def is_staged() -> bool:
    """Whether jax.jit, scan or another transformation is making a jaxpr of what runs now, so that no operation is executed."""
    return isinstance(jnp.zeros(()), jax.core.Tracer)


def _as_shape(flags: Any, shape: tuple[int, ...]) -> Any:
    """Flags of the leading axes, repeated along the others."""
    return lax.broadcast_in_dim(flags, shape, range(flags.ndim))


def _literal(constant: Constant) -> Any:
    """A literal as the array that JAX returns for it."""
    return jnp.asarray(constant.value, None if constant.aval.weak_type else constant.dtype)


def _same(*values: Any) -> list[Any]:
    return list(values)


def _is_wider(x: Any, value: Value) -> bool:
    """Whether a chain kept `x` in fp32 although its value is declared narrower."""
    return value.is_float and getattr(x, "dtype", value.dtype) != value.dtype


def as_declared(x: Any, value: Value) -> Any:
    """A float in the dtype that the program says it has."""
    return x.astype(value.dtype) if value.is_float and x.dtype != value.dtype else x


def in_fp32(op: Op) -> Callable[..., list[Any]]:
    """The op's mathematics on fp32 operands, with fp32 results: its dtype parameters are widened."""
    changed: dict[str, Any] = {}
    narrow_result = any(is_narrow_float(value.aval) for value in op.outputs)
    if "preferred_element_type" in op.params:
        changed["preferred_element_type"] = jnp.float32
        if "precision" in op.params:
            changed["precision"] = lax.Precision.HIGHEST
    for name in ("new_dtype", "dtype"):
        if name in op.params and narrow_result:
            changed[name] = jnp.dtype(jnp.float32)

    def function(*operands: Any) -> list[Any]:
        return op.bind(*(jnp.asarray(x, jnp.float32) if is_narrow_float(x) else x for x in operands), **changed)

    return function


def evaluate_plain(graph: Graph, operands: Sequence[Any]) -> list[Any]:
    """The Graph as plain JAX evaluates it: the proof that it lost nothing."""
    return Walker(PLAIN, is_staged())(graph, operands, None)


def constant_seed_in_training(seed: Any, graph: Graph, operands: Sequence[Any]) -> bool:
    """Whether a Python int seeds a jitted function that gives back narrow arrays like those it took: an update loop."""
    traced = any(isinstance(x, jax.core.Tracer) for x in operands)
    narrow_inputs = {(v.shape, v.dtype) for v in graph.inputs if v.is_float and v.shape and v.dtype.itemsize < 4}
    return isinstance(seed, int) and traced and any((v.shape, v.dtype) in narrow_inputs for v in graph.outputs)
