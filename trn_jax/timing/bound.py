"""bound: the time that the datasheet promises can never be beaten, whatever the schedule and the size of SBUF.

max( products at 2 rows cols clock / passes,  compulsory bytes at the DMA or HBM datasheet rate,  collective bytes over the links )
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from trn_jax.chips import Chip
from trn_jax.engines.tensor import operand_passes
from trn_jax.network.collective_time import bytes_per_rank
from trn_jax.timing.cost import groups
from trn_jax.timing.program import Program
from trn_jax.timing.schedule import evaluate, lots_of


def bound(program: Program, chip: Chip, *, dtype: Any = "float64") -> Float[Array, "*batch"]:
    """Datasheet lower bound of a program's time: full arrays, no overheads, every byte that must move moved once.

    Measured shares of a rate (`tensor.rate`, `dma.rate`, `link.rate`) count as 1, and the core has its HBM stack for itself. The
    Vector and Scalar Engines are left out: how many passes a kernel needs is its author's choice.

    Args:
        program: From `trn_jax.trace`.
        chip: As for `trn_jax.latency`.
        dtype: "float64" or "float32".

    Returns:
        Seconds, with the shape of the batch; never more than `latency` of the same program and chip.

    Raises:
        ProgramError: Not a Program.
        ChipError: Not a Chip.

    Units: seconds. Gradient: of the largest term; shared at a tie. Basis: documented rates, derived formula.
    """
    return evaluate(_bound, program, chip, 0.0, None, dtype)


@partial(jax.jit, static_argnames=("hard", "dtype"))
def _bound(program: Program, chip: Chip, smoothing: Any, weights: dict[str, Any], *, hard: bool, dtype: str) -> Any:
    """The largest of the floors of all engines; smoothing and weights are without effect."""
    structure = program.structure
    lots, columns, repeats, shape = lots_of(program, chip, dtype)
    floors = {"tensor": 0.0, "dma": 0.0, "gpsimd": 0.0, "collective": 0.0}
    for (engine, kind, static), rows in groups(structure):
        index = np.array(rows)
        work = {name: column[index] for name, column in columns.items()}
        if kind == "nc_matmul":
            t = lots.tensor
            products = work["batch"] * work["m"] * work["k"] * work["n"]
            seconds = products * operand_passes(t, static) / (t.rows * t.cols * t.clock_hz)
        elif engine in ("dma", "gpsimd"):  # gathers and scatters run beside the copies, so neither waits for the other's bytes
            rate = jnp.minimum(lots.dma.bandwidth_bytes_per_s, lots.hbm.bandwidth_bytes_per_s / lots.hbm.stacks)
            compulsory_bytes = jnp.where(jnp.isinf(work["reuse_bytes"]), work["bytes"] * work["hbm"], 0.0)
            seconds = compulsory_bytes / rate
        elif engine == "collective":
            size_bytes = work["bytes"] * (work["ranks"] if kind == "all_gather" else 1.0)
            sent_bytes = jnp.where(work["ranks"] > 1, bytes_per_rank(kind, size_bytes, jnp.maximum(work["ranks"], 1.0)), 0.0)
            seconds = sent_bytes / lots.link.bandwidth_bytes_per_s
        else:
            continue
        floors[engine] = floors[engine] + (seconds * repeats[index]).sum(0)
    result = jnp.stack([jnp.broadcast_to(jnp.asarray(floor, dtype), (int(np.prod(shape)),)) for floor in floors.values()]).max(0)
    return result.reshape(shape)
