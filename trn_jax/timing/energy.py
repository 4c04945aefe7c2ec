"""energy: joules that a Program takes on one core of a chip, by engine, as a function of the chip that JAX can differentiate and batch.

    (sum over rows of  multiply-adds x J + lane operations x J + bytes x J/B  +  static power / cores x latency) / share of the supply

products          m k n multiply-adds; the moving operand is read once per tile of stationary columns, PSUM is added to once per tile of K
other engines     every element once through a lane; operands read from SBUF, one result written there
DMA               the bytes that really move at this size of SBUF: one end in HBM, one in SBUF
collectives       bytes sent over links, and read and written in HBM
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from trn_jax.chips import Chip
from trn_jax.engines.dma import moved_bytes
from trn_jax.engines.kind import Static
from trn_jax.engines.tensor import operand_width
from trn_jax.graph.instruction import ENGINES
from trn_jax.network.collective_time import bytes_per_rank
from trn_jax.timing.cost import groups
from trn_jax.timing.program import Program
from trn_jax.timing.schedule import evaluate, lots_of, total

STATIC = "static"  # beside the engines: what the core draws however little it does
_PSUM_ITEM_BYTES = 4.0


def energy(program: Program, chip: Chip, *, overlap: Any = None, dtype: Any = "float64") -> Float[Array, "*batch"]:
    """Joules that one core takes for a program, its share of the chip's static power and the losses of the supply included.

    Args:
        program: From `trn_jax.trace`.
        chip: As for `trn_jax.latency`; `chip.energy` has the energy of each operation.
        overlap: As for `trn_jax.latency`: a longer schedule takes more static energy.
        dtype: "float64" or "float32".

    Returns:
        Joules, with the shape of the batch.

    Raises:
        ProgramError: Not a Program, or an unknown overlap.
        ChipError: Not a Chip.

    Units: joules. Gradient: exact in the chip; 0 in array sizes between their steps.
    Basis: derived from energies of the literature; AWS publishes none, so compare chips by ratios and give the range of a report.
    """
    parts = energy_by_engine(program, chip, overlap=overlap, dtype=dtype)
    return sum(parts.values(), 0.0 * parts[STATIC])


def energy_by_engine(program: Program, chip: Chip, *, overlap: Any = None, dtype: Any = "float64") -> dict[str, Float[Array, "*batch"]]:
    """The parts of `energy`: one for each of `ENGINES`, with the memory accesses of its instructions, and "static"."""
    latency_s = evaluate(total, program, chip, 0.0, overlap, dtype)
    return parts_of(program, chip, latency_s, dtype=dtype)


def parts_of(program: Program, chip: Chip, latency_s: Any, *, dtype: Any = "float64") -> dict[str, Float[Array, "*batch"]]:
    """`energy_by_engine` for a latency that is known already."""
    static_j = latency_s * chip.energy.static_w / chip.cores / chip.energy.supply_share
    return evaluate(_rows, program, chip, 0.0, None, dtype) | {STATIC: static_j}


@partial(jax.jit, static_argnames=("hard", "dtype"))
def _rows(program: Program, chip: Chip, smoothing: Any, weights: dict[str, Any], *, hard: bool, dtype: str) -> dict[str, Any]:
    """Joules of all rows by engine; smoothing and weights are without effect."""
    lots, columns, repeats, shape = lots_of(program, chip, dtype)
    parts: dict[str, Any] = dict.fromkeys(ENGINES, jnp.zeros(int(np.prod(shape)), dtype))
    for (engine, kind, static), rows in groups(program.structure):
        index = np.array(rows)
        work = {name: column[index] for name, column in columns.items()}
        joules = _COSTS.get(engine, _lanes)(kind, static, work, lots)
        parts[engine] = parts[engine] + (joules * repeats[index]).sum(0)
    return {engine: joules.reshape(shape) / chip.energy.supply_share for engine, joules in parts.items()}


def _products(kind: str, static: Static, work: dict[str, Any], chip: Chip) -> Any:
    if kind != "nc_matmul":
        return _lanes(kind, static, work, chip)
    t, e = chip.tensor, chip.energy
    mac_j, item_bytes = {"fp32": (e.mac_fp32_j, 4.0), "16bit": (e.mac_16bit_j, 2.0)}.get(operand_width(static), (e.mac_fp8_j, 1.0))
    batch, m, k, n = (work[name] for name in ("batch", "m", "k", "n"))
    read_bytes = item_bytes * (m * k + k * n * jnp.ceil(m / t.cols))
    summed_bytes = _PSUM_ITEM_BYTES * m * n * (2.0 * jnp.ceil(k / t.rows) - 1.0)  # all but the first tile of K read what is there
    return batch * (m * k * n * mac_j + read_bytes * e.sbuf_j_per_byte + summed_bytes * e.psum_j_per_byte)


def _lanes(kind: str, static: Static, work: dict[str, Any], chip: Chip) -> Any:
    """Vector, Scalar and GpSimd instructions, and whatever else streams elements; gathers and scatters move bytes of HBM as well."""
    item_bytes, e = 2.0 if static.narrow else 4.0, chip.energy
    per_element = e.lane_op_j + (work["operands"] + 1.0) * item_bytes * e.sbuf_j_per_byte
    return work["elements"] * per_element + work["bytes"] * work["hbm"] * e.hbm_j_per_byte


def _copies(kind: str, static: Static, work: dict[str, Any], chip: Chip) -> Any:
    moved = moved_bytes(work["bytes"], work["reuse_bytes"], chip, 0.0, work["reuse_slope"])
    e = chip.energy
    inside = (1.0 - work["hbm"]) * e.sbuf_j_per_byte
    return moved * (work["hbm"] * e.hbm_j_per_byte + inside + e.sbuf_j_per_byte)


def _collectives(kind: str, static: Static, work: dict[str, Any], chip: Chip) -> Any:
    ranks = jnp.maximum(work["ranks"], 1.0)
    size_bytes = work["bytes"] * (ranks if kind == "all_gather" else 1.0)
    sent_bytes = jnp.where(work["ranks"] > 1, bytes_per_rank(kind, size_bytes, ranks), 0.0)
    return sent_bytes * (chip.energy.link_j_per_byte + 2.0 * chip.energy.hbm_j_per_byte)


_COSTS = {"tensor": _products, "dma": _copies, "collective": _collectives}


def with_ends(chip: Chip) -> Chip:
    """A batch of three chips: all energies at their low end, as they are, at their high end; equal where the file gives no ranges."""
    changes = {path: float(chip.get(path)) * np.array([low, 1.0, high]) for path, low, high in chip.uncertainty}
    share = "energy.supply_share"
    if share in changes:  # the better the supply, the less is drawn
        changes[share] = np.minimum(changes[share][::-1], 1.0)
    return chip.replace(changes)
