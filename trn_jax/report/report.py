"""The Report that `estimate` returns: numbers to compute with, a table to print, a picture, a trace file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trn_jax.chips.schema import Chip
from trn_jax.report.critical import PathRow
from trn_jax.report.footprint import Footprint
from trn_jax.timing.program import Program
from trn_jax.timing.schedule import Schedule

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTime:
    """What one engine does.

    Attributes:
        busy_s: Seconds it is occupied, all iterations of loops counted.
        utilisation: busy_s over the latency.
        instructions: Records it executes in that time; rows whose data are still in SBUF do not count.
    """

    busy_s: float
    utilisation: float
    instructions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """All rows of one instruction, source line and scope.

    Attributes:
        engine: Where it runs.
        label: Instruction and JAX operations.
        source: User's line.
        scope: jax.named_scope path.
        seconds: Its latencies, one after the other.
        share: Of the serial time.
    """

    engine: str
    label: str
    source: str
    scope: str
    seconds: float
    share: float


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class Report:
    """Where the time of a program goes on one core of a chip.

    Attributes:
        latency_s: What `trn_jax.latency` says at this overlap.
        bound_s: Nothing runs faster: datasheet rates, compulsory bytes.
        serial_s: With one instruction after the other (overlap 0), as today's compiled graphs run.
        concurrent_s: With all engines side by side (overlap 1), as the hardware promises.
        warmup_s: What the Tensor Engine's warm-up can add to latency_s; 0 if `throttle` is off or the chip has none.
        engines: "tensor", "vector", "scalar", "gpsimd", "dma", "collective" to busy_s, utilisation and instructions.
        idle_s: Seconds in which no engine is busy: latencies and round trips that nothing hides. One after the other (overlap 0) it is
            what the engines' busy times leave of the latency.
        without_s: For each engine, the latency if that engine took no time.
        flops: Floating point operations of the matrix products.
        mfu: Model FLOP utilisation, against the core's bf16 peak 2 rows cols clock; what `jax.checkpoint` computes again is left out.
        hfu: Hardware FLOP utilisation: what the array executes, with recomputation, transposes and part-filled tiles.
        mfu_chip: mfu against the peak that the chip page advertises, if all cores did this.
        mbu: Memory bandwidth utilisation, against the core's HBM stack.
        energy_j: Joules of this core, its share of the chip's static power included.
        energy_range_j: With all energies of the chip file at their low ends, and at their high ends.
        energy_by_engine_j: The engines with their memory accesses, and "static".
        hbm_bytes: Bytes that cross HBM at this size of SBUF.
        hbm_traffic: Of them, by what they are for: "load", "store", "spill", "reload", "reread" and operations that work in HBM.
        spilled_bytes: Stored because SBUF is too small, and loaded again.
        footprint: What is held in HBM: arguments by name, results, temporaries.
        hbm_bytes_compulsory: Those that do however large SBUF is.
        arithmetic_intensity_flop_per_byte: flops over hbm_bytes.
        slack_bytes: For "sbuf", "psum" and "hbm" the bytes to spare; negative where the program cannot run on the chip at all.
        top: Operations by source line, longest first.
        overlap: As given.
        program: What was timed.
        chip: On what.
        schedule: Start, end, occupancy and latency of every row.
        moved_bytes: [rows] bytes each row moves over HBM every time it runs.
    """

    latency_s: float
    bound_s: float
    serial_s: float
    concurrent_s: float
    warmup_s: float
    engines: Mapping[str, EngineTime]
    idle_s: float
    without_s: Mapping[str, float]
    flops: float
    mfu: float
    hfu: float
    mfu_chip: float
    mbu: float
    energy_j: float
    energy_range_j: tuple[float, float]
    energy_by_engine_j: Mapping[str, float]
    hbm_bytes: float
    hbm_traffic: Mapping[str, float]
    spilled_bytes: float
    footprint: Footprint
    hbm_bytes_compulsory: float
    arithmetic_intensity_flop_per_byte: float
    slack_bytes: Mapping[str, float]
    top: tuple[Operation, ...]
    overlap: Any
    program: Program = field(repr=False)
    chip: Chip = field(repr=False)
    schedule: Schedule = field(repr=False)
    moved_bytes: np.ndarray = field(repr=False)

    @property
    def feasible(self) -> bool:
        """Whether the program fits the chip's memories; its times mean nothing where it does not."""
        return min(self.slack_bytes.values()) >= 0

    @property
    def bottleneck(self) -> str:
        """The engine whose time matters most: without it the latency would be shortest; the busiest one at a tie."""
        return min(self.engines, key=lambda engine: (self.without_s[engine], -self.engines[engine].busy_s))

    @property
    def bottleneck_text(self) -> str:
        """The bottleneck in words, with what would be left of the latency if it took no time."""
        from trn_jax.report.table import bottleneck_text

        return bottleneck_text(self)

    @property
    def critical_path(self) -> tuple[PathRow, ...]:
        """Rows on the critical path, in order, with the seconds each contributes: they sum to `latency_s`.

        Computed when asked for, once per structure of program with a compilation of a few seconds.
        """
        from trn_jax.report.critical import critical_path

        return critical_path(self.program, self.chip, self.overlap)

    @property
    def passes(self) -> dict[str, float]:
        """What each fusion pass bought: seconds of the latency without it, less `latency_s`; lowers the function again for each.

        Empty for a `trn_jax.kernel` and for a program built by hand or unpickled, which have no function to lower again.
        """
        from trn_jax.report.fusion import bought_s

        return bought_s(self.program, self.chip, self.overlap, self.latency_s)

    def to_table(self, top: int = 5) -> str:
        """The report as text: totals, engines, memory, bottleneck and the `top` longest operations."""
        from trn_jax.report.table import report_text

        return report_text(self, top)

    def to_dict(self, *, explain: bool = False) -> dict[str, Any]:
        """The report as numbers and texts that `json.dumps` takes; `explain` adds the critical path and what the passes bought."""
        from trn_jax.report.record import report_record

        return report_record(self, explain)

    def timeline(self, path: str | os.PathLike[str] | None = None) -> Figure:
        """Draws what each engine does when; needs matplotlib (`pip install 'trn_jax[plots]'`).

        Args:
            path: PNG (or PDF, SVG) to write as well.

        Returns:
            The figure, which a notebook shows.

        Raises:
            UnsupportedError: matplotlib is not installed.
        """
        from trn_jax.report.timeline import draw_timeline

        return draw_timeline(self, path)

    def roofline(self, path: str | os.PathLike[str] | None = None) -> Figure:
        """Draws what the arithmetic intensity allows and where the program is; needs matplotlib (`pip install 'trn_jax[plots]'`).

        Args:
            path: PNG (or PDF, SVG) to write as well.

        Returns:
            The figure, which a notebook shows.

        Raises:
            ProgramError: The program has no matrix products, or moves nothing.
            UnsupportedError: matplotlib is not installed.
        """
        from trn_jax.report.roofline import draw_roofline

        return draw_roofline(self, path)

    def save_trace(self, path: str | os.PathLike[str]) -> Path:
        """Writes the schedule as a trace file for https://ui.perfetto.dev or chrome://tracing; returns the path."""
        from trn_jax.report.trace import save_trace

        return save_trace(self, path)

    def __repr__(self) -> str:
        return self.to_table()

    def _repr_html_(self) -> str:
        from trn_jax.report.table import report_html

        return report_html(self)
