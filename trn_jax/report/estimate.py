"""estimate: where the time of a Program goes on a chip.

concurrent <= latency <= serial        utilisation = busy / latency        MFU, HFU, MBU: see `report.utilisation`
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from trn_jax.engines.dma import moved_bytes
from trn_jax.graph.instruction import ENGINES
from trn_jax.report.bottleneck import freed_chips, lot
from trn_jax.report.footprint import footprint
from trn_jax.report.inputs import check_one_chip, check_one_program
from trn_jax.report.report import EngineTime, Operation, Report
from trn_jax.report.slices import engine_slices, idle_s
from trn_jax.report.utilisation import array_flops, core_peak_flop_per_s, model_flops
from trn_jax.report.warmup import warmup_s
from trn_jax.timing.bound import bound
from trn_jax.timing.energy import parts_of, with_ends
from trn_jax.timing.exact import precision
from trn_jax.timing.limits import slack_bytes
from trn_jax.timing.overlap import default_overlap, overlap_levels
from trn_jax.timing.program import Program
from trn_jax.timing.schedule import Schedule, schedule


def estimate(program: Program, chip: Any, *, overlap: Any = None, throttle: bool = True) -> Report:
    """Times a program on one chip and says where the time goes.

    Args:
        program: From `trn_jax.trace`; one program, no batch.
        chip: One concrete chip. Many chips at once are `trn_jax.sweep`'s business.
        overlap: As for `trn_jax.latency`; the report has both ends in any case.
        throttle: Whether `warmup_s` says what the warm-up of the Tensor Engine costs on top; `latency_s` is always without it.

    Returns:
        A `Report`, all numbers Python floats. Print it, or use `.engines`, `.bottleneck`, `.to_table()`, `.timeline()`,
        `.roofline()`, `.critical_path`, `.passes`, `.save_trace(path)`.

    Raises:
        ProgramError: Not one program, or an unknown overlap.
        ChipError: Not one concrete chip.

    Units: seconds, bytes, joules, floating point operations. Gradient: none; differentiate `trn_jax.latency` and `trn_jax.energy`.
    Basis: as `latency`; the warm-up as `report.warmup` says.
    """
    check_one_program("estimate", program)
    check_one_chip("estimate", chip, "Use trn_jax.latency there, or trn_jax.sweep for many chips.")
    overlap = default_overlap(overlap, program)
    engines, collectives = overlap_levels(overlap)
    with precision("float64"):  # levels as arrays: both ends and all between them are one compilation
        level = jnp.asarray(engines)
        asked_for = level if collectives is engines else {"engines": level, "collectives": jnp.asarray(collectives)}
        at_once = jnp.asarray(1.0) if collectives is engines else {"engines": jnp.asarray(1.0), "collectives": jnp.asarray(1.0)}
        chips = freed_chips(chip)
        asked = schedule(program, chips, overlap=asked_for)
        concurrent = schedule(program, chips, overlap=at_once)
        bound_s = float(bound(program, chip))
        energies = parts_of(program, with_ends(chip), asked.total_s[0])
        moved = _moved_bytes(program, chip)
    plan: Schedule = lot(asked, 0)
    repeats = np.asarray(program.repeats)
    latency_s, flops, hbm_bytes = float(plan.total_s), float(program.flops), float((moved * repeats).sum())
    peak_flop = core_peak_flop_per_s(chip) * latency_s
    needed_flops = model_flops(program)
    ends_j = np.broadcast_to(sum(map(np.asarray, energies.values())), 3)
    traffic = _traffic(program, moved * repeats)
    slices = engine_slices(program, plan)
    return Report(
        latency_s=latency_s,
        bound_s=bound_s,
        serial_s=float(plan.serial_s),
        concurrent_s=float(concurrent.total_s[0]),
        warmup_s=warmup_s(slices, chip) if throttle else 0.0,
        engines=_engines(program, plan, repeats),
        idle_s=idle_s(slices, latency_s),
        without_s={engine: float(asked.total_s[index]) for index, engine in enumerate(ENGINES, start=1)},
        flops=flops,
        mfu=_ratio(needed_flops, peak_flop),
        hfu=_ratio(array_flops(program, chip), peak_flop),
        mfu_chip=_ratio(needed_flops * float(chip.cores), float(chip.tensor.chip_peak_flop_per_s) * latency_s),
        mbu=_ratio(hbm_bytes * float(chip.hbm.stacks), float(chip.hbm.bandwidth_bytes_per_s) * latency_s),
        energy_j=float(ends_j[1]),
        energy_range_j=(float(ends_j[0]), float(ends_j[2])),
        energy_by_engine_j={engine: float(np.broadcast_to(joules, 3)[1]) for engine, joules in energies.items()},
        hbm_bytes=hbm_bytes,
        hbm_traffic=traffic,
        spilled_bytes=traffic.get("spill", 0.0) + traffic.get("reload", 0.0),
        footprint=footprint(program, moved),
        hbm_bytes_compulsory=float(program.compulsory_bytes),
        arithmetic_intensity_flop_per_byte=_ratio(flops, hbm_bytes),
        slack_bytes={name: float(slack) for name, slack in slack_bytes(program, chip).items()},
        top=_operations(program, plan, repeats),
        overlap=overlap,
        program=program,
        chip=chip,
        schedule=plan,
        moved_bytes=moved,
    )


def _moved_bytes(program: Program, chip: Any) -> np.ndarray:
    """Bytes each row moves over HBM at this size of SBUF, every time it runs."""
    table = program.table
    size_bytes = np.asarray(table["bytes"] * table["hbm"])
    return np.asarray(moved_bytes(size_bytes, np.asarray(table["reuse_bytes"]), chip, 0.0, np.asarray(table.get("reuse_slope", 1.0))))


def _traffic(program: Program, moved: np.ndarray) -> dict[str, float]:
    """Bytes over HBM by what they are for, largest first: "load", "store", "spill", "reload", "reread", or the name of an operation."""
    found: dict[str, float] = {}
    for row in np.flatnonzero(moved):
        name = program.structure.functions[row] or program.structure.kinds[row]
        found[name] = found.get(name, 0.0) + float(moved[row])
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _engines(program: Program, plan: Schedule, repeats: np.ndarray) -> dict[str, EngineTime]:
    runs = repeats * (plan.occupancy_s > 0)
    names = np.array(program.structure.engines)
    busy_s = {engine: float(plan.busy_s.get(engine, 0.0)) for engine in ENGINES}
    return {
        engine: EngineTime(
            busy_s=busy_s[engine],
            utilisation=_ratio(busy_s[engine], float(plan.total_s)),
            instructions=int(round(runs[names == engine].sum())),
        )
        for engine in ENGINES
    }


def _operations(program: Program, plan: Schedule, repeats: np.ndarray) -> tuple[Operation, ...]:
    """Time by engine, instruction, source line and scope; longest first."""
    seconds: dict[tuple[str, str, str, str], float] = {}
    for row, info in enumerate(program.structure.rows):
        if info.instruction is not None:
            key = (info.instruction.engine, info.label, info.source, info.scope)
            seconds[key] = seconds.get(key, 0.0) + float(plan.latency_s[row] * repeats[row])
    found = (
        Operation(engine=engine, label=label, source=source, scope=scope, seconds=time, share=_ratio(time, float(plan.serial_s)))
        for (engine, label, source, scope), time in seconds.items()
    )
    return tuple(sorted(found, key=lambda operation: -operation.seconds))


def _ratio(part: float, whole: float) -> float:
    """part / whole, 0 where there is no whole."""
    return part / whole if whole else 0.0
