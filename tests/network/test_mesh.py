"""Meshes: Auto axes, and errors that say how to get more devices."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from trn_jax.errors import NetworkError
from trn_jax.network import make_mesh


def test_axes_are_auto_and_shard_map_runs_on_them():
    mesh = make_mesh(8)
    assert mesh.axis_types == (AxisType.Auto,)
    total = jax.shard_map(lambda x: lax.psum(x, "data"), mesh=mesh, in_specs=P("data"), out_specs=P())(jnp.arange(8.0))
    assert total.tolist() == [28.0]


def test_ranks_are_numbered_row_by_row():
    mesh = make_mesh((2, 4), ("server", "chip"))
    assert dict(mesh.shape) == {"server": 2, "chip": 4}
    assert [device.id for device in mesh.devices[1]] == [device.id for device in jax.devices()[4:8]]


def test_given_devices_are_used_in_order():
    devices = jax.devices()[::-1]
    assert list(make_mesh(3, "r", devices=devices).devices) == devices[:3]


@pytest.mark.parametrize(
    ("shape", "names", "message"),
    [
        (16, "r", r'needs 16 devices, but there are 8.*jax_num_cpu_devices", 16'),
        ((2, 2), "r", "needs 2 axis names, got 1"),
        ((2, 2), ("r", "r"), "must differ"),
        ((0,), "r", "at least one rank"),
    ],
    ids=["devices", "names", "twice", "empty"],
)
def test_impossible_meshes_are_refused(shape, names, message):
    with pytest.raises(NetworkError, match=message):
        make_mesh(shape, names)
