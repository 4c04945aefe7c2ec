"""The roofline of a program: what its arithmetic intensity allows on a core, where it is, and its longest products.

attainable FLOP/s = min( peak of the array,  bytes/s x FLOP per byte )        one roof for each rate: datasheet and what is reached
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np

from trn_jax.errors import ProgramError, UnsupportedError
from trn_jax.report.text import prefix_of, quantity, share
from trn_jax.report.utilisation import core_peak_flop_per_s

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from trn_jax.report.report import Report


def draw_roofline(report: Report, path: str | os.PathLike[str] | None = None) -> Figure:
    """The figure of a report; see `Report.roofline`."""
    if not report.flops or not report.hbm_bytes:
        raise ProgramError(
            f"A roofline needs products and traffic, and this program has {quantity(report.flops, 'FLOP')} of products and moves "
            f"{quantity(report.hbm_bytes, 'B')}. Its timeline() shows where its time goes."
        )
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
    except ModuleNotFoundError as error:
        raise UnsupportedError(f"A roofline needs {error.name}, which is not installed: pip install 'trn_jax[plots]'.") from None
    from trn_jax.report.timeline import notebook_figure

    chip, x = report.chip, report.arithmetic_intensity_flop_per_byte
    peak = core_peak_flop_per_s(chip)
    stack_bytes_per_s = float(chip.hbm.bandwidth_bytes_per_s) / float(chip.hbm.stacks)
    core_bytes_per_s = min(float(chip.dma.bandwidth_bytes_per_s) * float(chip.dma.rate), stack_bytes_per_s / float(chip.hbm.active_cores))
    figure = notebook_figure()(figsize=(7.0, 4.2), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    ridge = peak / core_bytes_per_s
    intensities = np.geomspace(min(x, ridge) / 8, max(x, ridge) * 8, 200)
    for rate, style, name in ((core_bytes_per_s, "-", "reached by one core"), (stack_bytes_per_s, "--", "of its HBM stack")):
        axes.loglog(
            intensities, np.minimum(peak, rate * intensities), f"k{style}", linewidth=1.2, label=f"{quantity(rate, 'B/s', 3)} {name}"
        )
    axes.loglog(
        [x], [report.flops / report.latency_s], "o", color="#ff725c", label=f"this program: {share(report.flops / report.latency_s / peak)}"
    )
    for seconds, name, marker in ((report.serial_s, "one after the other", "v"), (report.concurrent_s, "all engines side by side", "^")):
        axes.loglog([x], [report.flops / seconds], marker, color="#4269d0", markersize=4, label=name)
    scale, prefix = prefix_of(peak, "FLOP/s")
    axes.set_title(
        f"{quantity(peak, 'FLOP/s', 3)} peak of one core of {chip.name}; ridge at {ridge:.0f} FLOP/B", loc="left", fontsize="medium"
    )
    axes.set_xlabel("arithmetic intensity (FLOP per byte of HBM)")
    axes.set_ylabel(f"{prefix}FLOP/s")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value / scale:g}")
    axes.yaxis.set_minor_formatter(lambda value, _: f"{value / scale:g}" if f"{value:.0e}"[0] in "25" else "")
    axes.grid(which="both", alpha=0.2)
    axes.legend(fontsize="small", frameon=False, loc="lower right")
    if path is not None:
        figure.savefig(path)
    return figure
