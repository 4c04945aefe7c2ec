"""The loss curve of a run as a PNG."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from trn_jax.training.history import Record


def plot_losses(records: list[Record], path: Path, *, bigram_entropy: float, title: str) -> Path:
    """Draws loss against step: every batch, a running mean, validation, and the bigram entropy of the text.

    Args:
        records: From `History.records`; a "validation_loss" is drawn where there is one.
        path: PNG to write.
        bigram_entropy: In nats.
        title: One line above the picture.

    Returns:
        `path`.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    steps = np.asarray([record["step"] + 1 for record in records])
    losses = np.asarray([record["loss"] for record in records], np.float64)
    figure = Figure(figsize=(7.0, 4.0), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.plot(steps, losses, color="tab:blue", alpha=0.3, linewidth=0.8, label="each batch")
    span = min(20, losses.size)
    axes.plot(steps[span - 1 :], np.convolve(losses, np.ones(span) / span, "valid"), color="tab:blue", label=f"mean of {span} batches")
    validated = [(record["step"] + 1, record["validation_loss"]) for record in records if "validation_loss" in record]
    if validated:
        axes.plot(*zip(*validated, strict=True), "o", color="tab:red", label="validation")
    axes.axhline(bigram_entropy, color="grey", linestyle="--", label="bigram entropy of the text")
    axes.set_xlabel("step")
    axes.set_ylabel("loss (nats per byte)")
    axes.set_title(title)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path)
    return path
