"""Troubles that users reported about the limits of the hardware, each with the right answer."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import trn_jax


def trace(kernel, *shapes, chip="trainium1"):
    return trn_jax.trace(trn_jax.kernel(chip=chip)(kernel), *(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes))


def product(nc, stationary, moving):
    out = nc.ndarray((stationary.shape[1], moving.shape[1]), buffer="hbm")
    nc.store(out, nc.tensor_copy(nc.nc_matmul(nc.load(stationary), nc.load(moving))))
    return out


@pytest.mark.parametrize(
    ("stationary", "moving", "message"),
    [
        ((129, 128), (129, 512), r"stationary .*129 partitions, but SBUF and PSUM have 128"),
        ((128, 129), (128, 512), r"at most 128 stationary columns.*has 129"),
        ((128, 128), (128, 513), r"at most 512 moving columns.*has 513"),
        ((128, 128), (64, 512), r"contracts over partitions.*stationary.* has 128 and moving.* has 64"),
    ],
    ids=["partitions", "stationary columns", "moving columns", "contraction"],
)
def test_shp_02_a_tile_that_the_array_cannot_take_is_refused_by_name_limit_and_size(stationary, moving, message):
    """What the simulator took, the chip did not: https://awsdocs-neuron.readthedocs-hosted.com/en/latest/nki/guides/nki_simulator.html."""
    assert trace(product, (128, 128), (128, 512)).flops == 2 * 128 * 128 * 512
    with pytest.raises(trn_jax.ShapeError, match=message):
        trace(product, stationary, moving)


@pytest.mark.parametrize(("chip", "limit", "fit"), [("trainium1", 192 * 1024, 49), ("trainium2", 224 * 1024, 57)])
def test_shp_07_tiles_that_do_not_fit_together_say_how_many_would(chip, limit, fit):
    """An allocator failed with an internal error: https://github.com/aws-neuron/aws-neuron-sdk/issues/1036."""

    def sums(count):
        def body(nc, x):
            out = nc.ndarray(x.shape, buffer="hbm")
            tiles = [nc.load(x) for _ in range(count)]
            for tile in tiles[1:]:
                nc.tensor_tensor(tiles[0], tile, "add", dst=tiles[0])
            nc.store(out, tiles[0])
            return out

        return trace(body, (128, 1000), chip=chip)

    assert sums(fit).structure.issued.sbuf_bytes == 128 * fit * 4000
    with pytest.raises(trn_jax.ShapeError, match=rf"400,000 bytes of SBUF.*{limit:,}.*Of 100 such tiles {limit:,} // 4,000 = {fit} fit"):
        sums(100)
    with pytest.raises(trn_jax.ShapeError, match=f"= {fit} fit"):
        sums(fit + 1)


def test_shp_07_the_count_is_left_out_where_sizes_differ():
    def body(nc, x, y):
        wide, narrow = nc.load(x), nc.load(y)
        out = nc.ndarray(y.shape, buffer="hbm")
        nc.store(out, nc.tensor_tensor(wide[:, 0:1000], narrow, "add", dst=narrow))
        return out

    with pytest.raises(trn_jax.ShapeError, match=r"200,000 \+ .*4,000 bytes\. Use smaller tiles"):
        trace(body, (128, 50_000), (128, 1000))
    np.testing.assert_array_equal(trn_jax.kernel(body)(jnp.ones((2, 1000)), jnp.ones((2, 1000))), 2 * np.ones((2, 1000)))
