"""Programs over a mesh of four devices: every collective, data, tensor and pipeline parallelism, ring attention."""

from functools import partial

import jax
import jax.numpy as jnp
from corpus import Case, arrays
from jax import P, lax

AUTO = jax.sharding.AxisType.Auto


def on_mesh(fn, in_specs, out_specs, args, *, shape=(4,), names=("x",), wrt=(0,), **options):
    mesh = jax.make_mesh(shape, names, axis_types=(AUTO,) * len(names))
    return Case(fn=jax.shard_map(fn, mesh=mesh, in_specs=in_specs, out_specs=out_specs, **options), args=args, wrt=wrt, maps=False)


def ring_attention():
    """Keys and values go round; the softmax is corrected as larger scores arrive."""
    ring = [(rank, (rank + 1) % 4) for rank in range(4)]

    def local(q, k, v):
        varying = lambda x: lax.pcast(x, ("x",), to="varying")

        def step(state, _):
            k, v, out, highest, total = state
            scores = q @ k.T / 2
            now = jnp.maximum(highest, scores.max(-1))
            weights, correction = jnp.exp(scores - now[:, None]), jnp.exp(highest - now)
            out, total = out * correction[:, None] + weights @ v, total * correction + weights.sum(-1)
            return (lax.ppermute(k, "x", ring), lax.ppermute(v, "x", ring), out, now, total), None

        start = (k, v, jnp.zeros_like(q), varying(jnp.full(q.shape[:1], -1e9)), varying(jnp.zeros(q.shape[:1])))
        (_, _, out, _, total), _ = lax.scan(step, start, None, length=4)
        return out / total[:, None]

    return on_mesh(local, (P("x"),) * 3, P("x"), arrays((8, 4), (8, 4), (8, 4)), wrt=(0, 1, 2))


def data_parallel(check_vma):
    def local(w, x):
        w = lax.pcast(w, ("x",), to="varying") if check_vma else w
        return lax.pmean(jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w), "x")

    return on_mesh(local, (P(), P("x")), P(), arrays((4, 3), (8, 4)), check_vma=check_vma)


def collectives():
    def local(x):
        four = jnp.tile(x, (4, 1))
        scattered = lax.psum_scatter(four, "x", tiled=True), lax.all_to_all(four, "x", 0, 0, tiled=True)
        return lax.psum(x, "x"), lax.pmax(x, "x"), lax.all_gather(x, "x", tiled=True), *scattered, lax.ppermute(x, "x", [(0, 1)])

    return on_mesh(local, P("x"), (P(), P(), *(P("x"),) * 4), arrays((8, 4)), wrt=None)


def tensor_parallel():
    local = lambda x, a, b: lax.psum(jax.nn.gelu(x @ a) @ b, "model")
    specs = (P("data"), P(None, "model"), P("model"))
    return on_mesh(local, specs, P("data"), arrays((4, 3), (3, 8), (8, 3)), shape=(2, 2), names=("data", "model"), wrt=(0, 1, 2))


def pipeline():
    ring = [(rank, (rank + 1) % 4) for rank in range(4)]
    stage = lambda w, x: lax.fori_loop(0, 4, lambda _, h: lax.ppermute(jnp.tanh(h @ w[0]), "x", ring), x)
    return on_mesh(stage, (P("x"), P("x")), P("x"), arrays((4, 3, 3), (8, 3)), wrt=(0, 1))


def own_noise():
    noisy = lambda key, x: x + jax.random.normal(jax.random.fold_in(key, lax.axis_index("x")), x.shape)
    return on_mesh(noisy, (P(), P("x")), P("x"), (jax.random.key(0), arrays((8, 4))[0]), wrt=(1,))


def explicitly_sharded():
    mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Explicit,))
    x, w = arrays((8, 4), (4, 3))
    args = jax.device_put(x, jax.NamedSharding(mesh, P("x"))), jax.device_put(w, jax.NamedSharding(mesh, P()))
    return Case(fn=lambda x, w: jnp.tanh(x @ w).sum(0), args=args, wrt=None, maps=False)


CASES = {
    "ring attention": ring_attention,
    "data parallel": partial(data_parallel, True),
    "data parallel unchecked": partial(data_parallel, False),
    "collectives": collectives,
    "tensor parallel": tensor_parallel,
    "pipeline": pipeline,
    "noise of each rank": own_noise,
    "explicitly sharded": explicitly_sharded,
}
