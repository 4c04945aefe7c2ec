"""When every row of a Program runs, and how long the whole takes, on one chip or on many at once.

A schedule is a weighted mean of a few fixed-order schedules (see `timing.overlap`), each made of nothing but maxima and sums of
times that come from the chip (see `timing.recurrence`); so is every start and end, and rows of one engine never overlap.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from trn_jax.chips import Chip
from trn_jax.errors import ChipError, FormatError, ProgramError
from trn_jax.graph.instruction import ENGINES
from trn_jax.timing.cost import Table, positions, price
from trn_jax.timing.exact import in_float64
from trn_jax.timing.intervals import add_intervals, serial_rows
from trn_jax.timing.overlap import IN_TURN, SERIAL, default_overlap, mixture
from trn_jax.timing.plan import main_plan
from trn_jax.timing.ports import no_sooner, port_shares
from trn_jax.timing.program import Program, Structure
from trn_jax.timing.recurrence import run
from trn_jax.timing.shared_rate import moving_s, shared_s
from trn_jax.timing.smoothing import is_hard, smooth_max, smooth_max_over, width


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Times in seconds; a batch of chips or workloads adds its shape at the end. Inside a loop: those of its first iteration.

    Attributes:
        start_s: [rows] When a row's engine turns to it: end - occupancy.
        end_s: [rows] When its whole result is visible.
        occupancy_s: [rows] How long its engine is busy with it; 0 on closing rows.
        latency_s: [rows] How long it takes alone.
        total_s: The end of the last row.
        busy_s: How long each engine is busy, all iterations counted; of several DMA queues, how long they move bytes.
        serial_s: All rows one after the other.
        intervals_s: [loops] Initiation interval of each loop.
    """

    start_s: Any
    end_s: Any
    occupancy_s: Any
    latency_s: Any
    total_s: Any
    busy_s: Mapping[str, Any]
    serial_s: Any
    intervals_s: Any


jax.tree_util.register_dataclass(
    Schedule,
    data_fields=["start_s", "end_s", "occupancy_s", "latency_s", "total_s", "busy_s", "serial_s", "intervals_s"],
    meta_fields=[],
)


def schedule(program: Program, chip: Chip, *, smoothing: Any = 0.0, overlap: Any = None, dtype: Any = "float64") -> Schedule:
    """Start and end of every row; arguments as for `trn_jax.latency`, which is `.total_s` of this.

    Units: seconds. Gradient: as `latency`. Basis: derived from the costs of the engines' tables.
    """
    return evaluate(_schedule, program, chip, smoothing, overlap, dtype)


def evaluate(function: Any, program: Program, chip: Chip, smoothing: Any, overlap: Any, dtype: Any) -> Any:
    """Checks and prepares the arguments, runs `function` compiled in `dtype`, and returns default floats."""
    check_program(program)
    check_chip(chip)
    check_formats(program, chip)
    name = dtype if isinstance(dtype, str) else np.dtype(dtype).name
    if name not in ("float32", "float64"):
        raise ProgramError(f"dtype = {name!r}: times are computed in 'float64' (exact) or 'float32' (sweeps of many chips).")
    if isinstance(smoothing, (int, float, np.generic)) and not 0 <= float(smoothing) <= 1:
        raise ProgramError(f"smoothing = {float(smoothing):g}: give 0 for exact times, or up to 1; 0.01 to 0.1 are usual.")
    weights = mixture(default_overlap(overlap, program), "collective" in program.structure.engines)
    leaves, treedef = jax.tree.flatten((program, chip, smoothing, weights))
    traced = [index for index, leaf in enumerate(leaves) if isinstance(leaf, Tracer)]
    returned = jax.dtypes.canonicalize_dtype(float)

    def compute(*values: Any) -> Any:
        everything = dict(enumerate(leaves)) | dict(zip(traced, values, strict=True))
        arrays = [jnp.asarray(everything[index], name) for index in range(len(leaves))]
        result = function(*jax.tree.unflatten(treedef, arrays), hard=is_hard(smoothing), dtype=name)
        return jax.tree.map(lambda x: x.astype(returned), result)

    if name == "float32" or returned == np.float64:
        return compute(*(leaves[index] for index in traced))
    if traced:  # what is known stays out of it, as exact as it was given
        return in_float64(compute)(*(leaves[index] for index in traced))
    with jax.enable_x64(True):
        return compute()


