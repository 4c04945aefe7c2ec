"""The schedule as a picture: one row per engine, time from left to right, colours by kind of instruction.

A loop shows its first iteration; a hatched bar as long as the others stands for them, as high as the engine is busy in them.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from trn_jax.errors import UnsupportedError
from trn_jax.graph.instruction import ENGINES
from trn_jax.report.slices import Slice, engine_slices
from trn_jax.report.text import prefix_of, quantity, share

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from trn_jax.report.report import Report

_KINDS_SHOWN = 9  # with a colour and a line in the legend of their own
_OTHER = "other"
_BAR = 0.76  # height of a bar; rows are 1 apart
_COLOURS = ("#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951", "#ff8ab7", "#a463f2", "#97bbf5", "#9c6b4e")


def draw_timeline(report: Report, path: str | os.PathLike[str] | None = None) -> Figure:
    """The figure of a report; see `Report.timeline`."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.patches import Patch
        from matplotlib.ticker import FuncFormatter
    except ModuleNotFoundError as error:
        raise UnsupportedError(f"A timeline needs {error.name}, which is not installed: pip install 'trn_jax[plots]'.") from None

    slices = engine_slices(report.program, report.schedule)
    engines = [engine for engine in ENGINES if report.engines[engine].busy_s > 0]
    kinds = [_kind(item, report) for item in slices]
    keys = _longest(slices, kinds)
    shown = [kind if kind in keys else _OTHER for kind in kinds]
    colours = dict(zip(keys, _COLOURS, strict=False)) | {_OTHER: "#9498a0"}

    figure = notebook_figure()(figsize=(9.0, 1.5 + 0.42 * len(engines)), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    position = {engine: height for height, engine in enumerate(reversed(engines))}
    shortest_s = report.latency_s / 1500  # narrower than a pixel would vanish
    bars: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for item, key in zip(slices, shown, strict=True):
        if item.kind == "loop":
            span_s = max(item.iterations * item.interval_s, item.duration_s)
            height = _BAR * max(item.duration_s / span_s, 0.05)
            style: dict[str, Any] = {"hatch": "////", "alpha": 0.6, "edgecolor": "white", "linewidth": 0}
            axes.broken_barh([(item.begin_s, span_s)], (position[item.engine] - _BAR / 2, height), facecolors=colours[key], **style)
        else:
            bars.setdefault((item.engine, key), []).append((item.begin_s, max(item.duration_s, shortest_s)))
    for (engine, key), spans in bars.items():
        axes.broken_barh(spans, (position[engine] - _BAR / 2, _BAR), facecolors=colours[key], linewidth=0)
    scale, prefix = prefix_of(report.latency_s, "s")
    axes.set_xlim(0, report.latency_s or 1.0)
    axes.set_ylim(-0.6, len(engines) - 0.4)
    axes.set_yticks(range(len(engines)), [f"{name} {share(report.engines[name].utilisation)}" for name in reversed(engines)])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x / scale:g}"))
    axes.set_xlabel(f"time ({'µ' if prefix == 'u' else prefix}s)")
    axes.set_title(f"{quantity(report.latency_s, 's')} on one core of {report.chip.name}", loc="left", fontsize="medium")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    handles = [Patch(color=colours[key], label=key) for key in [*keys, _OTHER] if key in shown]
    if any(item.kind == "loop" for item in slices):
        handles.append(Patch(facecolor="#c8cace", edgecolor="white", hatch="////", label="further iterations (height: share of the time)"))
    figure.legend(handles=handles, loc="outside lower left", ncols=5, fontsize="small", frameon=False)
    if path is not None:
        figure.savefig(path)
    return figure


def _longest(slices: list[Slice], kinds: list[str]) -> list[str]:
    """The kinds that take most time, longest first."""
    seconds: dict[str, float] = {}
    for item, kind in zip(slices, kinds, strict=True):
        seconds[kind] = seconds.get(kind, 0.0) + item.duration_s
    return sorted(seconds, key=lambda kind: -seconds[kind])[:_KINDS_SHOWN]


def _kind(item: Slice, report: Report) -> str:
    """An instruction's kind, for DMA with what it is for; the kind with most time for further iterations of a loop."""
    structure = report.program.structure
    if item.kind != "loop":
        function = structure.functions[item.row] if structure.functions else ""
        return f"DMA {function or item.kind}" if item.engine == "dma" else item.kind
    begin = next(loop.begin for loop in structure.loops if loop.end == item.row)
    rows = [row for row in range(begin, item.row) if structure.engines[row] == item.engine]
    row = max(rows, key=lambda row: report.schedule.occupancy_s[row])
    return _kind(item._replace(row=row, kind=structure.kinds[row]), report)


def notebook_figure() -> Any:
    """A Figure that a notebook shows without pyplot."""
    from io import BytesIO

    from matplotlib.figure import Figure

    class NotebookFigure(Figure):
        def _repr_png_(self) -> bytes:
            buffer = BytesIO()
            self.savefig(buffer, format="png")
            return buffer.getvalue()

    return NotebookFigure
