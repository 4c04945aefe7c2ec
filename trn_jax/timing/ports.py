"""Memory ports that two engines share: together they take no less time than one after the other.

    Vector and GpSimd at SBUF     Vector and Scalar at PSUM         on NeuronCore-v2; later cores have a port for each

A floor under the concurrent schedule, not a lane: accesses interleave, so either engine may go first. GpSimd's gathers and scatters move by
DMA and do not count; at PSUM those rows count that read a result of the Tensor Engine.

Basis: documented (NKI guide, Trainium/Inferentia2 architecture: the accesses are serialised; Trainium2 architecture: no longer).
"""

from __future__ import annotations

import functools
from typing import Any

import jax.numpy as jnp
import numpy as np

from trn_jax.timing.cost import Table, positions
from trn_jax.timing.program import Structure
from trn_jax.timing.smoothing import smooth_max, width

_BY_DMA = frozenset({"gather", "scatter"})


@functools.lru_cache(maxsize=256)
def shared_rows(structure: Structure) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """For each leaf of `chip.vector` the rows of the Vector Engine, and of the one that it shares a port with, where both have some."""
    functions = structure.functions or ("",) * len(structure.engines)
    psum = [function.partition("+")[0] == "evacuate" for function in functions]
    rows = range(len(structure.engines))
    vector = [row for row in rows if structure.engines[row] == "vector"]
    gpsimd = [row for row in rows if structure.engines[row] == "gpsimd" and structure.kinds[row] not in _BY_DMA]
    scalar = [row for row in rows if structure.engines[row] == "scalar" and psum[row]]
    pairs = {"sbuf_port_shared": (vector, gpsimd), "psum_port_shared": ([row for row in vector if psum[row]], scalar)}
    return {leaf: (np.array(ours, int), np.array(others, int)) for leaf, (ours, others) in pairs.items() if ours and others}


def port_shares(structure: Structure, chip: Any) -> dict[str, Any]:
    """The leaves that matter to a program, by name."""
    return {leaf: jnp.asarray(getattr(chip.vector, leaf)) for leaf in shared_rows(structure)}


def no_sooner(structure: Structure, last: Any, shares: dict[str, Any], table: Table, repeats: Any, hard: bool, smoothing: Any) -> Any:
    """`last`, [lots], but no sooner than engines that share a port can have done their work: ours + share x the other's.

    Gradient: exact; 0 in a share while the schedule takes longer anyway, at smoothing 0.
    """
    position = positions(structure)
    for leaf, (ours, others) in shared_rows(structure).items():
        ours_s, others_s = ((table.occupancy[position[rows]] * repeats[rows]).sum(0) for rows in (ours, others))
        others_s = shares[leaf].reshape(-1) * others_s
        last = smooth_max(last, ours_s + others_s, width(0.0 if hard else smoothing, others_s))
    return last
