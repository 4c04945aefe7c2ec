"""Pictures of results.json: latency against overlap by chip and fusion, and busy against critical time.

python experiments/e03_engine_overlap/plot.py [--out DIR]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

STYLES = {"fused": "o-", "not fused": "s--"}


def main() -> None:
    """Draws overlap.png beside results.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    directory = parser.parse_args().out
    rows = json.loads((directory / "results.json").read_text())["times"]
    chips, longest = list(dict.fromkeys(row["chip"] for row in rows)), max(row["length"] for row in rows)
    figure = Figure(figsize=(11, 4), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    for colour, chip in zip(("#4269d0", "#efb118"), chips, strict=True):
        for fusion, style in STYLES.items():
            here = [row for row in rows if (row["chip"], row["fusion"], row["length"]) == (chip, fusion, longest)]
            left.plot(
                [row["overlap"] for row in here], [1e3 * row["latency_s"] for row in here], style, color=colour, label=f"{chip}, {fusion}"
            )
    left.set(xlabel="overlap", ylabel="latency (ms)", title=f"attention over {longest} tokens", ylim=(0, None))
    left.legend(fontsize=8)
    shown = [row for row in rows if row["length"] == longest and row["overlap"] == max(r["overlap"] for r in rows)]
    engines = [engine for engine, seconds in shown[0]["busy_s"].items() if seconds]
    places, width = np.arange(len(engines)), 0.2
    for offset, row in enumerate(shown):
        label = f"{row['chip']}, {row['fusion']}"
        right.bar(places + offset * width, [1e3 * row["busy_s"][engine] for engine in engines], width, label=label)
    right.set_xticks(places + 1.5 * width, engines)
    right.set(ylabel="busy (ms)", title="engines")
    right.legend(fontsize=8)
    figure.savefig(directory / "overlap.png")
    print(directory / "overlap.png")


if __name__ == "__main__":
    main()
