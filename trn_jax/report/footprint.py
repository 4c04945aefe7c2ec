"""The footprint in HBM: arguments by name, results that need room of their own, and what is spilled at the fullest moment.

    total = arguments + captured arrays + results beyond them + temporaries

An argument of several arrays that all come back makes room for them, as donated buffers do: new weights take the place of the old ones,
the next cache that of the last. Temporaries are data that this schedule spills from SBUF, from their store to their last load.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from trn_jax.report.text import quantity
from trn_jax.timing.program import Program

CAPTURED = "captured arrays"
FORWARD, BACKWARD, OTHER = "forward pass", "backward pass", "other steps"


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Bytes of HBM.

    Attributes:
        arguments: By name of the argument: weights, optimizer state, caches of keys and values, batches, as the function has them.
        results_bytes: Results that do not take an argument's place.
        temporaries: Spilled data at the fullest moment, by what made them: activations for the backward pass in the "forward pass",
            gradients and the like in the "backward pass", and "other steps" such as an optimizer's, or all of them without `jax.grad`.
    """

    arguments: Mapping[str, float]
    results_bytes: float
    temporaries: Mapping[str, float]

    @property
    def total_bytes(self) -> float:
        """All of it."""
        return sum(self.arguments.values()) + self.results_bytes + sum(self.temporaries.values())

    def parts(self) -> dict[str, float]:
        """Name to bytes, largest first, without what is empty."""
        named = {**self.arguments, "results": self.results_bytes, **{f"spills of the {k}": v for k, v in self.temporaries.items()}}
        return dict(sorted(((name, size) for name, size in named.items() if size > 0), key=lambda item: -item[1]))


def footprint(program: Program, moved_bytes: np.ndarray) -> Footprint:
    """Footprint of a program that moves these bytes per row at its chip's size of SBUF.

    Args:
        program: One program. Without the function it was traced from (a kernel, a pickled program) arguments are one entry, "inputs".
        moved_bytes: [rows].

    Returns:
        A `Footprint`; one core's part of an argument with a `NamedSharding`, all of any other.

    Units: bytes. Gradient: none. Basis: derived; that buffers are donated is assumed.
    """
    temporaries = _temporaries(program, moved_bytes)
    origin = program.structure.origin
    if origin is None:
        moved = moved_bytes * np.asarray(program.repeats)
        sizes = {name: float(moved[np.array(program.structure.functions) == name].sum()) for name in ("load", "store")}
        return Footprint(arguments={"inputs": sizes["load"]}, results_bytes=sizes["store"], temporaries=temporaries)
    arguments = {name: sum(array.size_bytes for array in arrays) for name, arrays in origin.arguments.items()}
    if origin.captured_bytes:
        arguments[CAPTURED] = origin.captured_bytes
    beyond = Counter(origin.results)
    for arrays in map(Counter, origin.arguments.values()):
        if arrays.total() > 1 and arrays <= beyond:
            beyond -= arrays
    return Footprint(
        arguments=arguments, results_bytes=sum(array.size_bytes * count for array, count in beyond.items()), temporaries=temporaries
    )


def _temporaries(program: Program, moved_bytes: np.ndarray) -> dict[str, float]:
    """Bytes spilled and not yet loaded for the last time, when they are most."""
    structure, trips = program.structure, np.asarray(program.table["trips"])
    rows = len(program)
    last_use: dict[int, int] = {}
    for row, waits in enumerate(structure.waits):
        if structure.functions[row] in ("reload", "reread"):
            last_use.update(dict.fromkeys(waits, row))
    alive = {name: np.zeros(rows + 1) for name in (FORWARD, BACKWARD, OTHER)}
    for row in np.flatnonzero(np.array([function == "spill" for function in structure.functions]) & (moved_bytes > 0)):
        begin, size_bytes, end = int(row), float(moved_bytes[row]), last_use.get(int(row))
        for loop in sorted(structure.loops, key=lambda loop: loop.end):  # innermost first
            if loop.begin <= row < loop.end and end is None:  # what is needed after the loop is a stack of all its iterations
                begin, size_bytes, end = loop.begin, size_bytes * float(trips[loop.end]), last_use.get(loop.end)
        made_by = alive[_pass_of(structure.rows[row].scope)]
        made_by[begin] += size_bytes
        made_by[rows if end is None else end] -= size_bytes
    filled = {name: np.cumsum(steps) for name, steps in alive.items()}
    fullest = int(np.argmax(sum(filled.values())))
    return {name: float(held[fullest]) for name, held in filled.items() if held[fullest] > 0}


def _pass_of(scope: str) -> str:
    """Which pass a scope belongs to: JAX wraps those of a differentiated function in jvp( ) and transpose( )."""
    return BACKWARD if "transpose(" in scope else FORWARD if "jvp(" in scope else OTHER


def capacity_text(held: Footprint, chip: Any) -> str:
    """The sum as arithmetic, against the chip's HBM."""
    parts = " + ".join(f"{name} {quantity(size, 'B')}" for name, size in held.parts().items())
    return f"{parts or 'nothing'} = {quantity(held.total_bytes, 'B')} of {quantity(float(chip.hbm.size_bytes), 'B')} HBM"
