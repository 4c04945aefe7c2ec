"""What each precision recipe does to the numbers of a step."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import trn_jax
from trn_jax.models import GPT, GPTConfig, split_model
from trn_jax.models.attention import MASKED_SCORE, mask_scores
from trn_jax.training.history import read_history
from trn_jax.training.identity import require_same
from trn_jax.training.recipes import RECIPES, get_recipe
from trn_jax.training.run import train
from trn_jax.training.setup import set_up
from trn_jax.training.step import batch_loss, cast, emulate_step, emulation_options, initial_state, make_step

TRN2 = trn_jax.load_chip("trainium2")
CONFIG = GPTConfig(vocab_size=16, d_model=16, n_layers=1, n_heads=2, max_tokens=8)
BATCH = jax.random.randint(jax.random.key(0), (2, 9), 0, 16)


def test_the_fp8_recipe_multiplies_in_fp8_and_does_the_rest_in_bf16():
    recipe = get_recipe("fp8")
    apply, params = split_model(GPT(CONFIG.replace(compute_dtype=recipe.compute_dtype)))
    gradient = jax.grad(lambda params: batch_loss(apply, params, BATCH))
    shapes = jax.eval_shape(lambda: cast(params, recipe.read_dtype))
    casts = list(trn_jax.cast_report(gradient, TRN2, autocast=recipe.autocast)(shapes))
    operands = [c for c in casts if c.role != "write"]
    assert {(c.from_format, c.to_format) for c in operands} == {("bf16", "fp8_e4m3"), ("bf16", "fp8_e5m2")}
    assert all(("transpose(" in c.scope) for c in operands if c.to_format == "fp8_e5m2")
    assert {c.to_format for c in casts if c.role == "write"} == {"bf16"}


@pytest.mark.parametrize("name", ["bf16", "fp16", "fp8"])
def test_scalars_of_the_optimizer_are_fp32_on_the_chip(name):
    # In bf16 0.999 is 1, and the second moment would stay 0.
    recipe, optimizer = get_recipe(name), optax.adam(1e-3, b2=0.999)
    apply = lambda params, tokens: params["w"].astype(recipe.compute_dtype)[tokens]
    step = make_step(apply, optimizer, recipe)
    state = initial_state({"w": jnp.eye(16)}, optimizer, recipe)
    after, metrics = jax.jit(emulate_step(step, TRN2, recipe))(state, BATCH)
    (adam, _), norm = after.moments, float(metrics["gradient_norm"])
    assert norm > 0
    np.testing.assert_allclose(float(adam.nu["w"].sum()), np.float32(1 - 0.999) * norm**2, rtol=1e-4)
    assert float(optimizer.update({"w": jnp.zeros((16, 16))}, after.moments, after.params)[1][0].nu["w"].sum()) < float(adam.nu["w"].sum())


@pytest.mark.parametrize("name", RECIPES)
def test_masked_scores_are_finite_in_every_recipe(name):
    dtype = get_recipe(name).compute_dtype
    scores = mask_scores(jnp.ones((2, 4), dtype), jnp.array([[True, False, False, False], [False] * 4]))
    assert jnp.isfinite(scores).all()
    weights = trn_jax.emulate(lambda x: jax.nn.softmax(x.astype(jnp.float32)), TRN2, **emulation_options(get_recipe(name), "fused"), seed=0)
    np.testing.assert_array_equal(weights(scores), [[1, 0, 0, 0], [0.25] * 4])
    assert MASKED_SCORE + jnp.asarray(MASKED_SCORE, dtype) > -jnp.inf


@pytest.mark.slow
@pytest.mark.parametrize(
    ("precision", "changes"),
    [("fp8", {"dropout": 0.2, "accumulate": 2}), ("bf16-sr", {"dropout": 0.2, "accumulate": 4})],
)
def test_dropout_parts_and_data_are_the_same_after_a_resume(options, tmp_path, precision, changes):
    run = lambda **more: train(options(precision=precision, checkpoint_every=2, **changes, **more), say=lambda line: None, progress=False)
    whole = run(steps=4, out=tmp_path / "whole")
    run(steps=2, out=tmp_path / "parts")
    resumed = run(steps=4, out=tmp_path / "parts", resume=True)
    assert resumed.validation_loss == whole.validation_loss
    assert read_history(tmp_path / "parts" / "history.jsonl") == read_history(tmp_path / "whole" / "history.jsonl")


def test_a_run_with_another_dropout_or_number_of_parts_is_another_run(options):
    one, other = (set_up(options(**changes)).identity for changes in ({}, {"dropout": 0.1, "accumulate": 2}))
    with pytest.raises(trn_jax.TrainingError, match=r"model.dropout: 0.0 there, 0.1 here; accumulate: 1 there, 2 here"):
        require_same(one, other, "a")
    with pytest.raises(trn_jax.TrainingError, match=r"--dropout is 1.0; it must be at least 0 and below 1"):
        options(dropout=1.0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fp16", "fp8"])
def test_a_narrow_recipe_learns_about_as_well_as_fp32(name, options, tmp_path):
    run = lambda precision: train(options(precision=precision, steps=80, out=tmp_path / precision), say=lambda line: None, progress=False)
    exact, narrow = run("fp32"), run(name)
    assert exact.loss_mean < 0.7 * exact.loss_first
    assert abs(narrow.loss_mean - exact.loss_mean) < 0.05 * exact.loss_mean
