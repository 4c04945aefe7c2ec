"""Runs the benchmarks and writes docs/benchmarks.md, with the machine and the date beside the figures.

    python benchmarks/write_report.py [--only NAME ...]

Takes about fifteen minutes on two idle cores. Figures are ratios or rates measured in one process each; run it on an idle machine.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SCRIPTS = ("emulation_overhead", "observe_overhead", "latency_throughput", "trace_llm", "training_quality", "import_time")
MEANINGS = {
    "emulation_overhead": "A GPT step (d_model 256, 4 layers, 256 tokens, batch 8, AdamW) on the emulated Trainium2 against plain fp32 JAX",
    "observe_overhead": "The same step under `find_nonfinite` against only emulated",
    "latency_throughput": "`latency` of one program over a batch of chips, float32, and its gradient; instruction-updates per second are "
    "those per second x instructions x plans (passes over all rows)",
    "trace_llm": "Tracing a Llama-3-8B train step of 2048 tokens, 32 layers written out or scanned, and its first `latency`; both "
    "together for a decode step of Llama-3.1-405B",
    "import_time": "`import trn_jax` after `import jax`, in fresh processes",
    "training_quality": "What the preset `small` learns in bf16 on the emulated Trainium2",
}


def run(name: str) -> dict[str, Any]:
    """The JSON object a benchmark prints on its last line."""
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent)}
    done = subprocess.run([sys.executable, str(HERE / f"{name}.py"), "--json"], check=True, capture_output=True, text=True, env=environment)
    return json.loads(done.stdout.strip().splitlines()[-1])


def machine() -> str:
    """Processor, cores, Python and JAX."""
    cpu = next((line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")), "")
    return (
        f"{cpu or platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, jax {importlib.metadata.version('jax')}"
    )


def section(name: str, figures: dict[str, Any]) -> str:
    """One benchmark as a table."""
    rows = "\n".join(
        f"| `{key}` | {value:,.4g} |" if isinstance(value, float) else f"| `{key}` | {value} |" for key, value in figures.items()
    )
    when = datetime.date.today().isoformat()
    return f"## {name}\n\n{MEANINGS[name]}. `python benchmarks/{name}.py`, {when}, {machine()}.\n\n| figure | value |\n|---|---|\n{rows}\n"


def main() -> None:
    """Writes the page; sections of benchmarks that were not run stay as they are."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", choices=SCRIPTS, default=list(SCRIPTS))
    chosen = parser.parse_args().only
    page = HERE.parent / "docs" / "benchmarks.md"
    old = page.read_text().split("\n## ")[1:] if page.exists() else []
    sections = {part.split("\n", 1)[0]: "## " + part for part in old}
    for name in chosen:
        sections[name] = section(name, run(name))
    head = "# Benchmarks\n\nMade by `python benchmarks/write_report.py`; do not edit. Targets and reasons are in the scripts.\n"
    page.write_text("\n".join([head, *(sections[name].rstrip() + "\n" for name in SCRIPTS if name in sections)]))


if __name__ == "__main__":
    main()
