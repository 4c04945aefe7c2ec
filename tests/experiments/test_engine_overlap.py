"""The experiment with overlap runs, draws, and says what must hold of any of its results."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

EXPERIMENT = Path(__file__).parents[2] / "experiments" / "e03_engine_overlap"


@pytest.mark.slow
def test_the_experiment_runs_and_overlap_and_fusion_only_help(tmp_path):
    for script, options in (("run.py", ["--smoke"]), ("plot.py", [])):
        subprocess.run([sys.executable, EXPERIMENT / script, *options, "--out", tmp_path], check=True, timeout=600)
    result = json.loads((tmp_path / "results.json").read_text())
    times = {(row["chip"], row["fusion"], row["overlap"]): row for row in result["times"]}
    assert len(times) == 8
    for (chip, fusion, _), row in times.items():
        assert times[chip, fusion, 1.0]["latency_s"] < times[chip, fusion, 0.0]["latency_s"]
        assert times[chip, "fused", 1.0]["latency_s"] <= times[chip, "not fused", 1.0]["latency_s"]
        assert row["bound_s"] <= row["latency_s"]
        assert row["latency_s"] >= max(row["busy_s"].values()) * (1 - 1e-6)
    errors = {(row["chip"], row["softmax"], row["writes"]): row["relative_error"] for row in result["errors"]}
    assert errors["trainium1", "bf16", "value"] == errors["trainium2", "bf16", "value"]  # same formats, same order of sums
    assert errors["trainium1", "fp32", "value"] < errors["trainium1", "bf16", "value"] < 2**-5
    assert (tmp_path / "overlap.png").stat().st_size > 0
