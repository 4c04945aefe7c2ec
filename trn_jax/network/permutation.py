"""Who sends to whom: checked permutations and groups of ranks.

A permutation is a list of (source, destination) pairs in which no rank sends twice or receives twice. A rank that receives
nothing gets zeros, as with `jax.lax.ppermute`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from trn_jax.errors import NetworkError


def ring_permutation(ranks: int, shift: int = 1) -> list[tuple[int, int]]:
    """Every rank sends to the rank `shift` places on: pairs (r, (r + shift) mod ranks).

    Raises:
        NetworkError: If `ranks` is below 1.
    """
    if ranks < 1:
        raise NetworkError(f"A ring needs at least 1 rank, got {ranks}.")
    return [(rank, (rank + shift) % ranks) for rank in range(ranks)]


def check_permutation(permutation: Iterable[tuple[int, int]], ranks: int) -> list[tuple[int, int]]:
    """Returns the permutation as a list if every rank exists, sends at most once and receives at most once.

    Raises:
        NetworkError: Naming the first rank that does not exist, sends twice or receives twice.
    """
    pairs = [(int(source), int(destination)) for source, destination in permutation]
    for pair in pairs:
        for rank in pair:
            _check_rank(rank, ranks, f"permutation pair {pair}")
    for role, column in (("sends", 0), ("receives", 1)):
        rank, times = Counter(pair[column] for pair in pairs).most_common(1)[0] if pairs else (0, 0)
        if times > 1:
            raise NetworkError(f"Rank {rank} {role} {times} times in the permutation {pairs}; each rank may do so once.")
    return pairs


def check_groups(groups: Iterable[Sequence[int]], ranks: int) -> list[list[int]]:
    """Returns the groups as lists if they split all ranks 0 .. ranks - 1, each in exactly one group.

    Raises:
        NetworkError: Naming the first rank that does not exist, is in two groups, or is in none.
    """
    lists = [[int(rank) for rank in group] for group in groups]
    members = [rank for group in lists for rank in group]
    for rank in members:
        _check_rank(rank, ranks, f"groups {lists}")
    times = Counter(members)
    for rank in range(ranks):
        if times[rank] != 1:
            problem = "is in no group" if times[rank] == 0 else f"is listed {times[rank]} times"
            raise NetworkError(f"Rank {rank} {problem} in {lists}; every rank of 0 .. {ranks - 1} must be in exactly one group.")
    return lists


def _check_rank(rank: int, ranks: int, where: str) -> None:
    if not 0 <= rank < ranks:
        raise NetworkError(f"Rank {rank} does not exist ({where}); there are {ranks} ranks, 0 .. {ranks - 1}.")
