"""Refs: what a value of a Graph is in the Stream, a piece of data as some view shows it."""

from __future__ import annotations

from typing import NamedTuple

from trn_jax.graph.graph import Op, Value

NOTHING = -1  # number of data that needs no memory: literals and what is broadcast from them


class Ref(NamedTuple):
    """A piece of data as some view shows it.

    Attributes:
        datum: Its number.
        constant_rows: Every row of the view holds one number.
        copies: How many times a broadcast repeats it.
        equal_rows: All rows of the view are the same.
    """

    datum: int
    constant_rows: bool = False
    copies: float = 1.0
    equal_rows: bool = False


LITERAL = Ref(NOTHING, constant_rows=True)


def broadcast(op: Op, ref: Ref) -> Ref:
    """What the result of a broadcast_in_dim is."""
    (source, *_), (result, *_) = op.inputs, op.outputs
    last = len(result.shape) - 1
    kept = last in op.params["broadcast_dimensions"] and source.shape and source.shape[-1] == result.shape[-1]
    return Ref(
        ref.datum,
        constant_rows=bool(source.size == 1 or ref.constant_rows or not kept),
        copies=ref.copies * result.size / max(1, source.size),
        equal_rows=bool(kept) and (source.size == source.shape[-1] < result.size or ref.equal_rows),
    )


def has_equal_rows(ref: Ref, value: Value, largest: Value) -> bool:
    """Whether an operand is one row for all rows of the largest."""
    row = value.shape[-1] if value.shape else 1
    return ref.equal_rows or 1 < row == value.size < largest.size


def contiguous_elements(source: Value, result: Value) -> float:
    """Elements of a slice that lie side by side in what it was cut from."""
    if len(source.shape) != len(result.shape):
        return float(result.size)
    run = 1.0
    for whole, part in zip(reversed(source.shape), reversed(result.shape), strict=True):
        run *= part
        if part < whole:
            break
    return run


def undoes(transpose: Op, earlier: Op) -> bool:
    """Whether a transpose gives back what an earlier one had, as JAX's gradients of transposes do."""
    permutation, before = transpose.params["permutation"], earlier.params["permutation"]
    same = transpose.inputs[0].shape == earlier.outputs[0].shape  # else a reshape lies between them
    return same and [before[axis] for axis in permutation] == list(range(len(before)))
