"""`trn-jax train`: a GPT learns on an emulated chip."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import sys
from typing import Annotated

import tyro

from trn_jax.errors import TrainingError
from trn_jax.training.options import TrainOptions

_EXTRAS = {"train": ("flax", "optax", "orbax.checkpoint"), "plots": ("matplotlib",)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Train:
    """Train a GPT with the arithmetic of a chip; ends with its loss curve, a sample and the time of a step on that chip.

    The default trains the preset "small" on Python's own library sources in about two minutes on two cores.
    """

    options: Annotated[TrainOptions, tyro.conf.arg(name="")] = dataclasses.field(default_factory=TrainOptions)

    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print the result as one JSON object on the last line of stdout; everything else goes to stderr."""

    def run(self) -> None:
        """Trains."""
        _require_extra("train")
        if self.options.plot:
            _require_extra("plots", " or leave out the picture with --no-plot")
        from trn_jax.training.run import train

        stream = sys.stderr if self.json else sys.stdout
        result = train(self.options, say=lambda line: print(line, file=stream, flush=True))
        if self.json:
            print(json.dumps(dataclasses.asdict(result)))


def _require_extra(extra: str, otherwise: str = "") -> None:
    """Says which extra is missing before any work is done."""
    for module in _EXTRAS[extra]:
        try:
            found = importlib.util.find_spec(module)
        except ModuleNotFoundError:
            found = None
        if found is None:
            raise TrainingError(f"Training needs {module}, which is not installed: pip install 'trn_jax[{extra}]'{otherwise}.")
