"""Small functions and readers of programs that several tests of tracing share."""

import jax
import jax.numpy as jnp
import numpy as np

from trn_jax.units import MIB


def shape(*sizes, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(sizes, dtype)


def compute(program):
    """Engine, kind and function of every instruction but memory traffic and table loads."""
    return [(i.engine, i.kind, i.function) for i in program.instructions if i.engine != "dma" and i.kind != "act_table_load"]


def table_loads(program):
    """The sets of functions whose tables a program loads, in order; those of a loop's body once."""
    return [i.function for i in program.instructions if i.kind == "act_table_load"]


def traffic(program, function):
    """Rows of memory traffic with this function."""
    return [row for row in program.to_table() if row["label"] == f"dma_copy {function}"]


def hbm_bytes(program, sbuf_bytes=24 * MIB):
    """Bytes that cross HBM with this much SBUF, all iterations."""
    table = program.table
    finite = np.isfinite(table["reuse_bytes"])
    missing = table["reuse_slope"] * np.maximum(0.0, np.where(finite, table["reuse_bytes"], 0.0) - sbuf_bytes)
    moved = np.where(finite, np.minimum(table["bytes"], missing), table["bytes"])
    return float((moved * table["hbm"] * program.repeats).sum())


def mlp_loss(params, x, y):
    h = jax.nn.gelu(x @ params["in"] + jnp.broadcast_to(params["bias"], (x.shape[0], params["bias"].shape[0])))
    return jnp.mean((h @ params["out"] - y) ** 2)


def mlp_shapes(batch=64, width=128, hidden=256):
    params = {"in": shape(width, hidden), "bias": shape(hidden), "out": shape(hidden, width)}
    return params, shape(batch, width), shape(batch, width)


def mlp_step(params, x, y):
    loss, grads = jax.value_and_grad(mlp_loss)(params, x, y)
    return loss, jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


def rnn(w, x0, xs):
    def step(carry, x):
        carry = jnp.tanh(carry @ w + x)
        return carry, carry

    return jax.lax.scan(step, x0, xs)


def rnn_shapes(length, batch=8, width=64):
    return shape(width, width), shape(batch, width), shape(length, batch, width)
