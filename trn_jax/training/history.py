"""The record of a run, one JSON line per step, which a resumed run continues as if nothing had happened.

A float32 loss written as the shortest decimal of its float64 value reads back bit for bit. Lines beyond the checkpoint that a run goes
on from are cut off: those steps will be done again.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import TracebackType
from typing import Any

from trn_jax.errors import TrainingError

Record = dict[str, Any]


class History:
    """An open record; use it as a context manager.

    Args:
        path: The JSON-lines file.
        steps: Keep the records of this many first steps, drop the rest.

    Raises:
        TrainingError: The record holds fewer steps than that, or cannot be written.
    """

    def __init__(self, path: Path, *, steps: int = 0) -> None:
        self.path = Path(path)
        self.records = read_history(self.path)[:steps] if steps else []
        if len(self.records) < steps:
            raise TrainingError(
                f"{self.path} holds only the first {len(self.records)} of the {steps} steps that are done. Put the whole record back, "
                "or start anew in another --out."
            )
        scratch = self.path.with_suffix(".partial")
        scratch.write_text("".join(json.dumps(record) + "\n" for record in self.records))
        os.replace(scratch, self.path)
        self._file = self.path.open("a")

    def append(self, record: Record) -> None:
        """Adds the record of the next step."""
        try:
            self._file.write(json.dumps(record) + "\n")
            self._file.flush()
        except OSError as error:
            raise TrainingError(
                f"Cannot write to {self.path}: {error.strerror or error}. Checkpoints are untouched; go on with --resume."
            ) from error
        self.records.append(record)

    def sync(self) -> None:
        """Forces the records to disk; called before a checkpoint, which must never be ahead of them."""
        os.fsync(self._file.fileno())

    def losses(self) -> list[float]:
        """Loss of each recorded step."""
        return [record["loss"] for record in self.records]

    def __enter__(self) -> History:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._file.close()


def read_history(path: Path) -> list[Record]:
    """Records 0, 1, 2, ... up to the first line that is missing, torn or out of order."""
    records: list[Record] = []
    if not path.exists():
        return records
    for line in path.read_text(errors="replace").splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            break
        if not isinstance(record, dict) or record.get("step") != len(records) or not isinstance(record.get("loss"), float):
            break
        records.append(record)
    return records


def mean(values: list[float]) -> float:
    """Mean in float64: a sum of losses kept in bf16 stops growing at a few hundred."""
    return sum(map(float, values)) / max(len(values), 1)
