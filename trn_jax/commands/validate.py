"""`trn-jax validate`: published measurements against the model."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Annotated

import tyro


@dataclasses.dataclass(frozen=True, kw_only=True)
class Validate:
    """Predict every row of a table of published measurements and print the errors, by row and by kind."""

    csv: Annotated[Path, tyro.conf.Positional]
    """A CSV file with at least the columns id, kind, chip, workload, value, unit; see data/README.md."""

    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print one JSON object with `rows` and `summary`."""

    report: Path | None = None
    """Write the accuracy report (docs/accuracy.md is one) to this Markdown file."""

    def run(self) -> None:
        """Predicts and prints."""
        from tqdm import tqdm

        from trn_jax.errors import ValidationError
        from trn_jax.validation.compare import by_kind, compare
        from trn_jax.validation.measurement import read_measurements
        from trn_jax.validation.report import report_markdown
        from trn_jax.validation.text import comparison_text

        rows = read_measurements(self.csv)
        if self.report is not None and not self.report.parent.is_dir():  # before minutes of work
            raise ValidationError(f"{self.report} cannot be written: {self.report.parent} is no directory. Make it first.")
        with tqdm(total=len(rows), unit="row", file=sys.stderr, disable=None) as bar:
            compared = compare(rows, step=bar.update)
        if self.report is not None:
            try:
                self.report.write_text(report_markdown(compared, rows), encoding="utf-8")
            except OSError as error:
                message = f"{self.report} cannot be written: {error.strerror}. Give a file in a directory that exists."
                raise ValidationError(message) from None
        if self.json:
            summary = {kind: dataclasses.asdict(found) for kind, found in by_kind(compared).items()}
            print(json.dumps({"rows": [dataclasses.asdict(row) for row in compared], "summary": summary}))
        else:
            print(comparison_text(compared))
