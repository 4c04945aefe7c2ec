"""A row's time on its chip, by the most faithful path that the row gives figures for: counters, kernel, or plain function."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from trn_jax.chips import Chip, load_chip
from trn_jax.errors import NoRuleError, UnsupportedError
from trn_jax.software import Software, load_software
from trn_jax.timing.bound import bound
from trn_jax.timing.latency import latency
from trn_jax.timing.program import Program
from trn_jax.timing.trace import trace
from trn_jax.units import format_quantity
from trn_jax.validation.counters import has_counters, with_counters
from trn_jax.validation.kernels import kernel_program
from trn_jax.validation.measurement import Measurement
from trn_jax.validation.sizes import Missing
from trn_jax.validation.workload import Workload
from trn_jax.validation.workloads import workload_of

BENCHMARKS = ("nc_latency", "nki.benchmark")  # metrics taken on the host, which contain the launch


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Seconds of one row.

    Attributes:
        workload: What was traced.
        path: "function", "kernel" or "counters".
        latency_s: By that path.
        function_s: By the plain function.
        bound_s: Datasheet lower bound of the function.
    """

    workload: Workload
    path: str
    latency_s: float
    function_s: float
    bound_s: float


@dataclass
class Predictor:
    """Predicts rows; functions that several rows share are traced and timed once."""

    software: Software = field(default_factory=load_software)
    chips: dict[str, Chip] = field(default_factory=dict)
    programs: dict[Any, Program] = field(default_factory=dict)
    times: dict[Any, tuple[float, float]] = field(default_factory=dict)

    def predict(self, row: Measurement) -> Prediction:
        """The time of a row.

        Raises:
            Missing: With the figure that is missing.
        """
        if not row.preset:
            raise Missing(f"a model of the chip {row.chip!r}" if row.chip else "the chip")
        workload = workload_of(row)
        chip = self.chips.setdefault(row.preset, load_chip(row.preset))
        if workload.argument_bytes > chip.hbm.size_bytes:
            arguments, room = (format_quantity(float(size), "B") for size in (workload.argument_bytes, chip.hbm.size_bytes))
            raise Missing(f"room: the arguments take {arguments}, and HBM has {room}")
        program = self.program(workload)
        key = (_key(workload), row.preset)
        if key not in self.times:
            self.times[key] = float(latency(program, chip)), float(bound(program, chip))
        function_s, bound_s = self.times[key]
        path, published = self.published(row, workload, chip)
        seconds = function_s if path == "function" else float(latency(published, chip))
        launch_s = self.launch_s(row)
        return Prediction(workload=workload, path=path, latency_s=seconds + launch_s, function_s=function_s + launch_s, bound_s=bound_s)

    def program(self, workload: Workload) -> Program:
        """The program of a workload's plain function; raises Missing where a primitive has no rule."""
        key = _key(workload)
        if key not in self.programs:
            try:
                self.programs[key] = trace(workload.function, *workload.args)
            except (NoRuleError, UnsupportedError) as error:
                raise Missing(f"a rule: {error}") from error
            except (TypeError, ValueError) as error:
                raise Missing(f"a {workload.name} of {workload.shape}: {str(error).splitlines()[0]}") from error
        return self.programs[key]

    def published(self, row: Measurement, workload: Workload, chip: Chip) -> tuple[str, Program]:
        """The path of a row, and the program that is timed on it: what is known of the published kernel."""
        program = self.program(workload)
        kernel = kernel_program(row, workload)
        if has_counters(row.extra):
            return "counters", with_counters(program, chip, row.extra)
        return ("function", program) if kernel is None else ("kernel", kernel)

    def launch_s(self, row: Measurement) -> float:
        """The launch that a figure taken on the host contains, 0 for one of a profile."""
        return self.software.launch_s if row.text("metric").startswith(BENCHMARKS) else 0.0


def _key(workload: Workload) -> tuple[Any, ...]:
    return workload.name, workload.function, workload.args
