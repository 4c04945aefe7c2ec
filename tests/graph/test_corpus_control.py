"""Loops, branches, custom rules, transformations inside, dtypes, trees, effects: exact on the ideal chip, close on others, timed."""

import pytest
from corpus import check
from corpus_control import CASES


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_program(name):
    check(CASES[name])
