"""Pictures of results.json: training loss of every recipe, and what each loses against fp32, mean and range over seeds.

python experiments/e01_rounding/plot.py [--out DIR]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

COLOURS = {
    "fp32": "black",
    "bf16": "tab:cyan",
    "bf16-master": "tab:blue",
    "bf16-sr": "tab:green",
    "bf16-sr, one seed": "tab:olive",
    "bf16-rne": "tab:red",
    "fp16": "tab:purple",
    "fp8": "tab:orange",
}


def main() -> None:
    """Draws losses.png beside results.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    directory = parser.parse_args().out
    result = json.loads((directory / "results.json").read_text())
    rows, rates = result["rows"], result["plan"]["learning_rates"]
    find = lambda key, variant, rate: np.array([row[key] for row in rows if (row["variant"], row["learning_rate"]) == (variant, rate)])
    figure = Figure(figsize=(4.5 * len(rates), 7.5), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    above, below = figure.subplots(2, len(rates))
    for axes, bars, rate in zip(above, below, rates, strict=True):
        exact = find("validation_loss", "fp32", rate)
        for place, (variant, colour) in enumerate(COLOURS.items()):
            losses = find("losses", variant, rate)  # seeds, windows
            steps = (np.arange(losses.shape[1]) + 1) * result["plan"]["steps"] / losses.shape[1]
            axes.plot(steps, losses.mean(0), color=colour, label=variant, linewidth=1)
            axes.fill_between(steps, losses.min(0), losses.max(0), color=colour, alpha=0.1)
            more = find("validation_loss", variant, rate) - exact
            spread = [[more.mean() - more.min()], [more.max() - more.mean()]]
            bars.errorbar(more.mean(), -place, xerr=spread, color=colour, fmt="o", capsize=3)
        axes.axhline(result["bigram_entropy"], color="grey", linestyle="--", linewidth=0.8)
        axes.set(title=f"peak learning rate {rate:g}", xlabel="step", ylabel="training loss (nats per byte)")
        axes.grid(alpha=0.3)
        bars.set_yticks([-place for place in range(len(COLOURS))], list(COLOURS))
        bars.set_xscale("symlog", linthresh=1e-2)
        bars.set_xlim(-0.1, 3.0)
        bars.axvline(0.0, color="grey", linewidth=0.8)
        bars.set_xlabel("validation loss beyond fp32's (nats)")
        bars.grid(alpha=0.3)
    above[0].legend(fontsize=7)
    figure.savefig(directory / "losses.png")
    print(directory / "losses.png")


if __name__ == "__main__":
    main()
