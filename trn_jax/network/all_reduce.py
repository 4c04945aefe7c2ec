"""Ring all-reduce with chosen number formats: `jax.lax.psum` as a reduce-scatter followed by an all-gather.

For S bytes over n ranks, every rank sends 2 (n-1)/n S bytes in 2 (n-1) steps.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from trn_jax.network import ring as ring_steps
from trn_jax.network.codec import Codec
from trn_jax.network.rank_types import replicated
from trn_jax.network.settings import AxisName, Rounding, Settings, settle, summable


def ring_all_reduce(
    x: Any,
    axis_name: AxisName,
    wire_format: str = "bf16",
    reduce_format: str = "fp32",
    two_way: bool = False,
    *,
    rounding: Rounding = "nearest",
    seed: Any = None,
) -> Any:
    """Sums `x` over the ranks of a mesh axis, around a ring; takes the place of `jax.lax.psum` inside `jax.shard_map`.

    Each array is cut into one chunk per rank, padded with zeros if need be. In the reduce-scatter half every rank ends with
    the sum of one chunk. It rounds that sum to `wire_format`, once, and the all-gather half passes it on unchanged, so all
    ranks hold the same bits, the owner of a chunk included. What travels in the first half follows from the two formats:

    * `wire_format` can hold every value of `reduce_format` (bf16 and bf16, fp32 and fp32): *partial sums* travel from
      neighbour to neighbour, each rank adding its part. With bf16 they are rounded at every hop, so the result depends on
      where a chunk began its way around: 256 on rank 0 and 1 on seven others make 264, 260 or 256.
    * `wire_format` is narrower (the default): a partial sum would not survive being sent, so the *parts* travel, each rounded
      once, straight to the rank that owns the chunk, which adds them in ring order in `reduce_format` (264 everywhere). The
      bytes that leave a rank and the number of steps are the same; but where only neighbours are connected, a part has to
      pass through up to n-1 links.

    Every sum is computed in fp32 and rounded to `reduce_format` when written; local values are not rounded before they are
    added. With one rank nothing is sent and nothing is rounded.

    Args:
        x: Array of any shape, or a pytree of arrays: float32 or narrower, integers or booleans. Arrays of one dtype travel
            together as one bucket. Integers are summed exactly in their own dtype (booleans in int32), whatever the formats.
        axis_name: Mesh axis, or tuple of axes taken as one ring in row-major order, bound by `jax.shard_map` (or by
            `jax.vmap(..., axis_name=)`, for many ranks on one device).
        wire_format: Format of every value sent, e.g. "fp32", "bf16", "fp8_e5m2": arrays of that dtype are what is permuted.
        reduce_format: Format of the partial sums.
        two_way: Half of every chunk goes around the other way, so that both directions of a link are used.
        rounding: "nearest" or "stochastic", for everything that is sent and every sum.
        seed: For "stochastic": an int or a uint32 scalar, another one each step. Ranks, steps and directions draw different
            bits from it.

    Returns:
        As `x`, in the dtypes of `x`; typed as replicated over the axis, so that it can leave through `out_specs=P()`.

    Raises:
        NetworkError: If `axis_name` is not bound, or `x` is complex or wider than float32.
        FormatError: If a format or rounding is unknown, or "stochastic" has no seed.

    Units: those of `x`.
    Gradient: that of `jax.lax.psum`, straight through the rounding. As with `psum` under `check_vma=True`, the gradient taken
        *inside* `shard_map` with respect to a replicated parameter is already summed over ranks; to all-reduce it here
        instead, make the parameter varying first (`jax.lax.pcast(w, axis, to="varying")`), as `data_parallel` does.
    Basis: derived (the textbook ring); documented that Trainium's collectives send the buffer's dtype and add in fp32. The
        order in which its rings visit the ranks is not published.
    """
    settings, seed = settle(axis_name, wire_format, reduce_format, two_way, rounding, seed)
    leaves, treedef = jax.tree.flatten(x)
    arrays = [summable(leaf) for leaf in leaves]
    if settings.ranks == 1:
        return jax.tree.unflatten(treedef, [lax.psum(array, settings.axis_name) for array in arrays])
    summed: list[Any] = [None] * len(arrays)
    for dtype in dict.fromkeys(array.dtype for array in arrays):
        members = [index for index, array in enumerate(arrays) if array.dtype == dtype]
        flat = jnp.concatenate([arrays[index].reshape(-1) for index in members])
        ends = np.cumsum([arrays[index].size for index in members])[:-1]
        for index, piece in zip(members, jnp.split(_sum(settings, flat, seed), ends), strict=True):
            summed[index] = piece.reshape(arrays[index].shape)
    return jax.tree.unflatten(treedef, summed)


def _sum(settings: Settings, flat: Array, seed: Any) -> Array:
    if flat.size == 0:
        return lax.psum(flat, settings.axis_name)
    codec = settings.codec_for(flat)
    return _differentiable(settings, flat, seed) if codec is settings.codec else _around(settings, codec, flat, seed)


def _around(settings: Settings, codec: Codec, flat: Array, seed: Any) -> Array:
    """Once around the ring and once more: [size] summed over ranks."""
    columns = -(-flat.size // settings.ranks)
    chunks_RC = jnp.pad(flat, (0, settings.ranks * columns - flat.size)).reshape(settings.ranks, columns)
    lanes = settings.lanes(chunks_RC, axis=1)
    done = [ring_steps.all_gather(ring_steps.reduce_scatter(lane_RC, ring, codec, seed), ring, codec, seed) for ring, lane_RC in lanes]
    return replicated(jnp.concatenate(done, axis=1).reshape(-1)[: flat.size].astype(flat.dtype), settings.axis_name)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _differentiable(settings: Settings, flat: Array, seed: Any) -> Array:
    return _around(settings, settings.codec, flat, seed)


@_differentiable.defjvp
def _(settings: Settings, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Array, Array]:
    return _differentiable(settings, *primals), lax.psum(tangents[0], settings.axis_name)
