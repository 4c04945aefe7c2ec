"""Ranks, rings and links: collectives as JAX code under `shard_map`, and the time they take."""

from trn_jax.network.all_reduce import ring_all_reduce
from trn_jax.network.collective_time import bytes_per_rank, collective_time, ring_bytes_per_rank, ring_time
from trn_jax.network.data_parallel import data_parallel
from trn_jax.network.halves import ring_all_gather, ring_reduce_scatter
from trn_jax.network.mesh import make_mesh
from trn_jax.network.permutation import check_groups, check_permutation, ring_permutation

__all__ = [
    "bytes_per_rank",
    "check_groups",
    "check_permutation",
    "collective_time",
    "data_parallel",
    "make_mesh",
    "ring_all_gather",
    "ring_all_reduce",
    "ring_bytes_per_rank",
    "ring_permutation",
    "ring_reduce_scatter",
    "ring_time",
]
