"""Pictures of results.json: accuracy against dead columns, stuck PEs and bit flips, mean and range over seeds.

python experiments/e02_pe_faults/plot.py [--out DIR]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

LABELS = {"dead columns": "dead columns of 128", "stuck PEs": "PEs with a bit stuck at 1", "bit flips": "bit flips per element and write"}


def main() -> None:
    """Draws accuracy.png beside results.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    directory = parser.parse_args().out
    rows = json.loads((directory / "results.json").read_text())["rows"]
    figure = Figure(figsize=(13, 4), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    for axes, (fault, label) in zip(figure.subplots(1, 3, sharey=True), LABELS.items(), strict=True):
        here = [row for row in rows if row["fault"] == fault]
        for variant in dict.fromkeys(row["variant"] for row in here):
            levels = sorted({row["level"] for row in here if row["variant"] == variant})
            found = [[row["accuracy"] for row in here if (row["variant"], row["level"]) == (variant, level)] for level in levels]
            mean = np.array([np.mean(values) for values in found])
            spread = [mean - [min(values) for values in found], [max(values) for values in found] - mean]
            axes.errorbar(levels, mean, spread, marker="o", markersize=3, capsize=2, label=variant)
        axes.set_xscale("symlog", linthresh=1e-6 if fault == "bit flips" else 1)
        axes.set_xlabel(label)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    figure.axes[0].set_ylabel("accuracy")
    figure.savefig(directory / "accuracy.png")
    print(directory / "accuracy.png")


if __name__ == "__main__":
    main()
