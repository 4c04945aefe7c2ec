"""What estimate, sweep and tune accept: one concrete chip, programs one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.core
import numpy as np

from trn_jax.errors import ChipError, ProgramError
from trn_jax.timing.program import Program
from trn_jax.timing.schedule import check_chip, check_program

Programs = Program | Sequence[Program] | Mapping[str, Program]


def check_one_chip(where: str, chip: Any, instead: str) -> None:
    """Raises ChipError unless `chip` is a single chip made of numbers; `instead` says what to use otherwise."""
    check_chip(chip)
    leaves = jax.tree.leaves(chip)
    if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
        raise ChipError(f"{where} needs a chip made of numbers, but this one is inside jit, grad or vmap. {instead}")
    if any(np.ndim(leaf) for leaf in leaves):
        raise ChipError(f"{where} takes one chip, but the leaves of this one have a batch shape. {instead}")


def check_one_program(where: str, program: Any) -> None:
    """Raises ProgramError unless `program` is a single Program."""
    check_program(program)
    shape = np.broadcast_shapes(*(np.shape(column)[:-1] for column in program.table.values()))
    if shape:
        raise ProgramError(f"{where} takes programs one by one, but this one is a batch of shape {shape}. Use trn_jax.latency for batches.")


def named_programs(where: str, programs: Any) -> dict[Any, Program]:
    """Name (number, for a sequence; 0, for a single program) to program.

    Raises:
        ProgramError: Nothing given, something that is no Program, or a batch of workloads in one Program.
    """
    if isinstance(programs, Mapping):
        named = dict(programs)
    elif isinstance(programs, (list, tuple)):
        named = dict(enumerate(programs))
    else:
        named = {0: programs}
    if not named:
        raise ProgramError(f"{where} got no program. Make one with trn_jax.trace(f, *args), or give several as a list or a dict by name.")
    for program in named.values():
        check_one_program(where, program)
    return named
