"""Whole train steps of the GPT: what they compute and move, scanned over layers or not."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from traced_programs import hbm_bytes, shape

from trn_jax.chips import load_chip
from trn_jax.models import GPT, GPTConfig, cross_entropy, split_model
from trn_jax.timing.latency import latency
from trn_jax.timing.trace import trace
from trn_jax.units import MIB

TOKENS = shape(8, 256, dtype=jnp.int32)


def train_step(**changes):
    config = GPTConfig(vocab_size=256, d_model=256, n_layers=2, n_heads=4, max_tokens=256).replace(**changes)
    graph, params = split_model(GPT(config))
    optimizer = optax.adamw(1e-3)

    def loss(params, tokens, targets):
        return cross_entropy(graph(params, tokens), targets)

    def step(params, state, tokens, targets):
        value, grads = jax.value_and_grad(loss)(params, tokens, targets)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    shapes = jax.eval_shape(lambda params: (params, optimizer.init(params)), params)
    return loss, step, shapes


def test_a_train_step_multiplies_three_times_as_much_as_its_forward_pass():
    loss, step, (params, state) = train_step()
    forward, whole = trace(loss, params, TOKENS, TOKENS), trace(step, params, state, TOKENS, TOKENS)
    np.testing.assert_allclose(whole.flops, 3 * forward.flops, rtol=0.05)
    size_bytes = sum(leaf.size * 4 for leaf in jax.tree.leaves((params, state)))
    np.testing.assert_allclose(whole.compulsory_bytes, 2 * size_bytes, rtol=0.1)  # all of it comes in and goes out


def test_recomputation_multiplies_the_blocks_once_more():
    plain, remat = (trace(step, *shapes, TOKENS, TOKENS) for _, step, shapes in (train_step(), train_step(remat=True)))
    assert 1.2 * plain.flops < remat.flops < 1.34 * plain.flops
    assert hbm_bytes(remat, 8 * MIB) < hbm_bytes(plain, 8 * MIB)


@pytest.mark.parametrize("layers", [2, pytest.param(12, marks=pytest.mark.slow)])
def test_scanned_layers_cost_what_unrolled_ones_do(layers):
    programs = [trace(step, *shapes, TOKENS, TOKENS) for _, step, shapes in (train_step(n_layers=layers, scan_layers=s) for s in (0, 1))]
    assert len(programs[1].structure.loops) == (2 if layers > 8 else 0)
    assert programs[0].flops == programs[1].flops
    np.testing.assert_allclose(programs[1].compulsory_bytes, programs[0].compulsory_bytes, rtol=0.02)
    for size in (8, 24, 64):
        np.testing.assert_allclose(hbm_bytes(programs[1], size * MIB), hbm_bytes(programs[0], size * MIB), rtol=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("overlap", [0.0, 1.0])
def test_scanned_layers_take_as_long_as_unrolled_ones(overlap, monkeypatch):
    _, step, shapes = train_step(n_layers=12, scan_layers=True)
    rolled = trace(step, *shapes, TOKENS, TOKENS)
    monkeypatch.setattr("trn_jax.timing.flatten.UNROLLED_TRIPS", 1000)
    flat = trace(step, *shapes, TOKENS, TOKENS)
    chip = load_chip("trainium2")
    np.testing.assert_allclose(latency(rolled, chip, overlap=overlap), latency(flat, chip, overlap=overlap), rtol=0.03)
