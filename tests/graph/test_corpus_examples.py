"""Programs after the examples that teach Flax and JAX, and products of every shape: exact, close, differentiable, timed."""

import pytest
from corpus import check
from corpus_examples import CASES


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_an_example(name):
    check(CASES[name])
