"""Train steps of a linen and an NNX transformer, as their users write them, run on the chip and have a time."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import trn_jax

IDEAL, TRN2 = trn_jax.load_chip("ideal"), trn_jax.load_chip("trainium2")
TOKENS = jnp.arange(24, dtype=jnp.int32).reshape(2, 12) % 11


class LinenBlock(nn.Module):
    @nn.compact
    def __call__(self, x, _):
        y = nn.MultiHeadDotProductAttention(num_heads=2, dropout_rate=0.1, deterministic=False)(
            nn.LayerNorm()(x), mask=nn.make_causal_mask(TOKENS)
        )
        x = x + nn.Dropout(0.1, deterministic=False)(y)
        return x + nn.Dense(16)(nn.gelu(nn.Dense(32)(nn.RMSNorm()(x)))), None


class LinenTransformer(nn.Module):
    @nn.compact
    def __call__(self, tokens):
        x = nn.Embed(11, 16)(tokens)
        block = nn.remat(LinenBlock, prevent_cse=False)
        x, _ = nn.scan(block, variable_axes={"params": 0}, split_rngs={"params": True, "dropout": True}, length=3)()(x, None)
        return nn.Dense(11)(x)


class NNXBlock(nnx.Module):
    def __init__(self, rngs):
        self.norm = nnx.LayerNorm(16, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(num_heads=2, in_features=16, decode=False, rngs=rngs)
        self.up, self.down = nnx.Linear(16, 32, rngs=rngs), nnx.Linear(32, 16, rngs=rngs)

    def __call__(self, x):
        x = x + self.attention(self.norm(x), mask=nnx.make_causal_mask(TOKENS))
        return x + self.down(nnx.silu(self.up(x)))


class NNXTransformer(nnx.Module):
    def __init__(self, rngs):
        self.embed = nnx.Embed(11, 16, rngs=rngs)
        self.blocks = nnx.List([NNXBlock(rngs) for _ in range(2)])
        self.head = nnx.Linear(16, 11, rngs=rngs)

    def __call__(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def linen_step():
    model = LinenTransformer()
    params = model.init({"params": jax.random.key(0), "dropout": jax.random.key(1)}, TOKENS)
    return make_step(lambda p: model.apply(p, TOKENS, rngs={"dropout": jax.random.key(2)}), params)


def nnx_step():
    graphdef, params = nnx.split(NNXTransformer(nnx.Rngs(0)), nnx.Param)
    return make_step(lambda p: nnx.merge(graphdef, p)(TOKENS), params)


def make_step(forward, params):
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))

    def step(params, state):
        loss = lambda p: optax.softmax_cross_entropy_with_integer_labels(forward(p)[:, :-1], TOKENS[:, 1:]).mean()
        value, gradient = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state, value

    return step, params, optimizer.init(params)


@pytest.mark.parametrize("make", [pytest.param(linen_step, marks=pytest.mark.slow), nnx_step])
def test_a_train_step_is_plain_jax_on_the_ideal_chip(make):
    with jax.numpy_rank_promotion("allow"):
        step, *args = make()
        plain, ideal = jax.jit(step)(*args), jax.jit(trn_jax.emulate(step, IDEAL, fidelity="fused"))(*args)
    for a, b in zip(jax.tree.leaves(ideal), jax.tree.leaves(plain), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("make", [pytest.param(linen_step, marks=pytest.mark.slow), nnx_step])
def test_a_train_step_learns_in_stochastic_bf16_and_has_a_time(make):
    with jax.numpy_rank_promotion("allow"):
        step, params, state = make()
        bf16 = trn_jax.AutoCast("matmult", "bf16")
        run = jax.jit(lambda seed, *args: trn_jax.emulate(step, TRN2, autocast=bf16, rounding="stochastic", seed=seed)(*args))
        losses = []
        for i in range(8):
            params, state, loss = run(jnp.uint32(i), params, state)
            losses.append(float(loss))
        program = trn_jax.trace(step, params, state, autocast=bf16)
    assert losses[-1] < losses[0]
    assert float(trn_jax.latency(program, TRN2)) > 0


def test_an_nnx_module_is_an_argument_like_any_other():
    model = NNXTransformer(nnx.Rngs(0))
    with jax.numpy_rank_promotion("allow"):
        out = trn_jax.emulate(lambda model, tokens: model(tokens), IDEAL, fidelity="fused")(model, TOKENS)
        np.testing.assert_allclose(out, model(TOKENS), rtol=1e-5, atol=1e-5)


def test_a_module_changed_in_place_is_refused_unless_it_is_returned():
    def train(model, tokens):
        model.head.bias[...] += 1.0
        return model(tokens).sum()

    def returned(model):
        model.head.bias[...] += 1.0
        return model

    with pytest.raises(trn_jax.UnsupportedError, match=r"changes the NNXTransformer it is given.*nnx\.split"):
        trn_jax.emulate(train, TRN2)(NNXTransformer(nnx.Rngs(0)), TOKENS)
    assert float(trn_jax.emulate(returned, TRN2)(NNXTransformer(nnx.Rngs(0))).head.bias[0]) == 1.0
