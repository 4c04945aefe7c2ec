"""Rows that are timed as an explicitly scheduled kernel, because their name gives its tiles.

A row of `KERNELS` is a pattern on the published name (as in `workloads.WORKLOADS`) and a builder of the kernel's Program with that tiling.
A row without a kernel is timed as a plain function.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from trn_jax.graph.instruction import PARTITIONS
from trn_jax.kernels import kernel
from trn_jax.timing.program import Program
from trn_jax.validation.measurement import Measurement
from trn_jax.validation.sizes import Missing
from trn_jax.validation.workload import Workload

Builder = Callable[[Measurement, Workload], Program]


@kernel(buffers=2)
def add_in_tiles(nc: Any, x_PC: Any, y_PC: Any, rows: int, columns: int) -> Any:
    """x + y, one load of each operand, one instruction and one store for every tile of `rows` by `columns`."""
    out_PC = nc.ndarray(x_PC.shape, x_PC.dtype, buffer="hbm")
    for c in nc.affine_range(x_PC.shape[1] // columns):
        for r in nc.affine_range(x_PC.shape[0] // rows):
            tile = slice(r * rows, (r + 1) * rows), slice(c * columns, (c + 1) * columns)
            nc.store(out_PC[tile], nc.tensor_tensor(nc.load(x_PC[tile]), nc.load(y_PC[tile]), "add"))
    return out_PC


def _vector_add(row: Measurement, workload: Workload) -> Program:
    """ROW_CHUNK: rows of tiles one column wide. FREE_DIM: columns of tiles that fill all partitions."""
    name, size = re.findall(r"(ROW_CHUNK|FREE_DIM)=(\d+)", row.workload.upper())[0]
    rows, columns = (int(size), 1) if name == "ROW_CHUNK" else (PARTITIONS, int(size))
    shape = workload.args[0].shape
    if not int(size):
        raise Missing(f"a meaning of tiles of {name}=0")
    if shape[0] % rows or shape[1] % columns:
        raise Missing(f"what the last tile is where {rows} x {columns} does not divide {shape[0]} x {shape[1]}")
    return add_in_tiles.program(*workload.args, rows=rows, columns=columns)


KERNELS: list[tuple[str, Builder]] = [(r"vector add (ROW_CHUNK|FREE_DIM)=\d", _vector_add)]


def kernel_program(row: Measurement, workload: Workload) -> Program | None:
    """The program of the kernel that a row describes, or None."""
    for pattern, build in KERNELS:
        if re.search(pattern, row.workload, re.IGNORECASE):
            return build(row, workload)
    return None