@partial(jax.jit, static_argnames=("hard", "dtype"))
def total(program: Program, chip: Chip, smoothing: Any, weights: dict[str, Any], *, hard: bool, dtype: str) -> Any:
    """Seconds until the last row has ended."""
    table, moving, trips, repeats, shares, shape = _table(program, chip, smoothing, hard, dtype)
    return _total(program.structure, table, moving, trips, repeats, shares, smoothing, weights, hard).reshape(shape)


@partial(jax.jit, static_argnames=("hard", "dtype"))
def critical(program: Program, chip: Chip, smoothing: Any, weights: dict[str, Any], *, hard: bool, dtype: str) -> Any:
    """[rows, *batch] seconds that each row has on the critical paths of the schedules, in the proportion in which these count.

    The total is made of maxima and sums of the table's seconds, so it is the sum of (its derivative in each of them) x (that many
    seconds): what is not on a critical path has derivative 0. At a tie the sides share.
    """
    table, moving, trips, repeats, shares, shape = _table(program, chip, smoothing, hard, dtype)
    of = lambda table, moving: _total(program.structure, table, moving, trips, repeats, shares, smoothing, weights, hard).sum()
    slopes, moving_slope = jax.grad(of, argnums=(0, 1))(table, moving)
    seconds = _by_row(program.structure, sum(slope * part for slope, part in zip(slopes[:3], table[:3], strict=True)))
    return (seconds + (0.0 if moving is None else moving_slope * moving)).reshape(len(program), *shape)


def _total(
    structure: Structure,
    table: Table,
    moving: Any,
    trips: Any,
    repeats: Any,
    shares: dict[str, Any],
    smoothing: Any,
    weights: dict[str, Any],
    hard: bool,
) -> Any:
    """Seconds until the last row has ended, [lots]: the weighted mean of the schedules."""
    result, lasts = jnp.zeros(table.gap.shape[-1], table.gap.dtype), {}
    for mode, weight in weights.items():
        if mode == SERIAL:
            result = result + weight * _serial(structure, table, repeats)
        else:
            lanes = IN_TURN.get(mode, mode)
            if lanes not in lasts:
                filled, _ = add_intervals(structure, lanes, table, moving, trips, hard, smoothing)
                last = _last(structure, lanes, filled, moving, trips, hard, smoothing)
                lasts[lanes] = no_sooner(structure, last, shares, table, repeats, hard, smoothing)
            last = lasts[lanes] if mode == lanes else _in_turn(structure, mode, lasts[lanes], table, repeats, hard, smoothing)
            result = result + weight * last
    return result


