"""The two halves of the ring all-reduce on their own: reduce-scatter and all-gather, along the first axis of an array.

Over n ranks, with S bytes the larger of a rank's input and output, every rank sends (n-1)/n S bytes in n-1 steps.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from trn_jax.errors import NetworkError
from trn_jax.network import ring as ring_steps
from trn_jax.network.codec import Codec
from trn_jax.network.settings import AxisName, Rounding, Settings, settle, summable


def ring_reduce_scatter(
    x: Array,
    axis_name: AxisName,
    wire_format: str = "bf16",
    reduce_format: str = "fp32",
    two_way: bool = False,
    *,
    rounding: Rounding = "nearest",
    seed: Any = None,
) -> Array:
    """Sums `x` over ranks and leaves rank r with rows r C .. (r+1) C - 1 of the sum, as `jax.lax.psum_scatter(tiled=True)`.

    Args:
        x: Array of shape [n C, ...] on n ranks; dtypes as for `ring_all_reduce`.
        axis_name: Bound mesh axis.
        wire_format: Format of every value sent; what travels follows from both formats, see `ring_all_reduce`.
        reduce_format: Format of the partial sums and of the result (which is not rounded for the wire).
        two_way: Half of every chunk goes around the other way.
        rounding: "nearest" or "stochastic".
        seed: For "stochastic": an int or a uint32 scalar.

    Returns:
        Array of shape [C, ...] in the dtype of `x`, different on every rank.

    Raises:
        NetworkError: If the first axis is not a multiple of n, or as for `ring_all_reduce`.
        FormatError: If a format or rounding is unknown, or "stochastic" has no seed.

    Units: those of `x`.
    Gradient: that of `jax.lax.psum_scatter`, straight through the rounding.
    Basis: derived (the textbook ring).
    """
    settings, seed = settle(axis_name, wire_format, reduce_format, two_way, rounding, seed)
    x = summable(x)
    if x.ndim == 0 or x.shape[0] % settings.ranks:
        raise NetworkError(
            f"ring_reduce_scatter over {settings.ranks} ranks cuts the first axis into {settings.ranks} equal pieces, but x has shape "
            f"{x.shape}. Pad it, or use ring_all_reduce, which takes any shape."
        )
    if settings.ranks == 1 or x.size == 0:
        return lax.psum_scatter(x, settings.axis_name, scatter_dimension=0, tiled=True)
    codec = settings.codec_for(x)
    return _scatter(settings, x, seed) if codec is settings.codec else _scatter_values(settings, codec, x, seed)


def ring_all_gather(
    x: Array,
    axis_name: AxisName,
    wire_format: str = "bf16",
    two_way: bool = False,
    *,
    rounding: Rounding = "nearest",
    seed: Any = None,
) -> Array:
    """Stacks the pieces of all ranks along the first axis, on every rank, as `jax.lax.all_gather(tiled=True)`.

    Every rank holds the same bits: its own piece is rounded to `wire_format` too.

    Args:
        x: Array of shape [C, ...]; dtypes as for `ring_all_reduce`.
        axis_name: Bound mesh axis of n ranks.
        wire_format: Format of every value sent.
        two_way: Half of the piece goes around the other way.
        rounding: "nearest" or "stochastic".
        seed: For "stochastic": an int or a uint32 scalar.

    Returns:
        Array of shape [n C, ...] in the dtype of `x`. Like that of `jax.lax.all_gather`, its type is varying.

    Raises:
        NetworkError: If `x` is a scalar, or as for `ring_all_reduce`.
        FormatError: If the format or rounding is unknown, or "stochastic" has no seed.

    Units: those of `x`.
    Gradient: that of `jax.lax.all_gather`, straight through the rounding.
    Basis: derived (the textbook ring).
    """
    settings, seed = settle(axis_name, wire_format, wire_format, two_way, rounding, seed)
    x = summable(x)
    if x.ndim == 0:
        raise NetworkError("ring_all_gather stacks along the first axis, but x is a scalar. Give it one: x[None].")
    if settings.ranks == 1 or x.size == 0:
        return lax.all_gather(x, settings.axis_name, axis=0, tiled=True)
    codec = settings.codec_for(x)
    return _gather(settings, x, seed) if codec is settings.codec else _gather_values(settings, codec, x, seed)


def _scatter_values(settings: Settings, codec: Codec, x: Array, seed: Any) -> Array:
    lanes = settings.lanes(x.reshape(settings.ranks, -1), axis=1)
    pieces = [ring_steps.reduce_scatter(lane_RC, ring, codec, seed) for ring, lane_RC in lanes]
    return jnp.concatenate(pieces).reshape(x.shape[0] // settings.ranks, *x.shape[1:]).astype(x.dtype)


def _gather_values(settings: Settings, codec: Codec, x: Array, seed: Any) -> Array:
    lanes = settings.lanes(codec.load(x.reshape(-1)), axis=0)
    pieces = [ring_steps.all_gather(lane_C, ring, codec, seed) for ring, lane_C in lanes]
    return jnp.concatenate(pieces, axis=1).reshape(settings.ranks * x.shape[0], *x.shape[1:]).astype(x.dtype)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _scatter(settings: Settings, x: Array, seed: Any) -> Array:
    return _scatter_values(settings, settings.codec, x, seed)


@_scatter.defjvp
def _(settings: Settings, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Array, Array]:
    tangent = lax.psum_scatter(tangents[0], settings.axis_name, scatter_dimension=0, tiled=True)
    return _scatter(settings, *primals), tangent


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _gather(settings: Settings, x: Array, seed: Any) -> Array:
    return _gather_values(settings, settings.codec, x, seed)


@_gather.defjvp
def _(settings: Settings, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Array, Array]:
    return _gather(settings, *primals), lax.all_gather(tangents[0], settings.axis_name, axis=0, tiled=True)
