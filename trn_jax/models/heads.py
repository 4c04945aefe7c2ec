"""How attention heads divide over tensor-parallel ranks.

Each rank gets `n_heads / ranks` query heads. Key/value heads divide too while there are enough of them; with more ranks than
key/value heads every head is copied to `ranks / n_kv_heads` ranks.
"""

from __future__ import annotations

import dataclasses

from trn_jax.errors import ModelError


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class HeadShard:
    """The heads of one rank.

    Attributes:
        query_heads: Query heads per rank.
        kv_heads: Key/value heads per rank.
        kv_copies: Ranks that hold the same key/value head.
    """

    query_heads: int
    kv_heads: int
    kv_copies: int


def shard_heads(n_heads: int, n_kv_heads: int, ranks: int) -> HeadShard:
    """Divides grouped-query attention over ranks.

    Args:
        n_heads: Query heads.
        n_kv_heads: Key/value heads.
        ranks: Tensor-parallel ranks.

    Returns:
        What each rank holds.

    Raises:
        ModelError: A count is below one or something does not divide; nothing is rounded down silently.
    """
    if min(n_heads, n_kv_heads, ranks) < 1:
        raise ModelError(f"n_heads {n_heads}, n_kv_heads {n_kv_heads} and ranks {ranks} must all be at least 1.")
    if n_heads % n_kv_heads:
        raise ModelError(f"{n_heads} query heads cannot share {n_kv_heads} key/value heads evenly; make n_heads a multiple of n_kv_heads.")
    if n_heads % ranks:
        raise ModelError(f"{n_heads} query heads do not divide over {ranks} ranks; use a number of ranks that divides n_heads.")
    if n_kv_heads % ranks and ranks % n_kv_heads:
        raise ModelError(
            f"{n_kv_heads} key/value heads neither divide over {ranks} ranks nor divide into them; "
            "use a number of ranks that is a multiple or a divisor of n_kv_heads."
        )
    return HeadShard(query_heads=n_heads // ranks, kv_heads=max(1, n_kv_heads // ranks), kv_copies=max(1, ranks // n_kv_heads))
