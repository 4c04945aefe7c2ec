"""The accuracy report in Markdown, made from a comparison alone, so that it is the same on every machine."""

from __future__ import annotations

from collections.abc import Sequence

from trn_jax.validation.compare import Compared, by_kind
from trn_jax.validation.measurement import Measurement
from trn_jax.validation.text import summary_cells


def report_markdown(rows: Sequence[Compared], measurements: Sequence[Measurement]) -> str:
    """Markdown of the whole report."""
    lines = ["# Accuracy", "", "| kind | rows | predicted | median | mean | by group | p90 | bias | beat bound | time >= 0.9 predicted |"]
    lines += ["|" + "---|" * 10]
    lines += ["| " + " | ".join((kind, *summary_cells(found))) + " |" for kind, found in by_kind(rows).items()]
    return "\n".join(lines) + "\n"
