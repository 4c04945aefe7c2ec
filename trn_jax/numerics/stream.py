"""Streams of random bits for the hundreds of roundings of one program, cheap to run and to compile.

    bits[e] of rounding i = words[e] * key_i,        key_i = <coefficients_i, state> + 1 if even,        modulo 2^32

`words` are hashed once per program from the seed and the element's index; `coefficients_i` are constants from a hash of the
rounding's place in the program (its path); `state` is four words of the seed, mixed with the loop index inside a loop. So bits
are a function of seed, place, loop indices and element. Two roundings see the same words through independent odd multipliers.

Hashing anew in every rounding would be as good, but the compiler would see hundreds of different pieces of code: XLA's CPU
backend compiles equal kernels once, and these differ in their operands only. That is also why a key is a sum over an array of
constants: XLA writes scalar constants into the code. Basis: derived (how the hardware draws its bits is not published).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, UInt32

from trn_jax.numerics.hash import hash_bits, mix, stream_bits

_STATE_WORDS = 4
_CHUNK = 2**14  # words hashed per iteration: fits the first-level cache, and leaves the loop few iterations
_MOST_WORDS = 2**22  # 16 MiB; longer arrays read the words several times, every time with another multiplier


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Stream:
    """A source of random bits at one place of a program; a pytree that may be passed through any JAX transformation.

    Attributes:
        state: uint32[4].
        words: uint32[n] shared by all streams of a program, or None: then every use hashes its own.
        path: Numbers folded in since `state` was made.
    """

    state: UInt32[Array, " 4"]
    words: UInt32[Array, " n"] | None = None
    path: tuple[int, ...] = field(default=(), metadata={"static": True})

    def split(self, *numbers: int) -> Stream:
        """The stream of a place inside this one. Free: numbers known in tracing cost nothing until bits are drawn."""
        return Stream(self.state, self.words, (*self.path, *numbers))

    def fold_in(self, word: Any) -> Stream:
        """The stream of one iteration, whose number may be traced."""
        return Stream(mix(self.resolved().state, word), self.words)

    def resolved(self) -> Stream:
        """The same stream without a path, so that equal programs at different places are one program to JAX's caches."""
        if not self.path:
            return self
        return Stream(_product(_matrix(self.path), self.state), self.words)

    def key(self) -> UInt32[Array, ""]:
        """One odd word."""
        return _product(_row(self.path), self.state) | np.uint32(1)


def draw(source: Stream | Array) -> tuple[Array, ...]:
    """What `random_bits` takes after the shape: of a stream its key and its words if it has any, or a uint32 key as it is."""
    if not isinstance(source, Stream):
        return (source,)
    return (source.key(),) if source.words is None else (source.key(), source.words)


def start_stream(seed: Any, largest: int = 0) -> Stream:
    """The stream of a whole program.

    Args:
        seed: uint32 scalar, traced or not.
        largest: Elements of the largest array that will be rounded; 0 makes no shared words.
    """
    # Loops, because XLA copies cheap vector code into every reader, and these have hundreds.
    state = lax.map(lambda index: mix(seed, index), jnp.arange(_STATE_WORDS, dtype=jnp.uint32))
    if not largest:
        return Stream(state)
    width = min(_CHUNK, -(-largest // 2))
    rows = max(2, -(-min(largest, _MOST_WORDS) // width))  # a loop of one iteration would be unrolled
    words = lax.map(lambda row: hash_bits(mix(seed, _STATE_WORDS, row), (width,)), jnp.arange(rows, dtype=jnp.uint32))
    return Stream(state, words.reshape(-1))


def random_bits(shape: Sequence[int], key: UInt32[Array, ""], words: UInt32[Array, " n"] | None = None) -> UInt32[Array, "*shape"]:
    """Random words of which the upper 24 bits may be used; from the key alone, or from shared words seen through it."""
    if words is None:
        return stream_bits(key, shape)
    count, width = math.prod(shape), words.shape[0]
    if count <= width:
        return words[:count].reshape(shape) * key
    rows = -(-count // width)
    keys = key * (mix(_STATE_WORDS, jnp.arange(rows, dtype=jnp.uint32)) | np.uint32(1))
    return (words[None, :] * keys[:, None]).reshape(-1)[:count].reshape(shape)


def _product(coefficients: np.ndarray, state: Array) -> Array:
    """Matrix or row times the state, modulo 2^32; not a dot, which XLA's CPU backend would unroll into a kernel of its own."""
    rows = jnp.asarray(coefficients)
    spread = lax.broadcast_in_dim(state, rows.shape, (rows.ndim - 1,))
    return lax.reduce(rows * spread, np.uint32(0), lax.add, (rows.ndim - 1,))


def _digest(path: tuple[int, ...], words: int) -> np.ndarray:
    return np.frombuffer(hashlib.blake2b(repr(path).encode(), digest_size=4 * words).digest(), np.dtype("<u4")).astype(np.uint32)


@lru_cache(maxsize=2**16)
def _row(path: tuple[int, ...]) -> np.ndarray:
    return _digest(path, _STATE_WORDS)


@lru_cache(maxsize=2**14)
def _matrix(path: tuple[int, ...]) -> np.ndarray:
    """Invertible modulo 2^32, so that no depth of calls wears the state out: lower triangular with ones in the lowest bits."""
    matrix = _digest(path, _STATE_WORDS**2).reshape(_STATE_WORDS, _STATE_WORDS)
    lowest = np.tril(matrix & 1, -1) + np.eye(_STATE_WORDS, dtype=np.uint32)
    return matrix & ~np.uint32(1) | lowest.astype(np.uint32)
