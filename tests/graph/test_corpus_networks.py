"""Networks and parallel programs: exact on the ideal chip, close on others, differentiable, timed."""

import corpus_mesh
import corpus_networks
import pytest
from corpus import check


@pytest.mark.slow
@pytest.mark.parametrize("name", corpus_networks.CASES)
def test_a_network(name):
    check(corpus_networks.CASES[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", corpus_mesh.CASES)
def test_a_program_over_a_mesh(name):
    check(corpus_mesh.CASES[name])
