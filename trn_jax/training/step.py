"""One training step as a pure function, and the same step with the arithmetic of a chip.

`step(state, batch) -> (state, metrics)` holds forward pass, backward pass and optimizer; `emulate_step` runs all three on the chip,
seeding stochastic rounding with the step number: with a constant seed the same weights would be rounded the same way every time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, UInt32

import trn_jax
from trn_jax.models.functional import Apply, Params
from trn_jax.models.loss import cross_entropy
from trn_jax.training.accumulate import accumulate
from trn_jax.training.loss_scale import LossScale
from trn_jax.training.recipes import Recipe

Metrics = dict[str, Float[Array, ""]]
Reduce = Callable[[Float[Array, ""], Params], tuple[Float[Array, ""], Params]]


@partial(jax.tree_util.register_dataclass, data_fields=["step", "params", "moments", "loss_scale"], meta_fields=[])
@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TrainState:
    """Everything a step changes.

    Attributes:
        step: Steps done.
        params: Weights, in the dtype the recipe keeps.
        moments: State of the optimizer, float32.
        loss_scale: Where the recipe scales the loss.
    """

    step: UInt32[Array, ""]
    params: Params
    moments: Any
    loss_scale: LossScale | None = None


Step = Callable[[TrainState, Int[Array, "B T1"]], tuple[TrainState, Metrics]]


def cast(params: Params, dtype: str) -> Params:
    """All weights in `dtype`."""
    return jax.tree.map(lambda leaf: leaf.astype(dtype), params)


def initial_state(params: Params, optimizer: optax.GradientTransformation, recipe: Recipe) -> TrainState:
    """The state before the first step, from float32 weights."""
    kept = cast(params, recipe.kept_dtype)
    return TrainState(
        step=jnp.zeros((), jnp.uint32),
        params=kept,
        moments=optimizer.init(cast(kept, "float32")),
        loss_scale=None if recipe.loss_scaling is None else recipe.loss_scaling.start(),
    )


def batch_loss(apply: Apply, params: Params, batch_BT1: Int[Array, "B T1"], **kwargs: Any) -> Float[Array, ""]:
    """Mean loss in nats of predicting each token from those before it."""
    return cross_entropy(apply(params, batch_BT1[:, :-1], **kwargs), batch_BT1[:, 1:])


def make_step(
    apply: Apply,
    optimizer: optax.GradientTransformation,
    recipe: Recipe,
    *,
    dropout_seed: int | None = None,
    reduce: Reduce | None = None,
    parts: int = 1,
) -> Step:
    """Builds the pure step, in plain JAX arithmetic.

    Args:
        apply: The model, from `split_model`.
        optimizer: From `make_optimizer`.
        recipe: In which dtypes weights are kept and read, and whether the loss is scaled.
        dropout_seed: Turns dropout on, with keys from this seed, the step and the part of the batch.
        reduce: Applied to loss and gradients (scaled, if the recipe does) before the update; where data-parallel ranks average them.
        parts: Parts of the batch that follow one another, their gradients summed in float32; see `accumulate`.

    Returns:
        `step(state, batch)`. The metrics are the loss of the batch before the update and the norm of its gradient, both float32, and
        with loss scaling `loss_scale`, the scale of this step. A step whose scaled gradient is not finite changes the scale and the
        step number only; the norm shows it.
    """

    def gradient(state: TrainState, batch_BT1: Int[Array, "B T1"]) -> tuple[Float[Array, ""], Params]:
        """Loss, and gradients of the scaled loss."""
        read = cast(state.params, recipe.read_dtype)

        def of_part(part_BT1: Int[Array, "B T1"], index: Any) -> tuple[Float[Array, ""], Params]:
            dropout = {}
            if dropout_seed is not None:
                key = jax.random.fold_in(jax.random.key(dropout_seed), state.step)
                dropout = {"dropout_key": key if parts == 1 else jax.random.fold_in(key, index)}

            def scaled_loss(params: Params) -> tuple[Float[Array, ""], Float[Array, ""]]:
                loss = batch_loss(apply, params, part_BT1, **dropout)
                return (loss if state.loss_scale is None else loss * state.loss_scale.scale), loss

            (_, loss), gradients = jax.value_and_grad(scaled_loss, has_aux=True)(read)
            return loss, gradients

        return of_part(batch_BT1, 0) if parts == 1 else accumulate(of_part, batch_BT1, parts)

    def step(state: TrainState, batch_BT1: Int[Array, "B T1"]) -> tuple[TrainState, Metrics]:
        loss, gradients = gradient(state, batch_BT1)
        if reduce is not None:
            loss, gradients = reduce(loss, gradients)
        with jax.named_scope("optimizer"):
            gradients, weights = cast(gradients, "float32"), cast(state.params, "float32")
            if state.loss_scale is not None:
                inverse = 1.0 / state.loss_scale.scale  # exact: scales are powers of two
                gradients = jax.tree.map(lambda g: g * inverse, gradients)
            updates, moments = optimizer.update(gradients, state.moments, weights)
            params = cast(jax.tree.map(jnp.add, weights, updates), recipe.kept_dtype)
            metrics = {"loss": loss, "gradient_norm": optax.tree.norm(gradients)}
            loss_scale = state.loss_scale
            if recipe.loss_scaling is not None and state.loss_scale is not None:
                metrics["loss_scale"] = state.loss_scale.scale
                finite = jnp.isfinite(metrics["gradient_norm"])
                params, moments = jax.tree.map(partial(jnp.where, finite), (params, moments), (state.params, state.moments))
                loss_scale = recipe.loss_scaling.after(state.loss_scale, finite)
        return TrainState(step=state.step + jnp.uint32(1), params=params, moments=moments, loss_scale=loss_scale), metrics

    return step


def emulation_options(recipe: Recipe, fidelity: str) -> dict[str, Any]:
    """What a recipe means to `trn_jax.emulate`, apart from the seed."""
    return {"autocast": recipe.autocast, "rounding": recipe.rounding, "fidelity": fidelity}


def emulate_step(step: Step, chip: Any, recipe: Recipe, *, fidelity: str = "fused") -> Step:
    """The step as `chip` computes it; still a pure function, for `jax.jit`, `shard_map` and so on."""

    def emulated(state: TrainState, batch_BT1: Int[Array, "B T1"]) -> tuple[TrainState, Metrics]:
        return trn_jax.emulate(step, chip, seed=state.step, **emulation_options(recipe, fidelity))(state, batch_BT1)

    return emulated