@partial(jax.jit, static_argnames=("hard", "dtype"))
def _schedule(program: Program, chip: Chip, smoothing: Any, weights: dict[str, Any], *, hard: bool, dtype: str) -> Schedule:
    structure = program.structure
    table, moving, trips, repeats, shares, shape = _table(program, chip, smoothing, hard, dtype)
    latency_s, occupancy_s = (_by_row(structure, seconds) for seconds in (table.occupancy + table.gap, table.occupancy))
    serial, iterations = serial_rows(structure, latency_s, trips)
    end_s, total_s, intervals = jnp.zeros_like(serial), jnp.zeros_like(serial[:1].sum(0)), [jnp.zeros_like(s) for s in iterations]
    for mode, weight in weights.items():
        if mode == SERIAL:
            ends, last, cycles = jnp.cumsum(serial, axis=0), serial.sum(0), iterations
        else:
            lanes = IN_TURN.get(mode, mode)
            filled, cycles = add_intervals(structure, lanes, table, moving, trips, hard, smoothing)
            ends, last = _ends(structure, lanes, filled, hard, smoothing), _last(structure, lanes, filled, moving, trips, hard, smoothing)
            stretched = no_sooner(structure, last, shares, table, repeats, hard, smoothing)
            if mode in IN_TURN:
                stretched = _in_turn(structure, mode, stretched, table, repeats, hard, smoothing)
            if mode in IN_TURN or shares:  # the same order, stretched until the work fits in that engines do one after the other
                factor = stretched / jnp.where(last > 0, last, 1.0)
                ends, last, cycles = ends * factor[None], stretched, [cycle * factor for cycle in cycles]
        end_s, total_s = end_s + weight * ends, total_s + weight * last
        intervals = [sum_s + weight * cycle for sum_s, cycle in zip(intervals, cycles, strict=True)]
    work_s = occupancy_s if moving is None else jnp.where(moving > 0, moving, occupancy_s)
    busy = {engine: [row for row, name in enumerate(structure.engines) if name == engine] for engine in ENGINES}
    result = Schedule(
        start_s=end_s - occupancy_s,
        end_s=end_s,
        occupancy_s=occupancy_s,
        latency_s=latency_s,
        total_s=total_s,
        busy_s={engine: (work_s * repeats)[np.array(rows, int)].sum(0) for engine, rows in busy.items() if rows},
        serial_s=serial.sum(0),
        intervals_s=jnp.stack(intervals) if intervals else jnp.zeros_like(serial[:0]),
    )
    return jax.tree.map(lambda x: x.reshape(*x.shape[:-1], *shape), result)


def lots_of(program: Program, chip: Chip, dtype: str) -> tuple[Chip, dict[str, Any], Any, tuple[int, ...]]:
    """Makes chips and workloads the lots of one batch.

    Returns:
        The chip with leaves that are scalars or [1, lots], columns and repeats that are [rows, 1] or [rows, lots], and the shape of
        the batch.
    """
    shapes = [jnp.shape(leaf) for leaf in jax.tree.leaves(chip)] + [jnp.shape(column)[:-1] for column in program.table.values()]
    shape = jnp.broadcast_shapes(*shapes)

    def lots(x: Any) -> Any:
        return x if jnp.ndim(x) == 0 else jnp.broadcast_to(x, shape).reshape(1, -1)

    def rows_first(column: Any) -> Any:
        column = jnp.asarray(column, dtype)
        return column[:, None] if column.ndim == 1 else jnp.broadcast_to(column, (*shape, column.shape[-1])).reshape(-1, column.shape[-1]).T

    columns = {name: rows_first(column) for name, column in program.table.items()}
    repeats = jnp.ones_like(columns["trips"])
    for loop in program.structure.loops:
        repeats = repeats.at[loop.begin : loop.end].multiply(columns["trips"][loop.end])
    return jax.tree.map(lots, chip), columns, repeats, shape


def _table(
    program: Program, chip: Chip, smoothing: Any, hard: bool, dtype: str
) -> tuple[Table, Any, Any, Any, dict[str, Any], tuple[int, ...]]:
    """Costs of all rows, seconds that DMA queues share, trips, repeats, how far ports are shared, and the shape of the batch."""
    lots, columns, repeats, shape = lots_of(program, chip, dtype)
    smoothing = 0.0 if hard else smoothing
    table, moving = price(program.structure, columns, lots, smoothing, dtype), moving_s(program.structure, columns, lots, smoothing)
    if moving is not None:
        moving = jnp.broadcast_to(moving, (moving.shape[0], table.gap.shape[-1]))
    return table, moving, columns["trips"], repeats, port_shares(program.structure, lots), shape


