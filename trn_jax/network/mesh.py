"""Device meshes for emulated chips: one rank per JAX device, whatever the device is.

Axes are of type Auto. `jax.make_mesh` alone now makes Explicit axes, under which shardings become part of every array's type
and programs written for `shard_map` meet errors that have nothing to do with them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import AxisType, Mesh

from trn_jax.errors import NetworkError


def make_mesh(shape: int | Sequence[int], axis_names: str | Sequence[str] = "data", *, devices: Sequence[Any] | None = None) -> Mesh:
    """Makes a mesh with Auto axes, for `jax.shard_map`.

    On CPU devices wait for every step of a loop (`jax.block_until_ready`), or start Python with NPROC=32 in the environment. JAX has
    as many threads as ranks or cores, whichever is more; a rank of the next step may take the one that a collective of this step
    waits for, and JAX then ends the process after 40 seconds.

    Args:
        shape: Ranks along each axis; a single number makes one axis.
        axis_names: One name per axis; a single name for one axis.
        devices: Devices to use, in rank order; by default the first ones of `jax.devices()`.

    Returns:
        The mesh. Ranks are numbered row by row.

    Raises:
        NetworkError: If there are fewer devices than ranks (the message says how to get more on a CPU), if names and sizes do
            not pair up, or if a size is below 1.
    """
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    names = (axis_names,) if isinstance(axis_names, str) else tuple(axis_names)
    if len(sizes) != len(names):
        raise NetworkError(f"A mesh of shape {sizes} needs {len(sizes)} axis names, got {len(names)}: {names}.")
    if len(set(names)) != len(names):
        raise NetworkError(f"Axis names must differ, got {names}.")
    if any(size < 1 for size in sizes):
        raise NetworkError(f"Every axis of a mesh needs at least one rank, got shape {sizes}.")
    ranks = math.prod(sizes)
    found = list(jax.devices() if devices is None else devices)
    if len(found) < ranks:
        kind = found[0].platform if found else "no"
        raise NetworkError(
            f"A mesh of shape {sizes} needs {ranks} devices, but there are {len(found)} ({kind}). On a CPU, ask for virtual devices before "
            f'JAX is first used: jax.config.update("jax_num_cpu_devices", {ranks}).'
        )
    return jax.make_mesh(sizes, names, axis_types=(AxisType.Auto,) * len(sizes), devices=found[:ranks])
