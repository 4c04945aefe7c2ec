"""What a user can say about a training run; every field is a flag of `trn-jax train`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal

from trn_jax.errors import TrainingError
from trn_jax.training.recipes import Precision


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TrainOptions:
    """Flags of a training run.

    Attributes:
        steps: Steps to reach; None takes the preset's. A resumed run may ask for more than before.
        preset: Size, batch and learning rate: tiny, small, medium or large.
        precision: fp32; bf16 (fp32 weights, matrix operands cast to bf16); bf16-sr, bf16-rne (bf16 weights, written with stochastic
            or nearest rounding); bf16-master (bf16 weights with an fp32 master copy).
        fidelity: fused (one dot per matrix product) or tiled (K tile by K tile, in the order of the chip's accumulation).
        chip: A chip that comes with trn_jax (see `trn-jax chips`), or a TOML file.
        text: UTF-8 file to train on; None takes the library sources of the running Python.
        out: Directory of the run; None makes a new one in runs/.
        resume: Go on from the latest complete checkpoint in `out`, or start if there is none yet.
        checkpoint_every: Steps between checkpoints; there is always one at the end.
        validate_every: Steps between looks at the validation loss; there is always one at the end.
        learning_rate: Peak learning rate instead of the preset's.
        batch_size: Sequences per step instead of the preset's.
        accumulate: Parts that a step's batch is cut into; their gradients are summed in fp32, with the memory of one part.
        dropout: Probability of dropping an activation instead of the preset's.
        seed: Seed of the first weights, of the order of the data and of the sample.
        sample_bytes: Bytes of text to write at the end; 0 writes none.
        temperature: Temperature of that text.
        top_k: How many bytes that text may choose from.
        plot: Draw the loss curve (needs matplotlib).

    Raises:
        TrainingError: A number is out of range, or `resume` comes without `out`.
    """

    steps: int | None = None
    preset: str = "small"
    precision: Precision = "bf16"
    fidelity: Literal["fused", "tiled"] = "fused"
    chip: str = "trainium2"
    text: Path | None = None
    out: Path | None = None
    resume: bool = False
    checkpoint_every: int = 100
    validate_every: int = 100
    learning_rate: float | None = None
    batch_size: int | None = None
    accumulate: int = 1
    dropout: float | None = None
    seed: int = 0
    sample_bytes: int = 300
    temperature: float = 0.8
    top_k: int = 40
    plot: bool = True

    def __post_init__(self) -> None:
        for name in ("text", "out"):  # from Python a string does too
            value = getattr(self, name)
            if isinstance(value, str):
                object.__setattr__(self, name, Path(value))
        at_least = {name: 1 for name in ("steps", "checkpoint_every", "validate_every", "batch_size", "accumulate", "top_k")}
        at_least |= {"seed": 0, "sample_bytes": 0}
        for name, least in at_least.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise TrainingError(f"--{name.replace('_', '-')} is {value}; it must be at least {least}.")
        if self.seed >= 2**32:
            raise TrainingError(f"--seed is {self.seed}; it must be below 2^32.")
        if self.dropout is not None and not 0.0 <= self.dropout < 1.0:
            raise TrainingError(f"--dropout is {self.dropout}; it must be at least 0 and below 1.")
        if not self.temperature >= 0.0:
            raise TrainingError(f"--temperature is {self.temperature}; it must be at least 0.")
        if self.resume and self.out is None:
            raise TrainingError("--resume needs --out DIR: the directory of the run to go on with.")
