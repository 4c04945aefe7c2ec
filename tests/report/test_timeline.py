import sys

import pytest

from trn_jax import UnsupportedError
from trn_jax.report.estimate import estimate


def test_the_picture_has_a_row_per_busy_engine_and_ends_at_the_latency(nested, chip, tmp_path):
    report = estimate(nested, chip)
    figure = report.timeline(tmp_path / "timeline.png")
    assert (tmp_path / "timeline.png").read_bytes().startswith(b"\x89PNG")
    (axes,) = figure.axes
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert [label.split()[0] for label in labels] == ["dma", "scalar", "vector", "tensor"]
    assert axes.get_xlim() == (0.0, report.latency_s)
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert {"nc_matmul", "activation", "DMA load"} <= set(legend)
    assert legend[-1].startswith("further iterations")


def test_a_notebook_gets_a_png(layer, chip):
    assert estimate(layer, chip).timeline()._repr_png_().startswith(b"\x89PNG")


def test_without_matplotlib_the_extra_is_named(layer, chip, monkeypatch):
    report = estimate(layer, chip)
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    with pytest.raises(UnsupportedError, match=r"pip install 'trn_jax\[plots\]'"):
        report.timeline()
