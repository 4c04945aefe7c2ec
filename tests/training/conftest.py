"""A preset small enough that a test may train it."""

import pytest

from trn_jax.models.config import GPTConfig
from trn_jax.training.optimizer import OptimizerConfig
from trn_jax.training.options import TrainOptions
from trn_jax.training.presets import PRESETS, Preset

WORDS = "the cat sat on the mat and the dog ate the bone; "


@pytest.fixture
def speck(monkeypatch):
    """Adds the preset "speck" and gives its name."""
    preset = Preset(
        model=GPTConfig(d_model=16, n_layers=1, n_heads=2, max_tokens=8),
        batch_size=4,
        optimizer=OptimizerConfig(learning_rate=1e-2, warmup_steps=2, decay_steps=100),
        steps=6,
    )
    monkeypatch.setitem(PRESETS, "speck", preset)
    return "speck"


@pytest.fixture
def text_file(tmp_path):
    """A short text."""
    path = tmp_path / "text.txt"
    path.write_text(WORDS * 20)
    return path


@pytest.fixture
def options(speck, text_file, tmp_path):
    """Makes the options of a very small run."""

    def make(**changes):
        defaults = {"preset": speck, "text": text_file, "out": tmp_path / "run", "plot": False, "sample_bytes": 0, "validate_every": 100}
        return TrainOptions(**{**defaults, **changes})

    return make
