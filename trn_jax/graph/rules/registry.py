"""The registry of rules and the one place that applies them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from trn_jax.errors import FormatError, NoRuleError
from trn_jax.graph.graph import Op, Value
from trn_jax.graph.instruction import Instruction, Work
from trn_jax.graph.numerics import Numerics

Rule = Callable[[Op, Numerics], Instruction | Sequence[Instruction]]

RULES: dict[str, Rule] = {}
VIEWS: set[str] = set()  # primitives that only rename or re-index their first operand: no instruction, no cost


def register_rule(*names: str) -> Callable[[Rule], Rule]:
    """Registers `rule(op, numerics) -> Instruction or sequence of them` for the named primitives; a decorator.

    `op` has `.inputs` and `.outputs` (values with `.shape`, `.dtype`, `.size`), `.params`, `.source` and `.scope`. The last
    instruction writes the op's outputs: give it one write format per output (`numerics.write_format(dtype)`). An empty
    sequence makes the op a view of its first input, which costs nothing. A later registration replaces an earlier one.

        @trn_jax.register_rule("my_primitive")
        def rule(op, numerics):
            return trn_jax.Instruction(engine="vector", kind="tensor_copy", write_formats=(numerics.write_format(op.outputs[0].dtype),),
                                       work=trn_jax.Work(elements=op.outputs[0].size))
    """

    if not names or not all(isinstance(name, str) for name in names):
        raise TypeError(f"register_rule takes names of primitives, but got {names!r}. Write @trn_jax.register_rule('my_primitive').")

    def register(rule: Rule) -> Rule:
        if not callable(rule):
            raise TypeError(f"The rule for {', '.join(names)} is {rule!r}. Give a function rule(op, numerics) that returns Instructions.")
        for name in names:
            RULES[name] = rule
        return rule

    return register


def register_views(*names: str) -> None:
    """Declares primitives that change no data."""
    VIEWS.update(names)
    register_rule(*names)(lambda op, numerics: ())


def lower(op: Op, numerics: Numerics) -> tuple[Instruction, ...]:
    """The instructions of one op; empty for a view.

    Raises:
        NoRuleError: If the primitive has no rule.
        FormatError: If the chip rounds and a value is a 64-bit float.
    """
    rule = RULES.get(op.name)
    if rule is None:
        scope = f" in {op.scope}" if op.scope else ""
        raise NoRuleError(
            f"No rule for primitive {op.name!r} ({op.source}{scope}), {', '.join(map(repr, op.inputs))} -> "
            f"{', '.join(map(repr, op.outputs))}. Register one with trn_jax.register_rule({op.name!r})."
        )
    if numerics.rounds:
        _refuse_64_bit(op)
    instructions = rule(op, numerics)
    return (instructions,) if isinstance(instructions, Instruction) else tuple(instructions)


_TOO_WIDE = (np.dtype(np.float64), np.dtype(np.complex128))


def _refuse_64_bit(op: Op) -> None:
    """No engine has 64-bit floats, and computing in them would hide what the chip's fp32 does."""
    for value in (*op.outputs, *op.inputs):
        if value.dtype in _TOO_WIDE:
            raise FormatError(
                f"{op.name!r} at {op.source} has a {value!r} value, but a NeuronCore has no 64-bit floats. Make it float32 "
                "(dtype=jnp.float32, or .astype), or trace without jax.enable_x64. emulate on the ideal chip computes in 64 bits."
            )


def writes(op: Op, numerics: Numerics) -> tuple[str, ...]:
    """The format each output of an op is rounded to when written."""
    return tuple(numerics.write_format(value.dtype) for value in op.outputs)


def narrow(values: Sequence[Value]) -> bool:
    """Whether all array values are at most 16 bits wide: the Vector Engine's fast modes."""
    return all(value.size_bytes <= 2 * value.size for value in values if value.size > 1)


def rows(value: Value) -> int:
    """Partition rows of a value: everything but its innermost dimension."""
    return max(1, value.size // max(1, value.shape[-1] if value.shape else 1))


def streams(value: Value, full: int, result: Value | None) -> bool:
    """Whether an instruction reads a new element of this operand in every cycle, and not one scalar, or one per row, again."""
    if value.size <= 1:
        return False
    along_rows = result is not None and bool(result.shape) and value.shape[-1:] == result.shape[-1:] and value.shape[-1] > 1
    return value.size == full or along_rows


# What the engines do to integers by way of fp32. Bitwise operations, shifts and copies leave them as they are (documented: NKI
# reference, supported ALU operations); division, remainder and powers are kept exact, as their rounding is not documented.
IN_FP32 = frozenset(
    "add add_any sub mul max min eq ne lt le gt ge reduce_sum reduce_max reduce_min reduce_prod cumsum cumprod cummax cummin".split()
)
_WIDE_INTEGERS = (np.dtype(np.int32), np.dtype(np.uint32))


def integers_in_fp32(op: Op, numerics: Numerics) -> bool:
    """Whether an op computes 32-bit integers through fp32."""
    wanted = numerics.rounds and numerics.integer == "fp32" and op.name in IN_FP32
    return wanted and all(value.dtype in _WIDE_INTEGERS for value in op.inputs)


def streaming(op: Op, numerics: Numerics, engine: str, kind: str, function: str = "", elements: int | None = None) -> Instruction:
    """An instruction that streams its operands once; by default as many elements as its largest operand or output has."""
    values = (*op.inputs, *op.outputs)
    full = max((value.size for value in values), default=0)
    result = max(op.outputs, key=lambda value: value.size, default=None)
    streamed = max(1, sum(streams(value, full, result) for value in op.inputs))
    return Instruction(
        engine=engine,
        kind=kind,
        function=function or op.name,
        work=Work(elements=full if elements is None else elements, operands=streamed, rows=rows(result) if result else 1),
        write_formats=writes(op, numerics),
        narrow=narrow(values),
        integers_in_fp32=integers_in_fp32(op, numerics),
    )
