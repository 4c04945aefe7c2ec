"""The loss scale follows what its gradients did, and a step with a gradient that is not finite leaves no trace but the scale."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import trn_jax
from trn_jax.errors import TrainingError
from trn_jax.training.history import read_history
from trn_jax.training.loss_scale import LossScaling
from trn_jax.training.recipes import RECIPES, get_recipe
from trn_jax.training.run import train
from trn_jax.training.step import emulate_step, initial_state, make_step

SCALING = LossScaling(initial=8.0, growth_interval=3, minimum=2.0, maximum=32.0)


@given(st.lists(st.booleans(), max_size=40))
@settings(deadline=None, max_examples=50)
def test_the_scale_halves_at_once_and_doubles_after_enough_good_steps(flags):
    state, scale, good = SCALING.start(), 8.0, 0
    after = jax.jit(SCALING.after)
    for finite in flags:
        state = after(state, jnp.asarray(finite))
        if not finite:
            scale, good = max(scale / 2, 2.0), 0
        elif good == 2:
            scale, good = min(scale * 2, 32.0), 0
        else:
            good += 1
        assert (float(state.scale), int(state.good_steps)) == (scale, good)


@pytest.mark.parametrize("changes", [{"initial": 0.5}, {"initial": 1000.0}, {"minimum": 0.0}, {"maximum": 1.0}, {"initial": float("nan")}])
def test_scales_that_are_no_powers_of_two_in_order_are_refused(changes):
    with pytest.raises(TrainingError, match=r"out of range; need powers of two with 2\^-100 <= minimum <= initial <= maximum"):
        LossScaling(**changes)


def test_an_interval_of_no_steps_is_refused():
    with pytest.raises(TrainingError, match=r"growth_interval is 0; it must be at least 1"):
        LossScaling(growth_interval=0)


def apply(params, tokens):
    """Logits that depend little on an fp16 weight: their gradient is about 2^-27."""
    return jnp.broadcast_to(params["w"] * params["w"].dtype.type(2**-13) * params["w"].dtype.type(2**-13), (*tokens.shape, 16))


def step_of(recipe):
    optimizer = optax.adam(1e-2)
    state = initial_state({"w": jnp.linspace(0.0, 1.0, 16)}, optimizer, recipe)
    return jax.jit(emulate_step(make_step(apply, optimizer, recipe), trn_jax.load_chip("trainium2"), recipe)), state


def scaled(**changes):
    return dataclasses.replace(get_recipe("fp16"), loss_scaling=LossScaling(**changes))


BATCH = jax.random.randint(jax.random.key(0), (4, 9), 0, 16)


def test_gradients_too_small_for_fp16_are_kept_by_the_scale():
    norm = lambda recipe: float(step_of(recipe)[0](step_of(recipe)[1], BATCH)[1]["gradient_norm"])
    exact = norm(get_recipe("fp32"))
    assert 2**-30 < exact < 2**-25
    np.testing.assert_allclose(norm(get_recipe("fp16")), exact, rtol=2**-8)
    assert norm(dataclasses.replace(get_recipe("fp16"), loss_scaling=None)) == 0


def test_a_step_whose_gradient_overflows_changes_the_scale_and_the_step_number_only():
    # The fp16 cotangent of the logits is infinite from a scale of about 2^17 on.
    step, state = step_of(scaled(initial=2.0**22, growth_interval=4))
    seen = []
    for _ in range(12):
        after, metrics = step(state, BATCH)
        finite = bool(np.isfinite(metrics["gradient_norm"]))
        same = jax.tree.map(np.array_equal, (state.params, state.moments), (after.params, after.moments))
        assert jax.tree.all(same) is not finite
        assert np.isfinite(metrics["loss"])
        assert float(metrics["loss_scale"]) == float(state.loss_scale.scale)
        seen.append((finite, np.log2(float(after.loss_scale.scale)) - np.log2(float(state.loss_scale.scale))))
        state = after
    assert int(state.step) == 12
    skipped = [change for finite, change in seen if not finite]
    grown = [change for finite, change in seen if finite]
    assert set(skipped) == {-1}
    assert set(grown) == {0, 1}


@pytest.mark.slow
def test_a_scaled_run_goes_on_bit_for_bit_and_records_its_scale(options, tmp_path, monkeypatch):
    monkeypatch.setitem(RECIPES, "fp16", scaled(initial=2.0**24, growth_interval=2))

    def run(say=lambda line: None, **changes):
        return train(options(precision="fp16", checkpoint_every=3, **changes), say=say, progress=False)

    whole = run(steps=12, out=tmp_path / "whole")
    run(steps=6, out=tmp_path / "parts")
    said = []
    parts = run(steps=12, out=tmp_path / "parts", resume=True, say=said.append)
    assert parts.validation_loss == whole.validation_loss
    records = read_history(tmp_path / "whole" / "history.jsonl")
    assert read_history(tmp_path / "parts" / "history.jsonl") == records
    assert records[0]["loss_scale"] == 2.0**24
    assert records[0]["gradient_norm"] is None
    skipped = sum(record["gradient_norm"] is None for record in records)
    assert f"loss scale {records[-1]['loss_scale']:,.0f} in the last step; {skipped} of 12 steps were left out" in "\n".join(said)
    assert records[1]["loss"] != records[0]["loss"]  # another batch, the same weights
    changes = {b["loss_scale"] / a["loss_scale"] for a, b in zip(records[:-1], records[1:], strict=True)}
    assert changes == {0.5, 1.0, 2.0}


@pytest.mark.slow
def test_a_gradient_that_overflows_at_the_least_scale_is_a_diverged_run(options, monkeypatch):
    monkeypatch.setitem(RECIPES, "fp16", scaled(initial=2.0**24, minimum=2.0**24))
    with pytest.raises(TrainingError, match=r"At step 0 the gradient norm is (nan|inf): the run has diverged"):
        train(options(precision="fp16"), say=lambda line: None, progress=False)
