"""The time of a training step on the chip, between two bounds of how well its engines work side by side."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import jax

import trn_jax
from trn_jax.training.parts import parts_text

if TYPE_CHECKING:
    from trn_jax.training.setup import Setup


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """One step on one core of the chip.

    Attributes:
        serial_s: Seconds with one instruction after the other, as today's compiled training graphs run.
        overlapped_s: Seconds with all engines side by side.
        bottleneck: The engine whose time matters most.
        text: Both times, tokens per second, and where the time goes, for a person.
    """

    serial_s: float
    overlapped_s: float
    bottleneck: str
    text: str


def predict_step(setup: Setup) -> Prediction:
    """Times the step of a run; no step is run for it.

    Raises:
        NoRuleError, UnsupportedError: The step holds an operation that cannot be timed.
    """
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), (setup.state, setup.batch(0)))
    program = trn_jax.trace(setup.pure_step, *shapes, autocast=setup.recipe.autocast)
    report = trn_jax.estimate(program, setup.chip, overlap="compiled")
    serial_s, overlapped_s = report.latency_s, report.concurrent_s
    tokens = setup.batch_size * setup.model.max_tokens
    text = (
        f"one training step of {tokens:,} tokens: {tokens / serial_s:,.0f} tokens/s as today's compiled graphs run, "
        f"{tokens / overlapped_s:,.0f} tokens/s with all engines side by side\n{report.to_table()}\n{parts_text(report.top)}"
    )
    return Prediction(serial_s=serial_s, overlapped_s=overlapped_s, bottleneck=report.bottleneck, text=text)
