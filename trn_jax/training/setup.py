"""From what the user said to everything a run needs: chip, text, model, step, identity."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float

import trn_jax
from trn_jax.errors import TrainingError
from trn_jax.models.config import GPTConfig
from trn_jax.models.functional import Apply, Params, split_model
from trn_jax.models.gpt import GPT
from trn_jax.training.batches import Batch, training_batch
from trn_jax.training.identity import Identity
from trn_jax.training.optimizer import make_optimizer
from trn_jax.training.options import TrainOptions
from trn_jax.training.presets import get_preset
from trn_jax.training.recipes import Recipe, get_recipe
from trn_jax.training.step import Step, TrainState, batch_loss, cast, emulate_step, emulation_options, initial_state, make_step
from trn_jax.training.text import VOCABULARY, Text, load_text


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """A run before its first step.

    Attributes:
        options: What the user said.
        steps: Steps to reach.
        chip: The emulated chip.
        model: Sizes and choices of the GPT.
        batch_size: Sequences per step.
        recipe: Precision.
        text: What is learnt.
        apply: The model as a function of its weights.
        state: The state before step 0.
        pure_step: The step in plain JAX arithmetic.
        step: The step on the chip.
        identity: What must be equal for a checkpoint to be of this run.
    """

    options: TrainOptions
    steps: int
    chip: Any
    model: GPTConfig
    batch_size: int
    recipe: Recipe
    text: Text
    apply: Apply
    state: TrainState
    pure_step: Step
    step: Step
    identity: Identity

    def batch(self, step: int) -> Batch:
        """The sequences of a step."""
        return training_batch(self.text, seed=self.options.seed, step=step, batch_size=self.batch_size, max_tokens=self.model.max_tokens)

    def on_chip(self, function: Callable[..., Array]) -> Callable[..., Array]:
        """`f(params, tokens)` as a jitted `f(params, tokens, seed)` with the chip's arithmetic and the recipe's weights."""

        def emulated(params: Params, tokens: Array, seed: Array) -> Array:
            run = trn_jax.emulate(function, self.chip, seed=seed, **emulation_options(self.recipe, self.options.fidelity))
            return run(cast(params, self.recipe.read_dtype), tokens)

        return jax.jit(emulated)

    def loss(self, params: Params, batch: Array) -> Float[Array, ""]:
        """Loss of a batch, without dropout."""
        return batch_loss(self.apply, params, batch)


def set_up(options: TrainOptions) -> Setup:
    """Builds a run.

    Raises:
        TrainingError: The text cannot be used, or a number is out of range.
        ChipError: The chip cannot be loaded.
        FormatError: The chip cannot compute in the recipe's formats.
    """
    preset, recipe = get_preset(options.preset), get_recipe(options.precision)
    chip = trn_jax.load_chip(options.chip)
    model = preset.model.replace(vocab_size=VOCABULARY, compute_dtype=recipe.compute_dtype)
    if options.dropout is not None:
        model = model.replace(dropout=options.dropout)
    text = load_text(options.text, model.max_tokens)
    scalars = preset.optimizer
    if options.learning_rate is not None:
        scalars = dataclasses.replace(scalars, learning_rate=options.learning_rate)
    batch_size = options.batch_size or preset.batch_size
    if batch_size % options.accumulate:
        raise TrainingError(
            f"A step of {batch_size} sequences does not divide into --accumulate {options.accumulate} parts. Make --batch-size a multiple."
        )
    apply, params = split_model(GPT(model, seed=options.seed))
    optimizer = make_optimizer(scalars)
    pure_step = make_step(apply, optimizer, recipe, dropout_seed=options.seed if model.dropout else None, parts=options.accumulate)
    identity = {
        "preset": options.preset,
        "model": dataclasses.asdict(model),
        "precision": options.precision,
        "fidelity": options.fidelity,
        "chip": chip.name,
        "chip_numbers": _digest(chip),
        "text": {"size_bytes": text.size_bytes, "sha256": text.sha256},
        "optimizer": dataclasses.asdict(scalars),
        "batch_size": batch_size,
        "accumulate": options.accumulate,
        "seed": options.seed,
    }
    return Setup(
        options=options,
        steps=options.steps or preset.steps,
        chip=chip,
        model=model,
        batch_size=batch_size,
        recipe=recipe,
        text=text,
        apply=apply,
        state=initial_state(params, optimizer, recipe),
        pure_step=pure_step,
        step=emulate_step(pure_step, chip, recipe, fidelity=options.fidelity),
        identity=identity,
    )


def _digest(chip: Any) -> str:
    """Short hash of all numbers of a chip, so that an edited chip file is noticed."""
    numbers = np.asarray([float(leaf) for leaf in jax.tree.leaves(chip)], np.float64)
    return hashlib.sha256(numbers.tobytes()).hexdigest()[:12]
