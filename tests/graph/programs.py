"""Small programs that between them use every node kind and most primitives of a training step."""

import jax
import jax.numpy as jnp
import numpy as np


def arrays(*shapes, seed=0, dtype=jnp.float32):
    rng = np.random.default_rng(seed)
    return tuple(jnp.asarray(rng.standard_normal(shape), dtype) for shape in shapes)


def mlp_loss(params, x):
    hidden = jax.nn.gelu(x @ params[0])
    logits = jax.nn.relu(hidden) @ params[1]
    return -jax.nn.log_softmax(logits)[:, 0].mean()


MLP_SHAPES = ((150, 24), (24, 10), (6, 150))


def mlp_arguments(dtype=jnp.float32):
    w1, w2, x = arrays(*MLP_SHAPES, dtype=dtype)
    return (w1 / 12, w2 / 5), x


def attention(q, k, v):
    scores = jnp.einsum("btd,bsd->bts", q, k) / jnp.sqrt(jnp.float32(q.shape[-1])).astype(q.dtype)
    mask = jnp.tril(jnp.ones(scores.shape[-2:], bool))[None]
    return jnp.einsum("bts,bsd->btd", jax.nn.softmax(jnp.where(mask, scores, jnp.finfo(scores.dtype).min)), v)


def layer_norm(x):
    mean = x.mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-5)


def scanned(x, w):
    def body(carry, w_layer):
        carry = jax.checkpoint(lambda c: jnp.tanh(c @ w_layer))(carry)
        return carry, carry.sum()

    final, sums = jax.lax.scan(body, x, w)
    return final.mean() + sums.sum()


def branching(x):
    x = jax.lax.cond(x.sum() > 0, lambda c: c * 2.0, lambda c: c + 1.0, x)
    return jax.lax.while_loop(lambda state: state[0] < 3, lambda state: (state[0] + 1, jnp.sin(state[1]) * 1.5), (0, x))[1]


def dropout_layer(x, key):
    return jnp.where(jax.random.bernoulli(key, 0.9, x.shape), x / 0.9, 0.0)


def embedding(table, ids):
    return table[ids].sum(1)


def convolution(x, kernel):
    return jax.lax.conv_general_dilated(x, kernel, (2, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def indexing(x):
    top, where = jax.lax.top_k(x, 3)
    ordered = jnp.sort(x, axis=-1)
    moved = jnp.concatenate([jnp.flip(x, 0), jnp.pad(x, ((1, 0), (0, 0)))], 0)
    cut = jax.lax.dynamic_slice(moved, (1, 0), (2, 4))
    return top.sum() + where.sum() + jnp.cumsum(ordered, -1).mean() + jax.lax.dynamic_update_slice(cut, cut[:1] * 2, (1, 0)).sum()


PROGRAMS = {
    "mlp": (mlp_loss, mlp_arguments()),
    "mlp_gradient": (jax.value_and_grad(mlp_loss), mlp_arguments()),
    "attention": (attention, arrays((2, 9, 8), (2, 9, 8), (2, 9, 8))),
    "attention_gradient": (jax.grad(lambda q, k, v: attention(q, k, v).sum()), arrays((2, 9, 8), (2, 9, 8), (2, 9, 8))),
    "layer_norm": (layer_norm, arrays((4, 33))),
    "scan_remat": (scanned, arrays((4, 16), (5, 16, 16))),
    "scan_remat_gradient": (jax.grad(scanned, argnums=1), arrays((4, 16), (5, 16, 16))),
    "while_cond": (branching, arrays((3, 5))),
    "dropout": (lambda x: dropout_layer(x, jax.random.key(3)), arrays((5, 7))),
    "embedding_gradient": (jax.grad(lambda t: embedding(t, jnp.array([[0, 2], [2, 2]])).sum()), arrays((4, 6))),
    "convolution": (convolution, arrays((2, 8, 8, 3), (3, 3, 3, 4))),
    "indexing": (indexing, arrays((4, 6))),
    "vmapped": (jax.vmap(mlp_loss, in_axes=(None, 0)), (mlp_arguments()[0], arrays((2, 3, 150))[0])),
    "integers": (lambda x: (x * 7 + 3) % 5 ^ (x >> 1), (jnp.arange(12, dtype=jnp.int32).reshape(3, 4),)),
}
