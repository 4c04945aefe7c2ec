"""DMA engines: moving bytes between HBM and SBUF, unless SBUF still holds them.

occupancy = max(moved (row + 400 B) / row / min(DMA rate, HBM share), transfers x issue time)
moved     = min(bytes, slope max(0, SBUF it takes to keep them - SBUF))      latency = occupancy + fixed latency
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from trn_jax.chips.schema import Chip
from trn_jax.engines.kind import Cost, Kind, Static, compute_move
from trn_jax.timing.smoothing import is_hard, smooth_max, smooth_min, smooth_relu, width

TRANSPOSE_SHARE = 0.9  # of the copy rate, from HBM to SBUF. Basis: documented for Trainium2 (up to 90 %), assumed elsewhere
TRANSPOSE_SHARE_ON_CHIP = 0.5  # from SBUF to SBUF. Basis: documented for Trainium2 (up to 50 %), assumed elsewhere
PACKET_BYTES = 64 * 1024  # of each engine in one transfer. Basis: assumed (the packet size of collectives; 32 KiB is enough for the rate)
TILE_BYTES = 128 * 2048  # after which a consumer may start: 2 KiB, the least that is efficient, in each partition. Basis: assumed


def copy_s(moved_bytes: Any, row_bytes: Any, chip: Chip, smoothing: Any) -> Any:
    """Seconds that a core's DMA engines need for bytes in contiguous rows, at the calibrated rate.

    What the core gets is the smaller of its engines' rate and its share of one HBM stack: the larger of two times.
    """
    dma, hbm = chip.dma, chip.hbm
    streamed_bytes = moved_bytes * (1 + dma.row_overhead_bytes / jnp.maximum(row_bytes, 1.0))
    engines_s = streamed_bytes / (dma.bandwidth_bytes_per_s * dma.rate)
    stack_s = streamed_bytes * hbm.stacks * hbm.active_cores / hbm.bandwidth_bytes_per_s
    return smooth_max(engines_s, stack_s, _width(engines_s, stack_s, smoothing))


def transfer_s(size_bytes: Any, row_bytes: Any, chip: Chip, smoothing: Any, moved_bytes: Any = None) -> Any:
    """Seconds until the queue is free again: the copy, but no less than its transfers need to be issued.

    Where only a part has to move, that part of the transfers is issued.
    """
    moved_bytes = size_bytes if moved_bytes is None else moved_bytes
    packets = size_bytes / (chip.dma.engines * PACKET_BYTES)
    issued = smooth_max(packets, 1.0, width(smoothing, 1.0)) * moved_bytes / jnp.maximum(size_bytes, 1.0)
    issue_s = issued * chip.dma.issue_s
    busy_s = copy_s(moved_bytes, row_bytes, chip, smoothing)
    return smooth_max(busy_s, issue_s, _width(busy_s, issue_s, smoothing))


def moved_bytes(size_bytes: Any, reuse_bytes: Any, chip: Chip, smoothing: Any, slope: Any = 1.0) -> Any:
    """Bytes that have to move although some of them may still be in SBUF.

    Args:
        size_bytes: Bytes of the data.
        reuse_bytes: SBUF it takes to still have all of them. Infinite where nothing can be reused: then all bytes move, exactly.
        chip: `chip.sbuf.size_bytes` is read.
        smoothing: Rounds off both corners, and adds smoothing * bytes * reuse / (reuse + SBUF), so that the size of SBUF
            matters also to data that fits; data that cannot be reused count as their own reuse there.
        slope: Bytes moved for each byte of SBUF that is missing; other than 1 for a part of a larger array, and for operands
            that a matrix product reads several times.

    Returns:
        Bytes between 0 and size_bytes at smoothing 0.

    Gradient: in SBUF -slope between the corners; never 0 under smoothing.
    Basis: assumed (data needed last leave SBUF first; see `timing.residency`).
    """
    sbuf_bytes = chip.sbuf.size_bytes
    finite = jnp.isfinite(reuse_bytes)
    reuse_bytes = jnp.where(finite, reuse_bytes, 0.0)
    missing = smooth_relu(slope * (reuse_bytes - sbuf_bytes), width(smoothing, size_bytes))
    moved = smooth_min(missing, size_bytes, _width(missing, size_bytes, smoothing))
    moved = jnp.where(finite, moved, size_bytes)
    if not is_hard(smoothing):
        pressure = jnp.where(finite, reuse_bytes, size_bytes)
        moved = moved + smoothing * size_bytes * pressure / (pressure + sbuf_bytes)
    return moved


def _width(a: Any, b: Any, smoothing: Any) -> Any:
    """A width relative to the smaller of two positive quantities, without a kink."""
    if is_hard(smoothing):
        return 0.0
    total = a + b
    return smoothing * jnp.where(total > 0, a * b / jnp.where(total > 0, total, 1.0), 0.0)


def _cost(work: Any, chip: Chip, smoothing: Any, share: Any) -> Cost:
    moved = moved_bytes(work.bytes, getattr(work, "reuse_bytes", np.inf), chip, smoothing, getattr(work, "reuse_slope", 1.0))
    occupancy_s = transfer_s(work.bytes / share, work.row_bytes, chip, smoothing, moved / share)
    part = moved / jnp.maximum(work.bytes, 1.0)  # data that is still in SBUF is there at once
    return Cost(occupancy_s, occupancy_s + part * chip.dma.latency_s, jnp.maximum(jnp.ceil(work.bytes / TILE_BYTES), 1.0))


def cost_copy(work: Any, chip: Chip, smoothing: Any, static: Static) -> Cost:
    """A copy at the full rate."""
    return _cost(work, chip, smoothing, 1.0)


def cost_transpose(work: Any, chip: Chip, smoothing: Any, static: Static) -> Cost:
    """A transpose on the way from HBM to SBUF, or from SBUF to SBUF, which is slower."""
    crosses_hbm = getattr(work, "hbm", 1.0)
    return _cost(work, chip, smoothing, TRANSPOSE_SHARE_ON_CHIP + (TRANSPOSE_SHARE - TRANSPOSE_SHARE_ON_CHIP) * crosses_hbm)


KINDS = {
    "dma_copy": Kind(
        cost=cost_copy, compute=compute_move, basis="documented: DMA bandwidth guide (rate, latency); calibrated: row-size efficiency"
    ),
    "dma_transpose": Kind(
        cost=cost_transpose,
        compute=compute_move,
        basis="documented: Trainium2 guide, DMA transpose: up to 90 % of the rate from HBM, 50 % inside SBUF",
    ),
}
