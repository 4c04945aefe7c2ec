"""The two halves of a ring all-reduce, as neighbours pass chunks around, for values already cut into one chunk per rank.

Rank r ends as the owner of chunk r. With d = +1 or -1 the direction and s = 1 .. n-1 the step, a rank sends

    reduce-scatter, sums travel     the partial sum of chunk r - d s to rank r + d
    reduce-scatter, parts travel    its part of chunk r + d (n - s) straight to that rank, which adds
    all-gather                      the finished chunk r - d (s - 1) to rank r + d

In both kinds of reduce-scatter chunk c is added up in the order of ranks c + d, c + 2d, .., c.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from trn_jax.network.codec import Codec, sub_seed
from trn_jax.network.permutation import ring_permutation
from trn_jax.network.rank_types import varying

_SEND, _ADD, _GATHER = range(3)  # separate the random streams of the ring's roundings


@dataclass(frozen=True, slots=True)
class Ring:
    """One direction around the ranks of a bound mesh axis, at least two."""

    axis_name: Any
    ranks: int
    direction: int

    def shift(self, word: Array, places: int = 1) -> Array:
        """Every rank receives what the rank `places` before it, in this direction, sent."""
        return lax.ppermute(word, self.axis_name, ring_permutation(self.ranks, self.direction * places))

    def chunk(self, chunks_RC: Array, places: Any) -> Array:
        """The local part of the chunk that the rank `places` further on owns."""
        owner = (lax.axis_index(self.axis_name) + self.direction * places) % self.ranks
        return lax.dynamic_index_in_dim(chunks_RC, owner, axis=0, keepdims=False)

    def seed(self, seed: Any, purpose: int, step: Any) -> Any:
        """A seed for one rounding on this rank, so that ranks, steps and directions (1 or 2, modulo 3) round independently."""
        return sub_seed(seed, purpose, step, self.direction % 3, lax.axis_index(self.axis_name)) if seed is not None else None


def reduce_scatter(chunks_RC: Array, ring: Ring, codec: Codec, seed: Any) -> Array:
    """The sum over ranks of the chunk this rank owns, in the codec's reduce format (shape [C])."""
    chunks_RC = codec.load(chunks_RC)
    return (_sums_travel if codec.wire_holds_sums else _parts_travel)(chunks_RC, ring, codec, seed)


def _sums_travel(chunks_RC: Array, ring: Ring, codec: Codec, seed: Any) -> Array:
    def hop(total_C: Array, step: Array) -> tuple[Array, None]:
        received_C = codec.receive(ring.shift(codec.send(total_C, ring.seed(seed, _SEND, step))))
        return codec.add(received_C, ring.chunk(chunks_RC, -1 - step), ring.seed(seed, _ADD, step)), None

    return lax.scan(hop, ring.chunk(chunks_RC, -1), jnp.arange(1, ring.ranks))[0]


def _parts_travel(chunks_RC: Array, ring: Ring, codec: Codec, seed: Any) -> Array:
    received = []
    for step in range(1, ring.ranks):
        places = ring.ranks - step
        part_C = codec.send(ring.chunk(chunks_RC, places), ring.seed(seed, _SEND, step))
        received.append(codec.receive(ring.shift(part_C, places)))

    def add(total_C: Array, part: tuple[Array, Array]) -> tuple[Array, None]:
        return codec.add(total_C, part[0], ring.seed(seed, _ADD, part[1])), None

    rest_RC = jnp.stack([*received[1:], ring.chunk(chunks_RC, 0)])
    return lax.scan(add, received[0], (rest_RC, jnp.arange(1, ring.ranks)))[0]


def all_gather(own_C: Array, ring: Ring, codec: Codec, seed: Any) -> Array:
    """The chunks of all ranks, each rounded once by its owner for the wire: [R, C], the same bits on every rank."""

    def hop(word_C: Array, _: None) -> tuple[Array, Array]:
        word_C = ring.shift(word_C)
        return word_C, word_C

    own_C = varying(codec.send(own_C, ring.seed(seed, _GATHER, 0)), ring.axis_name)
    others_RC = lax.scan(hop, own_C, length=ring.ranks - 1)[1]
    words_RC = jnp.concatenate([own_C[None], others_RC])  # words_RC[k] is chunk r - d k
    came_from_R = ring.direction * (lax.axis_index(ring.axis_name) - jnp.arange(ring.ranks))
    return codec.receive(words_RC.at[came_from_R % ring.ranks].get(mode="promise_in_bounds"))
