"""Collectives under shard_map: separate collective cores, so they overlap compute.

Basis: documented (Neuron runtime guide: collective cores and DMA move the data).
"""

from __future__ import annotations

import math
from typing import Any

from trn_jax.errors import NetworkError
from trn_jax.graph.graph import Op
from trn_jax.graph.instruction import Instruction, Work
from trn_jax.graph.numerics import Numerics
from trn_jax.graph.rules.registry import register_rule, writes
from trn_jax.network.permutation import check_groups, check_permutation

KINDS = {
    "psum": "all_reduce",
    "psum_invariant": "all_reduce",
    "psum2": "all_reduce",
    "pmax": "all_reduce",
    "pmin": "all_reduce",
    "all_gather": "all_gather",
    "all_gather_invariant": "all_gather",
    "all_gather_reduced": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "unreduced_reduce_scatter": "reduce_scatter",
    "unreduced_psum": "all_reduce",
    "unreduced_pmax": "all_reduce",
    "unreduced_pmin": "all_reduce",
    "all_to_all": "all_to_all",
    "ragged_all_to_all": "all_to_all",
    "ppermute": "permute",
    "pbroadcast": "permute",
    "pbroadcast_dynamic": "permute",
    "pgather": "all_gather",
}

SUMS = frozenset({"psum", "psum_invariant", "psum2", "reduce_scatter"})


@register_rule(*KINDS)
def _collective(op: Op, numerics: Numerics) -> Instruction:
    sizes = dict(numerics.axis_sizes)
    names: Any = op.params.get("axes", op.params.get("axis_name", ()))
    names = [str(name) for name in (names if isinstance(names, (tuple, list, frozenset)) else (names,))]
    ranks = math.prod(sizes.get(name, 1) for name in names)
    groups = op.params.get("axis_index_groups")
    if all(name in sizes for name in names):
        _check_ranks(op, groups, ranks)
    if groups:
        ranks = max(map(len, groups))  # the largest group is the last to finish
    formats = writes(op, numerics) if op.name in SUMS else tuple("" for _ in op.outputs)
    return Instruction(
        engine="collective",
        kind=KINDS[op.name],
        function=op.name,
        work=Work(bytes=sum(value.size_bytes for value in op.inputs), ranks=ranks, elements=sum(value.size for value in op.inputs)),
        write_formats=formats,
    )


def _check_ranks(op: Op, groups: Any, ranks: int) -> None:
    """Refuses groups and permutations that JAX lets pass and XLA cannot compile."""
    try:
        if groups:
            check_groups(groups, ranks)
        if op.name == "ppermute":
            check_permutation(op.params["perm"], ranks)
    except NetworkError as error:
        raise NetworkError(f"{op.name!r} at {op.source}: {error}") from None
