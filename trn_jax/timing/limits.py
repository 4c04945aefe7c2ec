"""Hard limits: bytes that must fit for a program to run at all, whatever the schedule; the slack tells how far a chip is from each.

sbuf   one stationary and one moving tile of the largest product      min(k, rows) (min(m, cols) + min(n, moving)) x 4 or 2 bytes
psum   one tile of its result, in fp32                                min(m, cols) min(n, moving) x 4 bytes
hbm    the larger of what the program takes in and gives out          (outputs may overwrite inputs)
"""

from __future__ import annotations

from typing import Any

import numpy as np

from trn_jax.timing.program import Program

LIMITS = ("sbuf", "psum", "hbm")
PSUM_ITEM_BYTES = 4


def slack_bytes(program: Program, chip: Any) -> dict[str, np.ndarray]:
    """Bytes to spare in each memory; negative where the program cannot run.

    Args:
        program: One program.
        chip: A concrete chip; leaves may have a shape, all the same one or none.

    Returns:
        For each of `LIMITS` an array of the chip's shape, in bytes.

    Basis: derived; each is what any schedule needs, so a chip that passes may still want more.
    """
    issued = program.structure.issued
    tiles_bytes, sums_bytes = _largest_tiles(program, chip) if issued is None else (issued.sbuf_bytes, issued.psum_bytes)
    held_bytes = {"sbuf": tiles_bytes, "psum": sums_bytes, "hbm": footprint_bytes(program)}
    return {name: np.asarray(getattr(chip, name).size_bytes) - held for name, held in held_bytes.items()}


def footprint_bytes(program: Program) -> float:
    """Bytes of HBM that the program's inputs or its outputs take, whichever are more; a scanned array counts whole."""
    if program.structure.issued is not None:
        return program.structure.issued.hbm_bytes
    moved = np.asarray(program.table["bytes"] * program.table["hbm"] * program.repeats)
    functions = np.array(program.structure.functions)
    return float(max((moved[functions == name].sum() for name in ("load", "store")), default=0.0))


def _largest_tiles(program: Program, chip: Any) -> tuple[np.ndarray, np.ndarray]:
    """Most bytes that the tiles of one product need in SBUF and in PSUM, of the better of its two orders."""
    products = [index for index, kind in enumerate(program.structure.kinds) if kind == "nc_matmul"]
    columns = [np.asarray(program.table[name])[products] for name in "mkn"]
    item_bytes = np.where(np.array(program.structure.narrow, bool)[products], 2.0, 4.0)
    sizes = np.unique(np.stack([*columns, item_bytes], axis=-1), axis=0)  # a deep network repeats few of them
    tensor = chip.tensor
    rows, cols, moving = (np.asarray(leaf)[..., None] for leaf in (tensor.rows, tensor.cols, tensor.max_moving_columns))
    m, k, n, item_bytes = sizes.T
    depth, held_m, held_n = np.minimum(k, rows), np.minimum(m, cols), np.minimum(n, cols)
    moving_n, moving_m = np.minimum(n, moving), np.minimum(m, moving)
    tiles_bytes = depth * np.minimum(held_m + moving_n, held_n + moving_m) * item_bytes
    sums_bytes = np.minimum(held_m * moving_n, held_n * moving_m) * PSUM_ITEM_BYTES
    return tiles_bytes.max(-1, initial=0.0), sums_bytes.max(-1, initial=0.0)
