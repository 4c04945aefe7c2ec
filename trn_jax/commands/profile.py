"""`trn-jax profile`: where the time of a workload goes on a chip."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

if TYPE_CHECKING:
    from trn_jax.report.report import Report

_Flag = Annotated[bool, tyro.conf.FlagCreatePairsOff]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Profile:
    """Predict how long a workload takes on one core of a chip, and say where the time goes.

    A workload is a reference model (gpt2, llama-3-8b, llama-3.1-405b, resnet50), a product (matmul:4096x4096x4096:bf16), or a function of
    your own (package.module:function, followed by the shapes of its arguments, such as 128x512:bf16 4:int32).
    """

    workload: Annotated[str, tyro.conf.Positional]
    """What to time."""

    shapes: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Of the arguments of a function of your own: 128x512:bf16, 4:int32, scalar:fp32."""

    mode: Literal["forward", "train", "decode"] | None = None
    """Of a reference model: its logits (default), a whole training step, or one more token with a full cache."""

    batch: int | None = None
    """Sequences or images of a reference model."""

    tokens: int | None = None
    """Tokens of a sequence, or of the cache of a decode step."""

    scan_layers: _Flag = False
    """Trace the layers of a reference model as one loop: faster, within about 3 %."""

    chip: str | None = None
    """A chip that comes with trn_jax, or a TOML file; trainium2 if not given."""

    compare: tuple[str, str] | None = None
    """Two chips side by side, instead of --chip."""

    overlap: str | None = None
    """"compiled" (0), or a level from 0 (one instruction after the other) to 1; 0.8 if not given."""

    software: str | None = None
    """Add the overheads of a release of the Neuron SDK, such as 2.26, or of a software block, such as neuron."""

    explain: _Flag = False
    """Also the critical path, and what each fusion pass bought; takes as long again."""

    trace: Path | None = None
    """Write a trace for https://ui.perfetto.dev to this file."""

    timeline: Path | None = None
    """Draw what each engine does when to this PNG."""

    roofline: Path | None = None
    """Draw the roofline to this PNG."""

    top: int = 5
    """How many of the longest operations to print."""

    json: _Flag = False
    """Print one JSON object instead."""

    def run(self) -> None:
        """Times and prints."""
        from trn_jax.chips import load_chip
        from trn_jax.errors import ProgramError
        from trn_jax.profiling.compare import comparison_text
        from trn_jax.profiling.overheads import overheads_text
        from trn_jax.profiling.workload import find_workload
        from trn_jax.report.estimate import estimate
        from trn_jax.timing.overlap import overlap_levels

        if self.compare and (self.chip or self.trace or self.timeline or self.roofline):
            raise ProgramError(
                "--compare times two chips; --chip, --trace, --timeline and --roofline are for one. Leave one or the other out."
            )
        chips = [load_chip(name) for name in self.compare or (self.chip or "trainium2",)]
        overlap = _level(self.overlap)
        overlap_levels(overlap)  # refuses a wrong one before anything is traced
        software = self._software()
        options = {"mode": self.mode, "batch": self.batch, "tokens": self.tokens, "scan_layers": self.scan_layers}
        workload = find_workload(self.workload, self.shapes, **options)
        program = workload.program()
        reports = [estimate(program, chip, overlap=overlap) for chip in chips]
        for path, write in ((self.trace, "save_trace"), (self.timeline, "timeline"), (self.roofline, "roofline")):
            if path is not None:
                _written(path, getattr(reports[0], write))
        if self.json:
            records = [report.to_dict(explain=self.explain) | _with_software(report, software, workload) for report in reports]
            content = {"reports": records} if self.compare else records[0]
            print(json.dumps({"workload": workload.name, **content}))
            return
        print(workload.name)
        print(comparison_text(*reports) if self.compare else reports[0].to_table(self.top))
        for report in reports:
            for found in _with_software(report, software, workload).values():
                print(overheads_text(found))
            if self.explain:
                from trn_jax.profiling.explain import explanation_text

                print(explanation_text(report))

    def _software(self) -> Any:
        from trn_jax.software import load_software

        return None if self.software is None else load_software(self.software)


def _level(text: str | None) -> Any:
    """A level of overlap as `estimate` takes it; a text that is no number goes there to be refused."""
    try:
        return None if text is None else float(text)
    except ValueError:
        return text


def _written(path: Path, write: Any) -> None:
    from trn_jax.errors import ProgramError

    try:
        write(path)
    except OSError as error:
        raise ProgramError(f"{path} cannot be written: {error.strerror}. Give a file in a directory that exists.") from None


def _with_software(report: Report, software: Any, workload: Any) -> dict[str, Any]:
    """The time as a benchmark on the host would see it."""
    from trn_jax.profiling.overheads import overheads

    return {} if software is None else {"software": overheads(report, software, layers=workload.layers, mode=workload.mode)}
