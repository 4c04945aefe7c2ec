import jax.numpy as jnp
import numpy as np
import pytest

from trn_jax.errors import TrainingError
from trn_jax.training.sample import pick, sample

LOGITS = np.asarray([0.0, 2.0, 1.0, -1.0], np.float32)


def counting(tokens, seed):
    """A model that is sure that the next byte is one more than the last."""
    return 50.0 * (jnp.arange(256)[None, None] == (tokens[..., None] + 1) % 256)


def test_temperature_zero_takes_the_largest_logit():
    assert pick(LOGITS, temperature=0.0, top_k=None, seed=0, position=0) == 1


def test_draws_follow_the_probabilities():
    drawn = [pick(LOGITS, temperature=2.0, top_k=None, seed=1, position=position) for position in range(4000)]
    wanted = np.exp(LOGITS / 2) / np.exp(LOGITS / 2).sum()
    np.testing.assert_allclose(np.bincount(drawn, minlength=4) / 4000, wanted, atol=0.03)


def test_only_the_top_k_are_drawn():
    assert {pick(LOGITS, temperature=5.0, top_k=2, seed=0, position=position) for position in range(200)} == {1, 2}


def test_a_sample_continues_its_prompt_beyond_the_window():
    assert sample(counting, max_tokens=4, count=9, prompt=b"ab") == b"cdefghijk"


def test_a_sample_depends_on_its_seed_only():
    def flat(tokens, seed):
        return jnp.zeros((1, tokens.shape[1], 256))

    first, same, other = (sample(flat, max_tokens=4, count=20, seed=seed) for seed in (1, 1, 2))
    assert first == same
    assert first != other


def test_impossible_settings_are_refused():
    with pytest.raises(TrainingError, match=r"temperature is -1.0"):
        pick(LOGITS, temperature=-1.0, top_k=None, seed=0, position=0)
    with pytest.raises(TrainingError, match=r"top_k is 0"):
        pick(LOGITS, temperature=1.0, top_k=0, seed=0, position=0)
