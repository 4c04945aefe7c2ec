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

    def chunk(self, chunks_NC: Array, places: int) -> Array:
        """The local part of the chunk that the rank `places` further on owns."""
        owner = (lax.axis_index(self.axis_name) + self.direction * places) % self.ranks
        return lax.dynamic_index_in_dim(chunks_NC, owner, axis=0, keepdims=False)

    def seed(self, seed: Any, purpose: int, step: int) -> Any:
        """A seed for one rounding on this rank, so that ranks and steps round independently."""
        return sub_seed(seed, purpose, step, self.direction % 3, lax.axis_index(self.axis_name)) if seed is not None else None


def reduce_scatter(chunks_NC: Array, ring: Ring, codec: Codec, seed: Any) -> Array:
    """The sum over ranks of the chunk this rank owns, in the codec's reduce format (shape [C])."""
    chunks_NC = codec.load(chunks_NC)
    return (_sums_travel if codec.wire_holds_sums else _parts_travel)(chunks_NC, ring, codec, seed)


def _sums_travel(chunks_NC: Array, ring: Ring, codec: Codec, seed: Any) -> Array:
    total_C = ring.chunk(chunks_NC, -1)
    for step in range(1, ring.ranks):
        received_C = codec.receive(ring.shift(codec.send(total_C, ring.seed(seed, _SEND, step))))
        total_C = codec.add(received_C, ring.chunk(chunks_NC, -1 - step), ring.seed(seed, _ADD, step))
    return total_C


def _parts_travel(chunks_NC: Array, ring: Ring, codec: Codec, seed: Any) -> Array:
    received = []
    for step in range(1, ring.ranks):
        places = ring.ranks - step
        part_C = codec.send(ring.chunk(chunks_NC, places), ring.seed(seed, _SEND, step))
        received.append(codec.receive(ring.shift(part_C, places)))
    total_C = received[0]
    for step, part_C in enumerate([*received[1:], ring.chunk(chunks_NC, 0)]):
        total_C = codec.add(total_C, part_C, ring.seed(seed, _ADD, step))
    return total_C


def all_gather(own_C: Array, ring: Ring, codec: Codec, seed: Any) -> Array:
    """The chunks of all ranks, each rounded once by its owner for the wire: [N, C], the same bits on every rank."""
    words = [codec.send(own_C, ring.seed(seed, _GATHER, 0))]
    for _ in range(1, ring.ranks):
        words.append(ring.shift(words[-1]))
    came_from = ring.direction * (lax.axis_index(ring.axis_name) - jnp.arange(ring.ranks))  # words[k] is chunk r - d k
    return codec.receive(jnp.stack(words).at[came_from % ring.ranks].get(mode="promise_in_bounds"))
