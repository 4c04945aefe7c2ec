"""The GPT on several ranks, emulated or not, trains as on one device."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import trn_jax
from trn_jax.models import GPT, GPTConfig, cross_entropy, split_model
from trn_jax.network import data_parallel, make_mesh, ring_all_reduce

CONFIG = GPTConfig(vocab_size=16, d_model=16, n_layers=1, n_heads=2, max_tokens=8)
FP32_RING = partial(ring_all_reduce, wire_format="fp32")


def losses_of(wrap, steps=4):
    """Losses of gradient descent on four batches of eight sequences; `wrap` may spread or emulate the gradient function."""
    apply, params = split_model(GPT(CONFIG))
    tokens_SBT = np.random.default_rng(0).integers(0, 16, (steps, 8, 9))
    value_and_grad = wrap(jax.value_and_grad(lambda p, tokens_BT: cross_entropy(apply(p, tokens_BT[:, :-1]), tokens_BT[:, 1:])))

    @jax.jit
    def step(params, tokens_BT):
        loss, gradients = value_and_grad(params, tokens_BT)
        return loss, jax.tree.map(lambda p, g: p - 0.5 * g, params, gradients)

    losses = []
    for tokens_BT in tokens_SBT:
        loss, params = step(params, jnp.asarray(tokens_BT))
        losses.append(float(loss))
    return np.array(losses)


@pytest.fixture(scope="module")
def one_device():
    losses = losses_of(lambda f: f)
    assert np.ptp(losses) > 0.01
    return losses


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow), pytest.param(8, marks=pytest.mark.slow)])
def test_gpt_with_an_fp32_ring_follows_one_device_to_rounding(ranks, one_device):
    mesh = make_mesh(ranks, devices=jax.devices("cpu"))
    assert np.abs(losses_of(lambda f: data_parallel(f, mesh, all_reduce=FP32_RING)) / one_device - 1).max() < 2.0**-20


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 8])
def test_gpt_with_a_bf16_wire_stays_close(ranks, one_device):
    mesh = make_mesh(ranks, devices=jax.devices("cpu"))
    assert np.abs(losses_of(lambda f: data_parallel(f, mesh)) / one_device - 1).max() < 2.0**-13


@pytest.mark.slow
def test_emulated_gpt_on_ranks_follows_the_emulated_gpt_on_one_device(one_device):
    emulate = partial(trn_jax.emulate, chip=trn_jax.load_chip("trainium2"), autocast=trn_jax.AutoCast("matmult", "bf16"))
    mesh = make_mesh(2, devices=jax.devices("cpu"))
    emulated = losses_of(emulate)
    assert (emulated != one_device).any()
    assert np.abs(losses_of(lambda f: data_parallel(emulate(f), mesh, all_reduce=FP32_RING)) / emulated - 1).max() < 2.0**-11
