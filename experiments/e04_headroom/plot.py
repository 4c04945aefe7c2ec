"""Picture of results.json: every predicted kernel, its published time cut into bound and shares.

python experiments/e04_headroom/plot.py [--out DIR]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

COLOURS = {
    "bound": "#c8ccd0",
    "rates": "#8f979e",
    "passes": "#4269d0",
    "fill": "#9cb4ef",
    "waits": "#6cc5b0",
    "traffic": "#3ca951",
    "bytes": "#efb118",
    "transposes": "#ff8ab7",
    "tiles": "#9c6b4e",
    "launch": "#a463f2",
    "rest": "#ff725c",
}
WIDEST = 1.35  # of the axis, in published times


def main() -> None:
    """Draws headroom.png beside results.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    directory = parser.parse_args().out
    rows = json.loads((directory / "results.json").read_text())["rows"][::-1]  # the axis counts from below
    figure = Figure(figsize=(11, 1.5 + 0.2 * len(rows)), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for place, row in enumerate(rows):
        seconds = {"bound": row["bound_s"], **row["shares_s"]}
        right = left = 0.0  # a share that is negative (the model is slower than the published kernel) goes to the left of 0
        for name, colour in COLOURS.items():
            width = seconds[name] / row["published_s"]
            axes.barh(place, width, left=right if width >= 0 else left, color=colour, label=name if place == 0 else None)
            right, left = (right + width, left) if width >= 0 else (right, left + width)
    axes.axvline(1, color="black", linewidth=0.8)
    labels = [f"{row['id']}  x{row['headroom']:.4g}{' *' if row['tuned'] else ''}" for row in rows]
    axes.set_yticks(range(len(rows)), labels, fontsize=7)
    axes.set(xlabel="share of the published time", xlim=(-0.3, WIDEST), ylim=(-0.6, len(rows) - 0.4))
    axes.set_title("published kernels, most headroom (x, over the function's time) first; * fastest of its function", fontsize=9)
    figure.legend(loc="outside lower center", ncols=6, fontsize=8)
    figure.savefig(directory / "headroom.png")
    print(directory / "headroom.png")


if __name__ == "__main__":
    main()
