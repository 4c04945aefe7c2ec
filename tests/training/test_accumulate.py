"""Parts of a batch, one after the other, give the gradient of the whole."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import trn_jax
from trn_jax.errors import TrainingError
from trn_jax.models import GPT, GPTConfig, split_model
from trn_jax.training.accumulate import accumulate
from trn_jax.training.optimizer import OptimizerConfig, make_optimizer
from trn_jax.training.recipes import get_recipe
from trn_jax.training.setup import set_up
from trn_jax.training.step import emulate_step, initial_state, make_step

CONFIG = GPTConfig(vocab_size=16, d_model=16, n_layers=1, n_heads=2, max_tokens=8)
OPTIMIZER = make_optimizer(OptimizerConfig(learning_rate=1e-2, warmup_steps=1, decay_steps=50))
BATCH = jax.random.randint(jax.random.key(0), (4, 9), 0, 16)


@pytest.mark.parametrize(("dtype", "mean"), [("float32", 1.0), ("bfloat16", 0.5)])
def test_512_gradients_of_one_have_a_mean_of_one_in_fp32_and_of_a_half_in_bf16(dtype, mean):
    # In bf16, 256 + 1 is 256.
    got = jax.jit(lambda batch: accumulate(lambda part, index: {"g": jnp.ones(3, jnp.bfloat16)}, batch, 512, dtype=dtype))(
        jnp.ones((512, 2), jnp.int32)
    )
    assert got["g"].dtype == dtype
    assert (got["g"] == mean).all()


def test_each_part_is_seen_once_with_its_index():
    batch = jnp.arange(24).reshape(6, 4)
    got = accumulate(lambda part, index: part.astype(jnp.float32) * 3.0 ** index.astype(jnp.float32), batch, 3)
    np.testing.assert_allclose(got, sum(3.0**i * batch[2 * i : 2 * i + 2] for i in range(3)) / 3, rtol=1e-6)


def build(name, parts, **options):
    recipe = get_recipe(name)
    apply, params = split_model(GPT(CONFIG.replace(compute_dtype=recipe.compute_dtype, dropout=0.5 if options else 0.0)))
    step = make_step(apply, OPTIMIZER, recipe, parts=parts, **options)
    return jax.jit(emulate_step(step, trn_jax.load_chip("trainium2"), recipe)), initial_state(params, OPTIMIZER, recipe)


# What is left is the order of fp32 sums, or that each part has scales of its own.
@pytest.mark.parametrize(("name", "bound"), [("fp32", 2**-20), pytest.param("fp8", 2**-3, marks=pytest.mark.slow)])
def test_a_step_in_parts_is_the_step_of_the_whole_batch(name, bound):
    (whole, state), (parts, _) = build(name, 1), build(name, 4)
    (_, expected), (after, metrics) = whole(state, BATCH), parts(state, BATCH)
    for key in ("loss", "gradient_norm"):
        np.testing.assert_allclose(metrics[key], expected[key], rtol=bound)
    moments = [jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(s.moments)]) for s in (after, whole(state, BATCH)[0])]
    assert float(jnp.linalg.norm(moments[0] - moments[1]) / jnp.linalg.norm(moments[1])) < bound


def test_every_part_drops_other_activations_and_every_step_does_again():
    run, state = build("fp32", 2, dropout_seed=1)
    loss = lambda state, batch: float(run(state, batch)[1]["loss"])
    later = state.__class__(step=jnp.uint32(1), params=state.params, moments=state.moments)
    assert loss(state, BATCH) == loss(state, BATCH)
    assert loss(state, BATCH) != loss(later, BATCH)
    assert loss(state, BATCH) != loss(state, jnp.roll(BATCH, 2, axis=0))  # with the same activations dropped, the order would not matter


def test_parts_add_up_on_every_rank_of_a_mesh():
    mesh = trn_jax.network.make_mesh(2, "data")
    mean = lambda batch: jax.lax.pmean(accumulate(lambda part, index: part.astype(jnp.float32).mean(), batch, 2), "data")
    batch = jnp.arange(32).reshape(8, 4)
    assert jax.shard_map(mean, mesh=mesh, in_specs=jax.P("data"), out_specs=jax.P())(batch) == batch.mean()


def test_a_batch_that_does_not_divide_is_refused(options):
    with pytest.raises(TrainingError, match=r"4 sequences does not divide into 3 parts"):
        accumulate(lambda part, index: part, BATCH, 3)
    with pytest.raises(TrainingError, match=r"4 sequences does not divide into --accumulate 3 parts. Make --batch-size a multiple"):
        set_up(options(accumulate=3))
    with pytest.raises(TrainingError, match=r"--accumulate is 0"):
        options(accumulate=0)
