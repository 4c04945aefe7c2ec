"""Permutations and groups: wrong ones are refused, naming the rank."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from trn_jax.errors import NetworkError
from trn_jax.network import check_groups, check_permutation, ring_permutation


def test_ring_shift_moves_every_value_one_rank_on():
    perm = check_permutation(ring_permutation(8), 8)
    assert jax.vmap(lambda x: lax.ppermute(x, "r", perm), axis_name="r")(jnp.arange(8)).tolist() == [7, 0, 1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("permutation", "message"),
    [
        ([(0, 1), (2, 1)], "Rank 1 receives 2 times"),
        ([(0, 1), (0, 2)], "Rank 0 sends 2 times"),
        ([(0, 4)], "Rank 4 does not exist.*4 ranks"),
        ([(-1, 0)], "Rank -1 does not exist"),
    ],
    ids=["receiver", "sender", "too_large", "negative"],
)
def test_bad_permutations_are_refused(permutation, message):
    with pytest.raises(NetworkError, match=message):
        check_permutation(permutation, 4)


def test_partial_and_empty_permutations_are_allowed():
    assert check_permutation([(0, 3)], 4) == [(0, 3)]
    assert check_permutation([], 4) == []


def test_groups_that_split_all_ranks_pass():
    assert check_groups([(0, 1), (2, 3, 4)], 5) == [[0, 1], [2, 3, 4]]


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([[0, 1], [1, 2, 3]], "Rank 1 is listed 2 times"),
        ([[0, 1], [3]], "Rank 2 is in no group"),
        ([[0, 1], [2, 7]], "Rank 7 does not exist"),
    ],
    ids=["overlap", "missing", "unknown"],
)
def test_bad_groups_are_refused(groups, message):
    with pytest.raises(NetworkError, match=message):
        check_groups(groups, 4)


def test_a_ring_needs_ranks():
    with pytest.raises(NetworkError, match="at least 1 rank, got 0"):
        ring_permutation(0)
