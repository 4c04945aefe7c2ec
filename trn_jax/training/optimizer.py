"""AdamW with warm-up, cosine decay and gradient clipping; its state and its scalars are float32 whatever the weights are.

`m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;  w -= lr (m / (sqrt(v) + eps) + decay w)`, with m and v bias-corrected. In bf16 the
usual b2 = 0.999 is 1, and v would never move: that is why nothing of this is bf16.
"""

from __future__ import annotations

import dataclasses
import math

import jax
import numpy as np
import optax

from trn_jax.errors import TrainingError
from trn_jax.models.functional import Params


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class OptimizerConfig:
    """Scalars of the optimizer.

    Attributes:
        learning_rate: Its peak, reached after the warm-up.
        warmup_steps: Steps of linear growth from zero.
        decay_steps: Step at which the cosine has come down to a tenth of the peak; it stays there. Independent of how long a run is, so
            that a run can be prolonged.
        beta1: Decay of the first moment.
        beta2: Decay of the second moment.
        weight_decay: Decoupled decay of the matrices (not of norms and embeddings).
        clip_norm: Gradients longer than this are shortened to it.

    Raises:
        TrainingError: A value is out of range; a beta that float32 rounds to one is.
    """

    learning_rate: float
    warmup_steps: int
    decay_steps: int
    beta1: float = 0.9
    beta2: float = 0.99
    weight_decay: float = 0.1
    clip_norm: float = 1.0

    def __post_init__(self) -> None:
        for name in ("beta1", "beta2"):
            value = getattr(self, name)
            if not 0.0 <= value or not np.float32(value) < 1.0:
                raise TrainingError(f"{name} is {value!r}; it must be at least 0 and below 1 in float32, or its moment never moves.")
        for name in ("learning_rate", "clip_norm"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0.0):
                raise TrainingError(f"{name} is {value!r}; it must be a positive number.")
        if not (math.isfinite(self.weight_decay) and self.weight_decay >= 0.0):
            raise TrainingError(f"weight_decay is {self.weight_decay!r}; it must be a number of at least 0.")
        if not 0 <= self.warmup_steps < self.decay_steps:
            raise TrainingError(
                f"warmup_steps is {self.warmup_steps} and decay_steps {self.decay_steps}; need 0 <= warmup_steps < decay_steps."
            )


def make_optimizer(config: OptimizerConfig) -> optax.GradientTransformation:
    """The optax transformation; feed it float32 gradients and weights, and it keeps float32 moments."""
    schedule = optax.warmup_cosine_decay_schedule(
        0.0, config.learning_rate, config.warmup_steps, config.decay_steps, end_value=0.1 * config.learning_rate
    )
    adamw = optax.adamw(schedule, b1=config.beta1, b2=config.beta2, weight_decay=config.weight_decay, mask=_is_matrix)
    return optax.chain(optax.clip_by_global_norm(config.clip_norm), adamw)


def _is_matrix(params: Params) -> Params:
    """True for the kernels of linear maps (by name: stacked norms of scanned layers have two axes as well)."""
    return jax.tree_util.tree_map_with_path(lambda path, _: path[-1] == jax.tree_util.DictKey("kernel_IO"), params)
