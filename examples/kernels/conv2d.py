"""A convolution as products: for every place of the filter, its weights times the image shifted by that place, summed in PSUM."""

import jax

import trn_jax as trn

TILE, COLUMNS = 128, 512


@trn.kernel
def conv2d(nc, x, w, rows_per_load: int = 6):
    """The valid convolution of x [channels in, height, width] with w [filter height, filter width, channels in, channels out].

    Channels are multiples of 128; a row of the result has at most 512 elements. `rows_per_load` rows of the result share one load of
    the image; the height of the result is a multiple of it.
    """
    (c_in, height, width), (fh, fw, _, c_out) = x.shape, w.shape
    out_height, out_width = height - fh + 1, width - fw + 1
    rows_per_load = min(rows_per_load, out_height)
    rows = max(r for r in range(1, rows_per_load + 1) if rows_per_load % r == 0 and r * out_width <= COLUMNS)
    out = nc.ndarray((c_out, out_height, out_width), x.dtype, buffer="hbm")
    tiles = c_in // TILE
    weights = nc.ndarray((TILE, tiles, fh, fw, c_out), w.dtype, name="weights")
    for c in range(tiles):
        for a in range(fh):
            for b in range(fw):
                nc.load(w[a, b, c * TILE : (c + 1) * TILE, :], dst=weights[:, c, a, b, :], queue="scalar")
    for i in nc.affine_range(out_height // rows_per_load):
        image = nc.ndarray((TILE, tiles, rows_per_load + fh - 1, width), x.dtype, name="image")
        for c in range(tiles):
            first = i * rows_per_load
            nc.load(x[c * TILE : (c + 1) * TILE, first : first + rows_per_load + fh - 1, :], dst=image[:, c])
        for o in nc.affine_range(c_out // TILE):
            result = nc.ndarray((TILE, rows_per_load, out_width), x.dtype, name="result")
            for r in nc.affine_range(rows_per_load // rows):
                total = nc.ndarray((TILE, rows, out_width), buffer="psum")
                for c in range(tiles):
                    for a in range(fh):
                        for b in range(fw):
                            window = image[:, c, r * rows + a : r * rows + a + rows, b : b + out_width]
                            nc.nc_matmul(weights[:, c, a, b, o * TILE : (o + 1) * TILE], window, dst=total)
                nc.tensor_copy(total, dst=result[:, r * rows : r * rows + rows, :])
            nc.store(out[o * TILE : (o + 1) * TILE, first : first + rows_per_load, :], result)
    return out


def plain(x, w):
    """The same in JAX, summed in fp32."""
    result = jax.lax.conv_general_dilated(
        x[None].astype("float32"), w.astype("float32"), (1, 1), "VALID", dimension_numbers=("NCHW", "HWIO", "NCHW"), precision="highest"
    )
    return result[0].astype(x.dtype)
