import jax
import jax.numpy as jnp
import pytest
from traced_programs import shape

from trn_jax.report.estimate import estimate
from trn_jax.report.text import aligned, html_table, quantity
from trn_jax.timing.trace import trace


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0, "s", "0 s"),
        (1.2345e-3, "s", "1.234 ms"),
        (999.96e-6, "s", "1 ms"),
        (2.5e-7, "s", "250 ns"),
        (3600.0, "s", "3600 s"),
        (25.165824e6, "B", "25.17 MB"),
        (78.6432e12, "FLOP/s", "78.64 TFLOP/s"),
        (0.25, "FLOP/B", "0.25 FLOP/B"),
        (float("inf"), "s", "inf s"),
        (float("nan"), "s", "nan s"),
    ],
)
def test_quantities_have_the_prefix_a_reader_expects(value, unit, text):
    assert quantity(value, unit) == text


def test_columns_line_up():
    assert aligned([["a", "1"], ["long", "22"]], "<>") == ["  a      1", "  long  22"]


def test_html_is_escaped():
    assert '<td style="text-align:left">f.&lt;locals&gt;</td>' in html_table([["name"], ["f.<locals>"]], "<")


def test_the_table_names_totals_engines_memory_bottleneck_and_lines(layer, chip):
    report = estimate(layer, chip)
    lines = report.to_table(top=2).splitlines()
    assert lines[0] == f"{quantity(report.latency_s, 's')} on one core of trainium2: 6 instructions, overlap 0.8"
    assert "side by side" in lines[1]
    assert "one after the other" in lines[1]
    assert [line.split()[0] for line in lines[3:10]] == ["engine", "tensor", "vector", "scalar", "dma", "collective", "none"]
    assert lines[10].startswith("HBM traffic 6 MB (6 MB compulsory); MBU ")
    assert lines[11].startswith("1.074 GFLOP of matrix products, 179 FLOP/B; MFU ")
    assert lines[12].startswith("HBM footprint ")
    assert lines[13].startswith("energy ")
    assert lines[14].startswith("limited by ")
    assert lines[15] == "longest operations, by share of the serial time"
    assert len(lines) == 18
    assert lines[16].strip().endswith("hand.py:1 (f)")
    assert max(map(len, lines)) <= 140
    assert repr(report) == report.to_table()


def test_a_program_without_products_has_no_mfu_line(idle, chip):
    report = estimate(idle, chip)
    assert report.mfu == 0
    assert "no matrix products" in report.to_table()
    assert [line.split()[0] for line in report.to_table().splitlines()[2:5]] == ["engine", "vector", "none"]


def test_one_after_the_other_busy_times_and_idle_time_are_the_latency(layer, chip):
    report = estimate(layer, chip, overlap=0.0)
    busy_s = sum(engine.busy_s for engine in report.engines.values())
    assert report.idle_s > 0
    assert busy_s + report.idle_s == pytest.approx(report.latency_s, rel=1e-12)


def test_a_changed_preset_says_what_was_changed(layer, chip):
    changed = chip.replace({"tensor.rows": 256.0, "hbm.bandwidth_bytes_per_s": 4e12})
    assert "one core of trainium2 with tensor.rows = 256, hbm.bandwidth_bytes_per_s = 4e+12:" in estimate(layer, changed).to_table()
    assert "one core of mine:" in estimate(layer, changed.replace({"name": "mine"})).to_table()


def test_a_notebook_gets_html(train_step, chip):
    text = estimate(train_step, chip)._repr_html_()
    assert text.count("<table>") == 2
    assert "nc_matmul" in text


def test_numbered_layers_are_one_line(chip):
    def f(x, weights):
        for layer, w in enumerate(weights):
            with jax.named_scope(f"block{layer}"):
                x = jnp.tanh(x @ w)
        return x

    report = estimate(trace(f, shape(128, 128), [shape(128, 128)] * 4), chip)
    assert [operation.scope for operation in report.top if operation.label.startswith("nc_matmul")] == [f"block{i}" for i in range(4)]
    (line,) = [line for line in report.to_table().splitlines() if "nc_matmul" in line]
    assert line.endswith("block*")
