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
from trn_jax.training.recipes import Recipe

Metrics = dict[str, Float[Array, ""]]
Reduce = Callable[[Float[Array, ""], Params], tuple[Float[Array, ""], Params]]


@partial(jax.tree_util.register_dataclass, data_fields=["step", "params", "moments"], meta_fields=[])
@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TrainState:
    """Everything a step changes.

    Attributes:
        step: Steps done.
        params: Weights, in the dtype the recipe keeps.
        moments: State of the optimizer, float32.
    """

    step: UInt32[Array, ""]
    params: Params
    moments: Any


Step = Callable[[TrainState, Int[Array, "B T1"]], tuple[TrainState, Metrics]]


def cast(params: Params, dtype: str) -> Params:
    """All weights in `dtype`."""
    return jax.tree.map(lambda leaf: leaf.astype(dtype), params)


def initial_state(params: Params, optimizer: optax.GradientTransformation, recipe: Recipe) -> TrainState:
    """The state before the first step, from float32 weights."""
    kept = cast(params, recipe.kept_dtype)
    return TrainState(step=jnp.zeros((), jnp.uint32), params=kept, moments=optimizer.init(cast(kept, "float32")))


def batch_loss(apply: Apply, params: Params, batch_BT1: Int[Array, "B T1"], **kwargs: Any) -> Float[Array, ""]:
    """Mean loss in nats of predicting each token from those before it."""
    return cross_entropy(apply(params, batch_BT1[:, :-1], **kwargs), batch_BT1[:, 1:])


def make_step(
    apply: Apply, optimizer: optax.GradientTransformation, recipe: Recipe, *, dropout_seed: int | None = None, reduce: Reduce | None = None
) -> Step:
    """Builds the pure step, in plain JAX arithmetic.

    Args:
        apply: The model, from `split_model`.
        optimizer: From `make_optimizer`.
        recipe: In which dtypes weights are kept and read.
        dropout_seed: Turns dropout on, with keys from this seed and the step.
        reduce: Applied to loss and gradients before the update; where data-parallel ranks average them.

    Returns:
        `step(state, batch)`. The metrics are the loss of the batch before the update and the norm of its gradient, both float32.
    """

    def step(state: TrainState, batch_BT1: Int[Array, "B T1"]) -> tuple[TrainState, Metrics]:
        dropout = {} if dropout_seed is None else {"dropout_key": jax.random.fold_in(jax.random.key(dropout_seed), state.step)}
        read = cast(state.params, recipe.read_dtype)
        loss, gradients = jax.value_and_grad(lambda params: batch_loss(apply, params, batch_BT1, **dropout))(read)
        if reduce is not None:
            loss, gradients = reduce(loss, gradients)
        with jax.named_scope("optimizer"):
            gradients, weights = cast(gradients, "float32"), cast(state.params, "float32")
            updates, moments = optimizer.update(gradients, state.moments, weights)
            params = cast(jax.tree.map(jnp.add, weights, updates), recipe.kept_dtype)
            metrics = {"loss": loss, "gradient_norm": optax.tree.norm(gradients)}
        return TrainState(step=state.step + jnp.uint32(1), params=params, moments=moments), metrics

    return step


def autocast(recipe: Recipe) -> trn_jax.AutoCast | None:
    """The recipe's matrix operand format as emulation and timing take it."""
    return None if recipe.operand_format is None else trn_jax.AutoCast("matmult", recipe.operand_format)


def emulation_options(recipe: Recipe, fidelity: str) -> dict[str, Any]:
    """What a recipe means to `trn_jax.emulate`, apart from the seed."""
    return {"autocast": autocast(recipe), "rounding": recipe.rounding, "fidelity": fidelity}


def emulate_step(step: Step, chip: Any, recipe: Recipe, *, fidelity: str = "fused") -> Step:
    """The step as `chip` computes it; still a pure function, for `jax.jit`, `shard_map` and so on."""

    def emulated(state: TrainState, batch_BT1: Int[Array, "B T1"]) -> tuple[TrainState, Metrics]:
        return trn_jax.emulate(step, chip, seed=state.step, **emulation_options(recipe, fidelity))(state, batch_BT1)

    return emulated
