"""Data-parallel gradients: every rank works on its part of the batch, and an all-reduce makes the mean.

loss = mean over ranks of loss_r,    gradient = all_reduce(gradient_r) / n
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from trn_jax.errors import NetworkError
from trn_jax.network.all_reduce import ring_all_reduce

AllReduce = Callable[[Any, str], Any]


def data_parallel(
    value_and_grad: Callable[..., tuple[Any, Any]], mesh: Mesh, axis_name: str = "data", *, all_reduce: AllReduce = ring_all_reduce
) -> Callable[..., tuple[Any, Any]]:
    """Spreads the batch of a loss-and-gradient function over the ranks of a mesh axis.

    If the loss is a mean over the batch, the result equals that of the whole batch on one device, up to the order of sums and
    the formats of the all-reduce. A loss that normalises by something else than the batch size (the tokens of a masked
    batch) has to do so with a `psum` of its own.

    Args:
        value_and_grad: `(params, *batch) -> (value, gradients)`, as `jax.value_and_grad(loss)` is, emulated or not. `value` is
            averaged over ranks in full precision, gradients go through `all_reduce`.
        mesh: Mesh with the axis, e.g. from `make_mesh(8, "data")`. Further axes of the mesh hold copies.
        axis_name: Axis to spread the batch over.
        all_reduce: `(pytree, axis_name) -> pytree` of sums; e.g. `partial(ring_all_reduce, wire_format="fp32")`, or
            `jax.lax.psum`. By default the ring with bf16 on the wire and fp32 sums.

    Returns:
        A function `(params, *batch) -> (value, gradients)`, to be jitted with the rest of the step. Params are the same on
        every rank, arrays of the batch are cut along their first axis.

    Raises:
        NetworkError: If the mesh has no such axis, or (when called) a batch does not divide by its ranks.

    Gradient: not meant to be differentiated again; it does, as `shard_map` does.
    """
    if axis_name not in mesh.axis_names:
        raise NetworkError(f"The mesh has no axis {axis_name!r}; it has {', '.join(map(repr, mesh.axis_names))}.")
    ranks = mesh.shape[axis_name]

    def local(params: Any, *batch: Any) -> tuple[Any, Any]:
        # Parameters that differ between ranks as far as JAX knows: otherwise it would sum their gradients by itself.
        params = jax.tree.map(partial(lax.pcast, axis_name=axis_name, to="varying"), params)
        value, gradients = value_and_grad(params, *batch)
        total = all_reduce(gradients, axis_name)
        return jax.tree.map(lambda v: lax.pmean(v, axis_name), value), jax.tree.map(lambda g: g / ranks, total)

    def spread(params: Any, *batch: Any) -> tuple[Any, Any]:
        for path, leaf in jax.tree_util.tree_leaves_with_path(batch):
            if not leaf.shape or leaf.shape[0] % ranks:
                raise NetworkError(
                    f"The batch array at {jax.tree_util.keystr(path)} has shape {leaf.shape}; its first axis must divide by the "
                    f"{ranks} ranks of {axis_name!r}."
                )
        specs = (P(), *(P(axis_name) for _ in batch))
        return jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=P())(params, *batch)

    return spread
