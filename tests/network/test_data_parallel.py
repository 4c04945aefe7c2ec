"""Training on 2, 4 and 8 ranks follows training on one device."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from trn_jax.errors import NetworkError
from trn_jax.network import data_parallel, make_mesh, ring_all_reduce

STEPS, LEARNING_RATE = 20, 0.2


def init():
    rng = np.random.default_rng(0)
    return {"w1": rng.standard_normal((6, 16)) * 0.4, "b1": np.zeros((1, 16)), "w2": rng.standard_normal((16, 1)) * 0.3}


def batches():
    rng = np.random.default_rng(1)
    x = rng.standard_normal((STEPS, 16, 6)).astype(np.float32)
    return x, np.sin(x.sum(-1, keepdims=True)).astype(np.float32)


def loss(params, x, y):
    return jnp.mean((jnp.tanh(x @ params["w1"] + params["b1"]) @ params["w2"] - y) ** 2)


def losses_of(value_and_grad):
    """Twenty steps of gradient descent; the loss before each."""

    def step(params, batch):
        value, gradients = value_and_grad(params, *batch)
        return jax.tree.map(lambda p, g: p - LEARNING_RATE * g, params, gradients), value

    params = jax.tree.map(lambda p: jnp.asarray(p, jnp.float32), init())
    return np.asarray(jax.jit(lambda p: lax.scan(step, p, batches())[1])(params))


@pytest.fixture(scope="module")
def one_device():
    return losses_of(jax.value_and_grad(loss))


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_fp32_ring_follows_one_device_to_rounding(ranks, one_device):
    mesh = make_mesh(ranks, devices=jax.devices("cpu"))
    got = losses_of(data_parallel(jax.value_and_grad(loss), mesh, all_reduce=partial(ring_all_reduce, wire_format="fp32")))
    assert one_device[-1] < 0.8 * one_device[0]
    assert np.abs(got / one_device - 1).max() < 16 * 2.0**-24  # a sum in another order, over twenty updates


@pytest.mark.parametrize("two_way", [False, True], ids=["one_way", "two_way"])
def test_bf16_ring_follows_one_device_within_a_bf16_step(two_way, one_device):
    mesh = make_mesh(4, devices=jax.devices("cpu"))
    got = losses_of(data_parallel(jax.value_and_grad(loss), mesh, all_reduce=partial(ring_all_reduce, two_way=two_way)))
    assert (got != one_device).any()
    assert np.abs(got / one_device - 1).max() < 2.0**-8


def test_default_ring_is_the_mean_over_ranks_of_what_each_rank_sees():
    mesh = make_mesh((2, 2), ("data", "other"), devices=jax.devices("cpu"))
    parallel = data_parallel(jax.value_and_grad(lambda w, x: jnp.mean(w * x)), mesh)
    value, gradient = jax.jit(parallel)(jnp.float32(2.0), jnp.arange(4.0))
    assert (float(value), float(gradient)) == (3.0, 1.5)


def test_batches_that_do_not_divide_and_unknown_axes_are_refused():
    mesh = make_mesh(4, devices=jax.devices("cpu"))
    with pytest.raises(NetworkError, match="no axis 'model'; it has 'data'"):
        data_parallel(jax.value_and_grad(loss), mesh, "model")
    with pytest.raises(NetworkError, match=r"shape \(6, 2\).*4 ranks of 'data'"):
        data_parallel(jax.value_and_grad(loss), mesh)(init(), np.ones((6, 2)))
