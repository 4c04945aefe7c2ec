"""The selective scan of Mamba: channels in partitions, time along the free axis, one state after the other.

h_t = exp(delta_t a) h_(t-1) + delta_t u_t b_t          y_t = sum over states of c_t h_t
"""

import jax
import jax.numpy as jnp

import trn_jax as trn

CHANNELS = 128


@trn.kernel
def selective_scan(nc, delta, u, a, b, c, steps: int = 512, group: int = 2):
    """y [channels, time] of delta and u [channels, time], a [channels, states], b and c [states, time].

    Channels are a multiple of 128, time of `steps`: how many steps one instruction takes, at most 512. `group`
    states, of which there are a multiple, take each step together, so that the Vector Engine need not wait for its own last result. All
    in fp32.
    """
    (channels, time), states = delta.shape, a.shape[1]
    steps = min(steps, time)
    out = nc.ndarray((channels, time), delta.dtype, buffer="hbm")
    ones = nc.memset(nc.ndarray((1, CHANNELS), name="ones"), 1.0)
    for i in nc.affine_range(channels // CHANNELS):
        part = slice(i * CHANNELS, (i + 1) * CHANNELS)
        delta_tile, u_tile, a_tile = nc.load(delta[part, :]), nc.load(u[part, :]), nc.load(a[part, :])
        y = nc.memset(nc.ndarray((CHANNELS, time), name="y"), 0.0)
        scaled = nc.tensor_tensor(delta_tile, u_tile, "multiply", dst=u_tile)
        for s in nc.sequential_range(states // group):
            start = [nc.memset(nc.ndarray((CHANNELS, 1), name="start"), 0.0) for _ in range(group)]
            index = [s * group + g for g in range(group)]
            b_rows = [nc.load(b[i : i + 1, :], queue="scalar") for i in index]
            c_rows = [nc.load(c[i : i + 1, :], queue="gpsimd") for i in index]
            for t in nc.sequential_range(time // steps):
                now = slice(t * steps, (t + 1) * steps)
                b_tiles = [nc.nc_matmul(ones, row[:, now]) for row in b_rows]  # the Tensor Engine copies a row to all partitions
                c_tiles = [nc.nc_matmul(ones, row[:, now]) for row in c_rows]
                decay = [nc.activation("exp", delta_tile[:, now], scale=a_tile[:, i : i + 1]) for i in index]
                driven = [nc.tensor_tensor(scaled[:, now], b_tile, "multiply") for b_tile in b_tiles]
                h = [nc.tensor_tensor_scan(decay[g], driven[g], start[g], "multiply", "add") for g in range(group)]
                seen = [nc.tensor_tensor(h[g], c_tiles[g], "multiply") for g in range(group)]
                for g in range(group):
                    nc.tensor_copy(h[g][:, steps - 1 : steps], dst=start[g], engine="scalar")
                    nc.tensor_tensor(y[:, now], seen[g], "add", dst=y[:, now])
        nc.store(out[part, :], y if y.dtype == out.dtype else nc.tensor_copy(y, dtype=out.dtype))
    return out


def plain(delta, u, a, b, c):
    """The same in JAX."""

    def step(h, now):
        delta_t, u_t, b_t, c_t = now
        h = jnp.exp(delta_t[:, None] * a) * h + (delta_t * u_t)[:, None] * b_t[None, :]
        return h, jnp.sum(h * c_t[None, :], axis=1)

    _, y = jax.lax.scan(step, jnp.zeros(a.shape, jnp.float32), (delta.T, u.T, b.T, c.T))
    return y.T.astype(delta.dtype)
