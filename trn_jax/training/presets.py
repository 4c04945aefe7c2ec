"""Sizes that train well together with their learning rates: a table."""

from __future__ import annotations

import dataclasses

from trn_jax.errors import TrainingError, did_you_mean
from trn_jax.models.config import GPTConfig
from trn_jax.training.optimizer import OptimizerConfig


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Preset:
    """One row of the table.

    Attributes:
        model: The GPT.
        batch_size: Sequences per step.
        optimizer: Learning rate and its schedule.
        steps: Steps of a run that says nothing else.
    """

    model: GPTConfig
    batch_size: int
    optimizer: OptimizerConfig
    steps: int


PRESETS: dict[str, Preset] = {
    "tiny": Preset(
        model=GPTConfig(d_model=32, n_layers=2, n_heads=2, max_tokens=32),
        batch_size=16,
        optimizer=OptimizerConfig(learning_rate=1e-2, warmup_steps=10, decay_steps=400),
        steps=200,
    ),
    "small": Preset(
        model=GPTConfig(d_model=128, n_layers=4, n_heads=4, max_tokens=128),
        batch_size=16,
        optimizer=OptimizerConfig(learning_rate=3e-3, warmup_steps=20, decay_steps=600),
        steps=150,
    ),
    "medium": Preset(
        model=GPTConfig(d_model=256, n_layers=4, n_heads=4, max_tokens=256),
        batch_size=8,
        optimizer=OptimizerConfig(learning_rate=2e-3, warmup_steps=40, decay_steps=2000),
        steps=1000,
    ),
    "large": Preset(
        model=GPTConfig(
            d_model=512, n_layers=8, n_heads=8, n_kv_heads=2, max_tokens=512, activation="swiglu", scan_layers=True, remat=True
        ),
        batch_size=16,
        optimizer=OptimizerConfig(learning_rate=1e-3, warmup_steps=100, decay_steps=5000),
        steps=2000,
    ),
}


def get_preset(name: str) -> Preset:
    """The preset called `name`.

    Raises:
        TrainingError: There is none.
    """
    if name not in PRESETS:
        raise TrainingError(f"No preset is called {name!r}. " + did_you_mean(name, PRESETS))
    return PRESETS[name]
