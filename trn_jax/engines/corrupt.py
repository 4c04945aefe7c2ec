"""Random corruption of values: bit flips in memories, wrong results of engines. Where it hits is a hash of stream and element."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from trn_jax.faults import BitFlip, Fault
from trn_jax.graph.instruction import Instruction
from trn_jax.numerics import hash_bits, mix

_UINTS = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}
_STREAM = 1 << 20  # faults have streams of their own, behind those of rounding


def corrupt_results(faults: Sequence[Fault], instruction: Instruction, values: Sequence[Any], stream: Any) -> list[Any]:
    """What an instruction gives, as the faults leave it."""
    for number, fault in enumerate(faults):
        if fault.hits(instruction):
            values = [_corrupt(fault, x, stream.split(_STREAM + number, position)) for position, x in enumerate(values)]
    return list(values)


def corrupt_arguments(faults: Sequence[Fault], arguments: Sequence[Any], stream: Any) -> list[Any]:
    """The arguments of a program as they are read from HBM."""
    for number, fault in enumerate(faults):
        if isinstance(fault, BitFlip) and fault.memory == "hbm":
            arguments = [_corrupt(fault, x, stream.split(_STREAM + number, position)) for position, x in enumerate(arguments)]
    return list(arguments)


def _corrupt(fault: Any, x: Any, stream: Any) -> Any:
    """An array with some elements changed; integers, complex and 64-bit values are left alone.

    Gradient: straight-through, the identity.
    """
    dtype = jnp.result_type(x)
    if not jnp.issubdtype(dtype, jnp.floating) or dtype.itemsize not in _UINTS:
        return x
    width = 8 * dtype.itemsize
    if isinstance(fault, BitFlip):
        bits = [bit for bit in (range(width) if fault.bits is None else fault.bits) if bit < width]
        masks = np.array([1 << bit for bit in bits], np.uint32)
        choose: Callable[[Array], Array] = lambda word: jnp.asarray(masks)[word % np.uint32(len(masks))]
        if not bits:
            return x
    else:
        choose = lambda word: jnp.maximum(word >> np.uint32(32 - width), 1)

    @jax.custom_jvp
    def corrupted(x: Array, seed: Array) -> Array:
        hit = _happens(fault.rate, seed, x.shape)
        word = lax.bitcast_convert_type(x, _UINTS[dtype.itemsize])
        mask = jnp.where(hit, choose(hash_bits(mix(seed, 2), x.shape)), 0).astype(word.dtype)
        return lax.bitcast_convert_type(word ^ mask, x.dtype)

    corrupted.defjvp(lambda primals, tangents: (corrupted(*primals), tangents[0]))
    return corrupted(jnp.asarray(x), stream.key())


def _happens(rate: float, seed: Array, shape: Sequence[int]) -> Array:
    """Which elements are hit: a 64-bit random number below rate 2^64, so that rates far below 2^-32 are kept."""
    if rate >= 1:
        return jnp.ones(shape, bool)
    threshold = int(rate * 2.0**64)
    high, low = np.uint32(threshold >> 32), np.uint32(threshold & 0xFFFF_FFFF)
    first = hash_bits(mix(seed, 0), shape)
    return (first < high) | ((first == high) & (hash_bits(mix(seed, 1), shape) < low))
