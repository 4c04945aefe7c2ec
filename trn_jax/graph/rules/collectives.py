"""Collectives under shard_map: separate collective cores, so they overlap compute.

Basis: documented (Neuron runtime guide: collective cores and DMA move the data).
"""

from __future__ import annotations

from typing import Any

from trn_jax.graph.graph import Op
from trn_jax.graph.instruction import Instruction, Work
from trn_jax.graph.numerics import Numerics
from trn_jax.graph.rules.registry import register_rule, writes

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
    sizes, ranks = dict(numerics.axis_sizes), 1
    names: Any = op.params.get("axes", op.params.get("axis_name", ()))
    for name in names if isinstance(names, (tuple, list, frozenset)) else (names,):
        ranks *= sizes.get(str(name), 1)
    groups = op.params.get("axis_index_groups")
    if groups:
        ranks = len(groups[0])
    formats = writes(op, numerics) if op.name in SUMS else tuple("" for _ in op.outputs)
    return Instruction(
        engine="collective",
        kind=KINDS[op.name],
        function=op.name,
        work=Work(bytes=sum(value.size_bytes for value in op.inputs), ranks=ranks, elements=sum(value.size for value in op.inputs)),
        write_formats=formats,
    )
