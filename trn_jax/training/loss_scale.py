"""Dynamic loss scaling: the loss is multiplied by a power of two, as large as its gradients bear, before it is differentiated.

    gradient not finite:                   scale = max(scale / 2, minimum), and the update is left out
    finite `growth_interval` times on end: scale = min(2 scale, maximum)

Cotangents in fp16 are lost below 2^-25 and infinite from 65520 on. Powers of two change no bit of a gradient that stays between.
"""

from __future__ import annotations

import dataclasses
import math
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float32, Int32

from trn_jax.errors import TrainingError


@partial(jax.tree_util.register_dataclass, data_fields=["scale", "good_steps"], meta_fields=[])
@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LossScale:
    """The scale of the next step.

    Attributes:
        scale: What the loss is multiplied by.
        good_steps: Steps with finite gradients since the scale last changed.
    """

    scale: Float32[Array, ""]
    good_steps: Int32[Array, ""]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LossScaling:
    """How a scale starts and moves.

    Attributes:
        initial: First scale, the usual one of fp16 training (Micikevicius et al., arXiv:1710.03740, and most libraries since).
        growth_interval: Finite steps after which the scale doubles. Libraries take 2000; runs here are shorter.
        minimum: Least scale.
        maximum: Largest scale.

    Raises:
        TrainingError: The scales are not powers of two in order, or the interval is not positive.
    """

    initial: float = 2.0**16
    growth_interval: int = 200
    minimum: float = 1.0
    maximum: float = 2.0**24

    def __post_init__(self) -> None:
        scales = (self.minimum, self.initial, self.maximum)
        if not 2.0**-100 <= self.minimum <= self.initial <= self.maximum <= 2.0**100 or any(math.frexp(x)[0] != 0.5 for x in scales):
            raise TrainingError(f"{self} is out of range; need powers of two with 2^-100 <= minimum <= initial <= maximum <= 2^100.")
        if self.growth_interval < 1:
            raise TrainingError(f"growth_interval is {self.growth_interval}; it must be at least 1.")

    def start(self) -> LossScale:
        """The scale of the first step."""
        return LossScale(scale=jnp.float32(self.initial), good_steps=jnp.int32(0))

    def after(self, state: LossScale, finite: Bool[Array, ""]) -> LossScale:
        """The scale of the next step, once it is known whether this one's gradients were finite."""
        good_steps = state.good_steps + jnp.int32(1)
        grows = good_steps >= self.growth_interval
        grown = jnp.where(grows, jnp.minimum(2.0 * state.scale, self.maximum), state.scale)
        return LossScale(
            scale=jnp.where(finite, grown, jnp.maximum(0.5 * state.scale, self.minimum)),
            good_steps=jnp.where(finite & ~grows, good_steps, jnp.int32(0)),
        )
