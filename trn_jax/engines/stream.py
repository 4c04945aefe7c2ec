"""Cost of an engine that streams its operands through its lanes, one column of 128 partitions per cycle.

cycles = c N + 60 n      N = elements / lanes columns,  n = max(N / width, 1) instructions,  c cycles per column
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from trn_jax.engines.kind import Cost
from trn_jax.timing.smoothing import smooth_max, width

SBUF_COLUMNS = 2048  # widest tile of one instruction in SBUF: 8 KiB of fp32 per partition. Basis: assumed
PSUM_COLUMNS = 512  # in PSUM: one bank of fp32. Basis: documented
PARTITIONS = 128  # of the tile after which a consumer may start; not the chip's lanes, or more lanes could delay consumers


def streaming_cost(
    elements: Any,
    engine: Any,
    smoothing: Any,
    cycles_per_column: Any = 1.0,
    *,
    columns: int = SBUF_COLUMNS,
    min_cycles: Any = 0.0,
    extra_cycles: Any = 0.0,
) -> Cost:
    """Occupancy, latency and tiles of one record on Vector, Scalar or GpSimd.

    Args:
        elements: Elements streamed (array).
        engine: `chip.vector`, `chip.scalar` or `chip.gpsimd`: lanes, clock_hz, overhead_cycles, latency_cycles.
        smoothing: See `timing.smoothing`.
        cycles_per_column: c, dimensionless.
        columns: Widest tile of one instruction.
        min_cycles: Shortest interval between two instructions.
        extra_cycles: Further cycles of every instruction.

    Returns:
        Cost in seconds. The data are taken to be spread over all partitions, as a good layout does.

    Gradient: in lanes and clock always; through the number of instructions under smoothing.
    Basis: documented (NKI architecture guide: N cycles for one operand, a fixed overhead per access); assumed layout.
    """
    count = smooth_max(elements / (engine.lanes * columns), 1.0, width(smoothing, 1.0))
    busy = cycles_per_column * elements / engine.lanes + count * (engine.overhead_cycles + extra_cycles)
    shortest = count * min_cycles
    cycles = smooth_max(busy, shortest, width(smoothing, shortest))
    occupancy_s = cycles / engine.clock_hz
    latency_s = occupancy_s + engine.latency_cycles / engine.clock_hz
    return Cost(occupancy_s, latency_s, jnp.maximum(jnp.ceil(elements / (PARTITIONS * columns)), 1.0))
