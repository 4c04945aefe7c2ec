"""Collective cores: ring times of the network room, per rank's input."""

import pytest
from stream_costs import CHIP, cost

from trn_jax.network import collective_time

MIB = 2.0**20


@pytest.mark.parametrize("kind", ["all_reduce", "reduce_scatter", "all_to_all", "permute"])
def test_time_is_that_of_the_network(kind):
    assert cost("collective", kind, bytes=MIB, ranks=8)[0] == pytest.approx(float(collective_time(kind, MIB, 8, CHIP)))


def test_a_gather_is_as_large_as_what_comes_out():
    assert cost("collective", "all_gather", bytes=MIB, ranks=8)[0] == pytest.approx(float(collective_time("all_gather", 8 * MIB, 8, CHIP)))


def test_a_group_of_one_is_a_copy():
    assert cost("collective", "all_reduce", bytes=MIB, ranks=1)[0] == pytest.approx(cost("dma", "dma_copy", bytes=MIB)[0])
