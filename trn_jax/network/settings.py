"""How one collective is to be done: which axis, in which formats, one way round or both; checked when it is called."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from trn_jax.errors import NetworkError
from trn_jax.network.codec import Codec, FloatCodec, IntegerCodec
from trn_jax.network.ring import Ring
from trn_jax.numerics import format_of, get_format, rounder
from trn_jax.numerics.seed import as_seed

AxisName = str | tuple[str, ...]
Rounding = Literal["nearest", "stochastic"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Static description of a collective (hashable)."""

    axis_name: AxisName
    ranks: int
    two_way: bool
    codec: FloatCodec

    def codec_for(self, x: Array) -> Codec:
        """The codec of an array's dtype: integers are never rounded."""
        return self.codec if jnp.issubdtype(x.dtype, jnp.floating) else IntegerCodec()

    def lanes(self, x: Array, axis: int) -> list[tuple[Ring, Array]]:
        """`x` cut in one piece per direction along `axis`, of equal size or one element apart; empty pieces are left out."""
        if not self.two_way:
            return [(Ring(self.axis_name, self.ranks, 1), x)]
        half = (x.shape[axis] + 1) // 2
        forward, backward = lax.slice_in_dim(x, 0, half, axis=axis), lax.slice_in_dim(x, half, None, axis=axis)
        pieces = [(Ring(self.axis_name, self.ranks, 1), forward), (Ring(self.axis_name, self.ranks, -1), backward)]
        return [(ring, piece) for ring, piece in pieces if piece.shape[axis]]


def settle(axis_name: Any, wire_format: str, reduce_format: str, two_way: bool, rounding: Rounding, seed: Any) -> tuple[Settings, Any]:
    """Checks the arguments of a collective; returns its settings and its seed as a uint32 scalar (None for nearest).

    Raises:
        NetworkError: If the axis is not bound.
        FormatError: If a format or the rounding is unknown, or "stochastic" has no seed.
    """
    for fmt in (wire_format, reduce_format):
        rounder(fmt, rounding)
    codec = FloatCodec(wire_format=get_format(wire_format).name, reduce_format=get_format(reduce_format).name, rounding=rounding)
    axis_name = tuple(axis_name) if isinstance(axis_name, list) else axis_name
    settings = Settings(axis_name=axis_name, ranks=axis_size(axis_name), two_way=two_way, codec=codec)
    return settings, as_seed(seed=seed) if rounding == "stochastic" else None


def axis_size(axis_name: Any) -> int:
    """The number of ranks of a bound axis.

    Raises:
        NetworkError: If the axis is not bound.
    """
    try:
        return lax.axis_size(axis_name)
    except NameError as error:
        raise NetworkError(
            f"No mesh axis {axis_name!r} is bound here. Collectives run inside jax.shard_map over a mesh with that axis: "
            "mesh = trn_jax.network.make_mesh(ranks, axis_name)."
        ) from error


def summable(x: Any) -> Array:
    """`x` as an array of a dtype that the ring can sum; booleans become int32, as in `lax.psum`.

    Raises:
        NetworkError: If it is complex, wider than float32, or not a number.
    """
    array = jnp.asarray(x)
    if array.dtype == jnp.bool_:
        return array.astype(jnp.int32)
    if jnp.issubdtype(array.dtype, jnp.integer) or format_of(array.dtype) is not None:
        return array
    hint = " Cast it to float32 first." if array.dtype == jnp.float64 else ""
    raise NetworkError(f"A ring cannot carry {array.dtype} values; it takes integers, booleans and floats of 32 bits or fewer.{hint}")
