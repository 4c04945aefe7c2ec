import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import trn_jax
from trn_jax.models import GPT, GPTConfig, split_model
from trn_jax.training.optimizer import OptimizerConfig, make_optimizer
from trn_jax.training.recipes import RECIPES, Precision, get_recipe
from trn_jax.training.step import cast, emulate_step, initial_state, make_step

CONFIG = GPTConfig(vocab_size=16, d_model=16, n_layers=1, n_heads=2, max_tokens=8)
BATCH = jax.random.randint(jax.random.key(0), (2, 9), 0, 16)
OPTIMIZER = make_optimizer(OptimizerConfig(learning_rate=1e-2, warmup_steps=1, decay_steps=50))


def build(name, **changes):
    recipe = get_recipe(name)
    apply, params = split_model(GPT(CONFIG.replace(compute_dtype=recipe.compute_dtype, **changes)))
    return recipe, make_step(apply, OPTIMIZER, recipe), initial_state(params, OPTIMIZER, recipe)


def test_the_flag_lists_the_recipes_of_the_table():
    assert set(Precision.__args__) == set(RECIPES)
    with pytest.raises(trn_jax.TrainingError, match=r"Did you mean 'bf16-sr'"):
        get_recipe("bf16_sr")


def test_on_the_ideal_chip_the_step_equals_plain_jax_bit_for_bit():
    recipe, step, state = build("fp32")
    emulated = jax.jit(emulate_step(step, trn_jax.load_chip("ideal"), recipe))
    plain, there, here = jax.jit(step), state, state
    for _ in range(2):
        (here, here_metrics), (there, there_metrics) = emulated(here, BATCH), plain(there, BATCH)
    jax.tree.map(np.testing.assert_array_equal, (here, here_metrics), (there, there_metrics))
    assert here.step == 2


@pytest.mark.parametrize(
    "name", ["bf16", pytest.param("bf16-sr", marks=pytest.mark.slow), "bf16-master", pytest.param("fp16", marks=pytest.mark.slow), "fp8"]
)
def test_weights_keep_their_dtype_and_moments_are_float32(name):
    recipe, step, state = build(name)
    after, metrics = jax.jit(emulate_step(step, trn_jax.load_chip("trainium2"), recipe))(state, BATCH)
    assert {leaf.dtype for leaf in jax.tree.leaves(after.params)} == {jnp.dtype(recipe.kept_dtype)}
    assert {leaf.dtype for leaf in jax.tree.leaves(after.moments)} == {jnp.dtype(jnp.float32), jnp.dtype(jnp.int32)}
    assert {leaf.dtype for leaf in jax.tree.leaves(metrics)} == {jnp.dtype(jnp.float32)}
    assert jax.tree.structure(after) == jax.tree.structure(state)


def constant_update(size):
    """An optimizer that lowers every weight by `size`."""
    return optax.GradientTransformation(
        lambda params: (), lambda updates, state, params: (jax.tree.map(lambda g: g * 0 - size, updates), state)
    )


@pytest.mark.parametrize(("name", "mean"), [("fp32", 0.6), ("bf16-sr", 0.6), ("bf16-rne", 1.0), ("bf16-master", 0.6)])
def test_updates_below_half_an_ulp_survive_as_the_recipe_says(name, mean):
    # The next bf16 below 1 is 1 - 2^-8: a step of 1e-3 is a quarter of the way.
    recipe, optimizer = get_recipe(name), constant_update(1e-3)
    step = make_step(lambda params, tokens: params["w"][:, None, None] * jnp.zeros((1, 8, 16)), optimizer, recipe)
    state = initial_state({"w": jnp.ones((256,))}, optimizer, recipe)
    run = emulate_step(step, trn_jax.load_chip("trainium2"), recipe)
    batch = jnp.zeros((256, 9), jnp.int32)
    after = jax.jit(lambda state: jax.lax.scan(lambda carry, _: (run(carry, batch)[0], None), state, length=400)[0])(state)
    assert abs(float(jnp.mean(cast(after.params, "float32")["w"])) - mean) < 0.01


def test_stochastic_rounding_draws_new_bits_every_step():
    recipe, optimizer = get_recipe("bf16-sr"), constant_update(1e-3)
    step = make_step(lambda params, tokens: params["w"][:, None, None] * jnp.zeros((1, 8, 16)), optimizer, recipe)
    state = initial_state({"w": jnp.ones((256,))}, optimizer, recipe)
    run = jax.jit(emulate_step(step, trn_jax.load_chip("trainium2"), recipe))
    batch = jnp.zeros((256, 9), jnp.int32)
    moved = [run(state.__class__(step=jnp.uint32(n), params=state.params, moments=()), batch)[0].params["w"] != 1 for n in (3, 3, 4)]
    np.testing.assert_array_equal(moved[0], moved[1])
    assert (moved[0] != moved[2]).any()
    assert 0.15 < float(moved[0].mean()) < 0.36


def test_ranks_may_average_loss_and_gradients():
    recipe = get_recipe("fp32")
    apply, params = split_model(GPT(CONFIG))
    state = initial_state(params, OPTIMIZER, recipe)
    averaged = make_step(apply, OPTIMIZER, recipe, reduce=lambda *parts: jax.lax.pmean(parts, "ranks"))
    batches = jnp.stack([BATCH, (BATCH + 3) % 16])
    ranks, metrics = jax.jit(jax.vmap(averaged, (None, 0), axis_name="ranks"))(state, batches)
    together, _ = jax.jit(make_step(apply, OPTIMIZER, recipe))(state, batches.reshape(4, 9))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a[0], b, atol=1e-6), ranks.params, together.params)
    assert metrics["loss"][0] == metrics["loss"][1]


def test_dropout_in_a_step_depends_on_its_seed_and_its_step():
    recipe = get_recipe("fp32")
    apply, params = split_model(GPT(CONFIG.replace(dropout=0.5)))
    state = initial_state(params, OPTIMIZER, recipe)
    run = jax.jit(make_step(apply, OPTIMIZER, recipe, dropout_seed=1))
    later = state.__class__(step=jnp.uint32(1), params=state.params, moments=state.moments)
    first, same, other = (run(s, BATCH)[1]["loss"] for s in (state, state, later))
    assert first == same
    assert first != other


@pytest.mark.slow
def test_one_batch_is_learnt_by_heart():
    recipe = get_recipe("bf16")
    apply, params = split_model(GPT(GPTConfig(vocab_size=64, d_model=32, n_layers=2, n_heads=2, max_tokens=32)))
    optimizer = make_optimizer(OptimizerConfig(learning_rate=1e-2, warmup_steps=10, decay_steps=400, weight_decay=0.0))
    state = initial_state(params, optimizer, recipe)
    step = jax.jit(emulate_step(make_step(apply, optimizer, recipe), trn_jax.load_chip("trainium2"), recipe), donate_argnums=0)
    batch = jax.random.randint(jax.random.key(1), (8, 33), 0, 64)
    for _ in range(200):
        state, metrics = step(state, batch)
    assert float(metrics["loss"]) < 0.1
