"""Counter-based random bits from a cheap integer hash of a seed and the element's index.

    t = index * A + k0(seed);  t ^= t >> 15;  t ^= k1(seed);  bits = t * B;  bits ^= bits >> 16

Two keys enter before and after the first scrambling, so that the streams of two seeds are never shifted copies of each
other (with index ^ seed or index + seed alone they would be).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, UInt32

_A, _B = 0x21F0AAAD, 0xD35A2D97  # multipliers of a 32-bit finaliser with low avalanche bias (C. Wellons, hash-prospector)
_GOLDEN = 0x9E3779B9  # 2^32 / golden ratio

Seed = Any  # a Python int or a uint32 scalar, traced or not


def _scramble(word: Array) -> Array:
    """A bijection of 32-bit words in which every input bit flips every output bit with probability near one half."""
    word = (word ^ (word >> 16)) * np.uint32(_A)
    word = (word ^ (word >> 15)) * np.uint32(_B)
    return word ^ (word >> 15)


def as_word(value: Any) -> Array:
    """An integer modulo 2^32; Python integers may be of any size."""
    return jnp.asarray(np.uint32(value % 2**32)) if isinstance(value, int) else jnp.asarray(value).astype(jnp.uint32)


def mix(seed: Seed, *words: Any) -> UInt32[Array, "*words"]:
    """Derives a sub-seed from a seed and integers (an instruction's number, loop indices, a step).

    `mix(seed, a, b)` is `mix(mix(seed, a), b)`. Order matters; with the rest fixed, different words give different results.
    Integers are taken modulo 2^32; traced ones are welcome, and arrays give an array of sub-seeds. No gradient.
    """
    state = as_word(seed)
    for word in words:
        state = _absorb(state, as_word(word))
    return state


@jax.jit
def _absorb(state: Array, word: Array) -> Array:
    """One step of `mix`: a bijection in either argument."""
    return _scramble(_scramble(state ^ np.uint32(_GOLDEN)) + word)


def hash_bits(seed: Seed, shape: Sequence[int]) -> UInt32[Array, "*shape"]:
    """32 random bits per element, a function of the seed and the element's row-major index (modulo 2^32) only."""
    bits = high_bits(seed, shape)
    return bits ^ (bits >> 16)


def high_bits(seed: Seed, shape: Sequence[int]) -> UInt32[Array, "*shape"]:
    """Like `hash_bits`, two operations cheaper: only the upper 24 bits are good enough to be used."""
    return stream_bits(stream_key(seed), shape)


def stream_key(seed: Seed) -> UInt32[Array, ""]:
    """The key of a seed's stream of random bits; what `mix` returns may serve as a key as it is."""
    return _scramble(as_word(seed) + np.uint32(_GOLDEN))


def stream_bits(key: UInt32[Array, ""], shape: Sequence[int]) -> UInt32[Array, "*shape"]:
    """The bits of `high_bits` from a key that is scrambled already."""
    word = _scaled_index(shape) + key
    word = word ^ (word >> 15)
    return (word ^ (key * np.uint32(_GOLDEN))) * np.uint32(_B)


def _scaled_index(shape: Sequence[int]) -> Array:
    """Row-major element index times A, modulo 2^32: a sum over axes, of which only the last changes from element to element."""
    total, stride = jnp.zeros(shape, jnp.uint32), _A
    for axis in reversed(range(len(shape))):
        total = total + lax.broadcasted_iota(jnp.uint32, tuple(shape), axis) * np.uint32(stride % 2**32)
        stride *= shape[axis]
    return total
