"""Functions of jax.nn, jax.numpy, jax.scipy and jax.random: exact on the ideal chip, close on others, differentiable, timed."""

import jax
import pytest
from corpus import check
from corpus_functions import CASES, NEURAL, NEURAL_ELSEWHERE


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_function(name):
    check(CASES[name])


def test_every_function_of_jax_nn_is_in_the_corpus():
    public = {name for name in dir(jax.nn) if callable(getattr(jax.nn, name)) and not name.startswith("_")}
    assert public == set(NEURAL) | NEURAL_ELSEWHERE