def _serial(structure: Structure, table: Table, repeats: Any) -> Any:
    """All rows one after the other, [lots]."""
    order = np.argsort(positions(structure)[:-1])
    return ((table.occupancy + table.gap)[:-1] * repeats[order]).sum(0)


def _in_turn(structure: Structure, mode: str, last: Any, table: Table, repeats: Any, hard: bool, smoothing: Any) -> Any:
    """`last`, but no sooner than compute engines (and collectives, where those are alone) can do their work one after the other."""
    beside = ("dma", "loop") if mode == "compute_in_turn_alone" else ("dma", "loop", "collective")
    rows = np.array([row for row, engine in enumerate(structure.engines) if engine not in beside], int)
    work = (table.occupancy[positions(structure)[rows]] * repeats[rows]).sum(0)
    return smooth_max(last, work, width(0.0 if hard else smoothing, work))


def _by_row(structure: Structure, seconds: Any) -> Any:
    """[rows, lots] in the order of the program."""
    return seconds[positions(structure)[:-1]]


def _last(structure: Structure, mode: str, table: Table, moving: Any, trips: Any, hard: bool, smoothing: Any) -> Any:
    """The end of the last row of any lane, which is not before all DMA queues together could be done."""
    plan = main_plan(structure, mode, "ends")
    if not len(plan):
        return jnp.zeros_like(table.gap[0])
    ends: Any = run(plan, hard, table, smoothing)
    ends = ends[:, 0, 0]
    if structure.issued is not None:
        ends = jnp.concatenate([ends, shared_s(structure, moving, trips, 0, len(structure.engines))[None]])
    return smooth_max_over(ends, width(0.0 if hard else smoothing, ends.mean(0)))


def _ends(structure: Structure, mode: str, table: Table, hard: bool, smoothing: Any) -> Any:
    """The end of each row, [rows, lots]."""
    plan = main_plan(structure, mode, "rows")
    ends: Any = run(plan, hard, table, smoothing)
    ends = ends[:, 0, 0]
    rows = np.zeros(len(structure.engines), int)
    rows[list(plan.rows)] = np.arange(len(plan.rows))
    return ends[rows]


def check_program(program: Any) -> None:
    """Raises ProgramError unless it is a Program."""
    if not isinstance(program, Program):
        kind = "function" if callable(program) else type(program).__name__
        raise ProgramError(f"Got a {kind} where a Program is needed. Make one with trn_jax.trace(f, *args): it takes shapes, not weights.")


def check_formats(program: Program, chip: Chip) -> None:
    """Raises FormatError if the program multiplies operands in a format that the chip's Tensor Engine does not have."""
    structure = program.structure
    if not chip.rounds or not structure.operand_formats:
        return
    for row, (engine, formats) in enumerate(zip(structure.engines, structure.operand_formats, strict=True)):
        missing = sorted(set(formats) - {"", *chip.formats}) if engine == "tensor" else []
        if missing:
            where = structure.rows[row]
            raise FormatError(
                f"The Tensor Engine of {chip.name} has no {missing[0]} operands, but {where.label} at {where.source or 'no known line'} "
                f"has them; it takes {', '.join(chip.formats)}. Trace with other formats, or choose a chip that has the format."
            )


def check_chip(chip: Any) -> None:
    """Raises ChipError unless it is a Chip with numbers in all its leaves."""
    if not isinstance(chip, Chip):
        raise ChipError(f"Got a {type(chip).__name__} where a chip is needed. Make one with trn_jax.load_chip('trainium2').")
    from trn_jax.chips.paths import leaves_by_path

    for path, leaf in leaves_by_path(chip).items():
        if not isinstance(leaf, (int, float, np.number, np.ndarray, jax.Array)) or isinstance(leaf, bool):
            raise ChipError(f"The chip's {path} is {leaf!r}, a {type(leaf).__name__}. Every leaf is a float or a float array.")
