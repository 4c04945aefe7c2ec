"""Utilisations as AWS's profiler defines them: MFU and HFU of the Tensor Engine, MBU of HBM.

    MFU = FLOP the model needs / (peak x latency)        HFU = FLOP the array executes / (peak x latency)        peak = 2 rows cols clock
    MBU = bytes over HBM / (bandwidth of the core's stack x latency)

What the model needs leaves out products that are computed again (`jax.checkpoint`); what the array executes has them, and counts whole
tiles and transposes. Basis: documented (AWS Neuron profiler, mfu, hfu and mbu; a published profile's MBU gives 716 GB/s per stack).
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from trn_jax.timing.program import Program

_RECOMPUTED = "rematted_computation"  # the scope JAX gives them


def core_peak_flop_per_s(chip: Any) -> float:
    """Peak of one core's array in 16-bit formats."""
    return 2.0 * float(chip.tensor.rows) * float(chip.tensor.cols) * float(chip.tensor.clock_hz)


def model_flops(program: Program) -> float:
    """FLOP of products, without those that are computed again.

    Recomputed products count as such only beside a first computation of the same line and sizes: where nothing but the gradient is
    asked for, that one may be dead code.
    """
    first: Counter[tuple[Any, ...]] = Counter()
    again: Counter[tuple[Any, ...]] = Counter()
    flops, table = np.asarray(program.row_flops), program.table
    for row in np.flatnonzero(flops):
        info = program.structure.rows[row]
        key = (info.source, *(float(table[name][row]) for name in ("batch", "m", "k", "n")))
        if _RECOMPUTED in info.scope:
            again[key] += flops[row]
        elif "transpose(" not in info.scope:
            first[key] += flops[row]
    return float(flops.sum()) - sum((first & again).values())


def array_flops(program: Program, chip: Any) -> float:
    """FLOP of the array: every moving column of every tile engages all of it, zeros included."""
    rows, cols = float(chip.tensor.rows), float(chip.tensor.cols)
    table, kinds = program.table, np.array(program.structure.kinds)
    moving = np.minimum(np.ceil(table["m"] / cols) * table["n"], np.ceil(table["n"] / cols) * table["m"])  # either operand may move
    columns = table["batch"] * np.where(kinds == "nc_matmul", np.ceil(table["k"] / rows) * moving, 0.0)
    columns = columns + np.where(kinds == "nc_transpose", table["elements"] / rows, 0.0)
    return float((2.0 * rows * cols * columns * program.repeats).sum())
