"""The experiment on rounding runs, draws, and says what must hold of any of its results."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

EXPERIMENT = Path(__file__).parents[2] / "experiments" / "e01_rounding"


@pytest.mark.slow
def test_the_experiment_runs_and_stochastic_rounding_loses_less_than_nearest(tmp_path):
    for script, options in (("run.py", ["--smoke"]), ("plot.py", [])):
        subprocess.run([sys.executable, EXPERIMENT / script, *options, "--out", tmp_path], check=True, timeout=900)
    result = json.loads((tmp_path / "results.json").read_text())
    walks = {walk["variant"]: walk for walk in result["walks"]}
    left = 1 - 1e-3 * result["plan"]["updates"]
    assert abs(walks["fp32"]["mean"] - left) < 1e-4
    assert walks["bf16-rne"]["mean"] == walks["bf16-rne"]["never_moved"] == 1
    assert abs(walks["bf16-sr"]["mean"] - left) < 5 * walks["bf16-sr"]["deviation"] / result["plan"]["weights"] ** 0.5
    assert walks["bf16-sr, one seed"]["never_moved"] == 1 - walks["bf16-sr, one seed"]["moved_first"]
    smallest = min(result["plan"]["learning_rates"])
    loss = {(row["variant"], row["seed"]): row["validation_loss"] for row in result["rows"] if row["learning_rate"] == smallest}
    for seed in range(result["plan"]["seeds"]):
        exact, stochastic, nearest = (loss[variant, seed] for variant in ("fp32", "bf16-sr", "bf16-rne"))
        assert abs(stochastic - exact) < 0.1 * (nearest - exact)
    assert (tmp_path / "losses.png").stat().st_size > 0
    assert "| bf16-sr |" in (tmp_path / "table.md").read_text()


def test_the_table_in_the_readme_is_the_one_of_the_results():
    text, results = (EXPERIMENT / "README.md").read_text(), EXPERIMENT / "results"
    assert (results / "table.md").read_text() in text
    assert json.loads((results / "results.json").read_text())["date"] in text
