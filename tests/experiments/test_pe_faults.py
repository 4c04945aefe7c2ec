"""The experiment with broken PEs runs, draws, and says what must hold of any of its results."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

EXPERIMENT = Path(__file__).parents[2] / "experiments" / "e02_pe_faults"


@pytest.mark.slow
def test_the_experiment_runs_and_remapping_heals(tmp_path):
    for script, options in (("run.py", ["--smoke"]), ("plot.py", [])):
        subprocess.run([sys.executable, EXPERIMENT / script, *options, "--out", tmp_path], check=True, timeout=600)
    result = json.loads((tmp_path / "results.json").read_text())
    accuracy = {(row["fault"], row["variant"], row["level"]): row["accuracy"] for row in result["rows"]}
    sound = accuracy["dead columns", "as it is", 0]
    assert sound > 0.3  # chance is 0.1
    assert accuracy["dead columns", "remapped", 2] == sound
    assert accuracy["bit flips", "sums in PSUM", 0.0] == sound
    assert accuracy["bit flips", "arguments in HBM", 0.01] < sound
    assert (tmp_path / "accuracy.png").stat().st_size > 0
