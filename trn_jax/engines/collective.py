"""Collective cores: rings over the chip's links, beside the compute engines; `network.collective_time` has the formula."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from trn_jax.chips.schema import Chip
from trn_jax.engines.dma import transfer_s
from trn_jax.engines.kind import Cost, Kind, Static, compute_fp32, compute_move
from trn_jax.network.collective_time import collective_time


def _cost(kind: str) -> Callable[..., Cost]:
    """`work.bytes` is what one rank puts in; a group of one copies it."""

    def cost(work: Any, chip: Chip, smoothing: Any, static: Static) -> Cost:
        size_bytes = work.bytes * work.ranks if kind == "all_gather" else work.bytes
        among_s = collective_time(kind, size_bytes, jnp.maximum(work.ranks, 1.0), chip, smoothing=smoothing)
        alone_s = transfer_s(work.bytes, work.row_bytes, chip, smoothing)
        busy_s = jnp.where(work.ranks > 1, among_s, alone_s)
        return Cost(busy_s, busy_s, jnp.ones_like(work.bytes))

    return cost


_BASIS = "derived: ring steps over calibrated links; see network.collective_time"

KINDS = {
    "all_reduce": Kind(cost=_cost("all_reduce"), compute=compute_fp32, basis=_BASIS),
    "reduce_scatter": Kind(cost=_cost("reduce_scatter"), compute=compute_fp32, basis=_BASIS),
    "all_gather": Kind(cost=_cost("all_gather"), compute=compute_move, basis=_BASIS),
    "all_to_all": Kind(cost=_cost("all_to_all"), compute=compute_move, basis=_BASIS),
    "permute": Kind(cost=_cost("permute"), compute=compute_move, basis=_BASIS),
}
