"""Values of a recorded kernel: every instruction by its engine's own `compute`, tile by tile; loops are lax.fori_loops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from trn_jax.engines import KINDS
from trn_jax.engines.kind import Execution
from trn_jax.kernels.record import Allocate, Item, Loop, Operation, Recording, walk
from trn_jax.kernels.tile import Buffer, Tile

# The kernel cuts K into tiles itself, so one product is one pass through the array.
_EXECUTION = Execution(fidelity="fused")

State = dict[Buffer, Any]
Indices = Mapping[Loop, Any]


def evaluate(recording: Recording, arrays: Sequence[Any]) -> Any:
    """Results of a kernel for its array arguments; a pure function that JAX can transform."""
    state: State = dict(zip(recording.inputs, arrays, strict=True))
    _items(recording.items, state, {})
    return jax.tree.map(lambda tile: _read(tile, state, {}), recording.outputs, is_leaf=lambda x: isinstance(x, Tile))


def _items(items: Sequence[Item], state: State, indices: Indices) -> None:
    for item in items:
        match item:
            case Allocate(buffer):
                state[buffer] = jnp.zeros(buffer.shape, buffer.dtype)
            case Operation():
                _operation(item, state, indices)
            case Loop():
                _loop(item, state, indices)


def _operation(operation: Operation, state: State, indices: Indices) -> None:
    """Reads, computes, writes."""
    operands = [_read(tile, state, indices) for tile in operation.reads]
    operands += [parameter.at(indices) for parameter in operation.parameters]
    instruction = operation.instruction
    compute = KINDS[instruction.engine][instruction.kind].compute
    results = operation.function(*operands) if compute is None else compute(instruction, operation.function, operands, _EXECUTION, None)
    for tile, result in zip(operation.writes, results, strict=True):
        if operation.accumulates:
            result = _read(tile, state, indices) + result
        _write(tile, result.astype(tile.dtype), state, indices)


def _loop(loop: Loop, state: State, indices: Indices) -> None:
    """Carries what the body changes and did not allocate."""
    inside = {item.buffer for item in walk(loop.items) if isinstance(item, Allocate)}
    written = [tile.buffer.storage for item in walk(loop.items) if isinstance(item, Operation) for tile in item.writes]
    carried = [buffer for buffer in dict.fromkeys(written) if buffer not in inside]

    def body(index: Any, values: tuple[Any, ...]) -> tuple[Any, ...]:
        inner = state | dict(zip(carried, values, strict=True))
        _items(loop.items, inner, {**indices, loop: index})
        return tuple(inner[buffer] for buffer in carried)

    before = tuple(state[buffer] for buffer in carried)
    after = body(0, before) if loop.trips == 1 else lax.fori_loop(0, loop.trips, body, before)
    state.update(zip(carried, after, strict=True))


def _read(tile: Tile, state: State, indices: Indices) -> Any:
    """The values of a tile."""
    whole = state[tile.buffer.storage].reshape(tile.buffer.shape)
    if tile.sizes == tile.buffer.shape:
        return whole.reshape(tile.shape)
    starts = [start.at(indices) for start in tile.starts]
    if all(isinstance(start, int) for start in starts):
        part = lax.slice(whole, starts, [start + size for start, size in zip(starts, tile.sizes, strict=True)])
    else:
        part = lax.dynamic_slice(whole, starts, tile.sizes)
    return part.reshape(tile.shape)


def _write(tile: Tile, value: Any, state: State, indices: Indices) -> None:
    """Replaces the values of a tile."""
    storage = tile.buffer.storage
    value = value.reshape(tile.sizes)
    if tile.sizes != tile.buffer.shape:
        whole = state[storage].reshape(tile.buffer.shape)
        value = lax.dynamic_update_slice(whole, value, [start.at(indices) for start in tile.starts])
    state[storage] = value.reshape(storage.shape)
