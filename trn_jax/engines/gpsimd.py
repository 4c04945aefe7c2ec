"""GpSimd Engine (Pool): index generation, sorting, gathers, integer arithmetic and whatever no other engine does.

cycles = c N + 150 per instruction; gathers and scatters are indirect DMA, started from here
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from trn_jax.chips.schema import Chip
from trn_jax.engines.dma import transfer_s
from trn_jax.engines.kind import Cost, Kind, Static, compute_fp32, compute_move
from trn_jax.engines.stream import streaming_cost

CUSTOM_CYCLES = 4.0  # per column of a function without a table: rsqrt here has a quarter of the Scalar Engine's throughput
RNG_CYCLES = 8.0  # integer operations of one XORWOW step, per word drawn
TOPK_CYCLES = 4.0  # per element of the 16 partitions of one of the eight cores
CORE_PARTITIONS = 16.0


def cost_columns(work: Any, chip: Chip, smoothing: Any, static: Static) -> Cost:
    """150 + N cycles."""
    return streaming_cost(work.elements, chip.gpsimd, smoothing)


def cost_operands(work: Any, chip: Chip, smoothing: Any, static: Static) -> Cost:
    """One pass per operand."""
    return streaming_cost(work.elements, chip.gpsimd, smoothing, jnp.maximum(work.operands, 1.0))


def cost_custom(work: Any, chip: Chip, smoothing: Any, static: Static) -> Cost:
    """A function computed by a program of the eight cores."""
    return streaming_cost(work.elements, chip.gpsimd, smoothing, CUSTOM_CYCLES)


def cost_rng(work: Any, chip: Chip, smoothing: Any, static: Static) -> Cost:
    """One generator step per word."""
    return streaming_cost(work.elements, chip.gpsimd, smoothing, RNG_CYCLES)


def cost_sort(work: Any, chip: Chip, smoothing: Any, static: Static) -> Cost:
    """A bitonic network over each of `rows` rows of n elements: log2(n) (log2(n) + 1) / 2 passes."""
    levels = jnp.log2(jnp.maximum(work.elements / jnp.maximum(work.rows, 1.0), 2.0))
    return streaming_cost(work.elements, chip.gpsimd, smoothing, levels * (levels + 1) / 2)


def cost_topk(work: Any, chip: Chip, smoothing: Any, static: Static) -> Cost:
    """4 n + K cycles, n the elements in the sixteen partitions of a core."""
    g = chip.gpsimd
    cycles = TOPK_CYCLES * CORE_PARTITIONS * work.elements / g.lanes + work.k + g.overhead_cycles
    return Cost(cycles / g.clock_hz, (cycles + g.latency_cycles) / g.clock_hz, jnp.ones_like(work.elements))


def cost_indirect(work: Any, chip: Chip, smoothing: Any, static: Static) -> Cost:
    """Descriptors made by this engine, moved by its DMA queue, which it waits for."""
    busy_s = transfer_s(work.bytes, work.row_bytes, chip, smoothing) + chip.gpsimd.overhead_cycles / chip.gpsimd.clock_hz
    return Cost(busy_s, busy_s + chip.dma.latency_s, jnp.ones_like(work.bytes))


KINDS = {
    "iota": Kind(cost=cost_columns, compute=compute_fp32, basis="documented: NKI instruction reference, SDK 2.26, iota: 150 + N"),
    "affine_select": Kind(cost=cost_columns, compute=compute_fp32, basis="documented: NKI instruction reference, SDK 2.26, 150 + N"),
    "tensor_tensor": Kind(
        cost=cost_operands, compute=compute_fp32, basis="assumed: N per operand; 32-bit integers run here (NKI reference, tensor_tensor)"
    ),
    "sort": Kind(cost=cost_sort, compute=compute_move, basis="assumed: a bitonic network; no figure is published"),
    "topk": Kind(cost=cost_topk, compute=compute_move, basis="documented: NKI instruction reference, SDK 2.32, topk: 4 n + K"),
    "gather": Kind(
        cost=cost_indirect, compute=compute_move, basis="assumed: row-size efficiency of DMA; indirect DMA is documented, not timed"
    ),
    "scatter": Kind(cost=cost_indirect, compute=compute_fp32, basis="assumed: as gather"),
    "rng": Kind(cost=cost_rng, compute=compute_fp32, basis="assumed: one XORWOW step per word; no figure is published"),
    "custom": Kind(
        cost=cost_custom, compute=compute_fp32, basis="assumed: four cycles per column (NKI reference on rsqrt: a quarter of Scalar)"
    ),
}
