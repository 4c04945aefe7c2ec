import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hand_programs import dma, matmul, program, vector

import trn_jax
from trn_jax.report.estimate import estimate
from trn_jax.timing.bound import bound
from trn_jax.timing.latency import latency


def test_the_report_is_what_latency_says(any_report):
    kwargs = {"overlap": any_report.overlap}
    assert any_report.latency_s == pytest.approx(float(latency(any_report.program, any_report.chip, **kwargs)), rel=1e-6)
    ends = [float(latency(any_report.program, any_report.chip, overlap=overlap)) for overlap in (0.0, 1.0)]
    assert (any_report.serial_s, any_report.concurrent_s) == pytest.approx(ends, rel=1e-6)
    assert any_report.bound_s == pytest.approx(float(bound(any_report.program, any_report.chip)), rel=1e-6)


def test_times_are_in_order(any_report):
    slack = 1 + 1e-12
    assert 0 <= any_report.bound_s <= any_report.concurrent_s * slack
    assert any_report.concurrent_s <= any_report.latency_s * slack
    assert any_report.latency_s <= any_report.serial_s * slack


def test_every_engine_has_busy_time_utilisation_and_instructions(any_report):
    assert list(any_report.engines) == ["tensor", "vector", "scalar", "gpsimd", "dma", "collective"]
    for engine in any_report.engines.values():
        assert 0 <= engine.utilisation <= 1 + 1e-12
        assert engine.utilisation == pytest.approx(engine.busy_s / any_report.latency_s)
        assert (engine.instructions > 0) == (engine.busy_s > 0)


def test_instructions_of_loops_count_every_iteration(nested, chip):
    engines = estimate(nested, chip).engines
    assert (engines["tensor"].instructions, engines["scalar"].instructions, engines["vector"].instructions) == (240, 20, 241)


def test_mfu_of_a_product_follows_from_its_sizes(layer, chip):
    report = estimate(layer, chip)
    assert report.flops == 2 * 512 * 512 * 2048
    assert report.mfu == pytest.approx(report.flops / (2 * 128 * 128 * 2.4e9 * report.latency_s))
    assert report.hbm_bytes == report.hbm_bytes_compulsory == 6e6
    assert report.arithmetic_intensity_flop_per_byte == pytest.approx(report.flops / 6e6)


def test_hbm_bytes_are_those_moved_at_this_size_of_sbuf(chip):
    reused = program([(dma(4e6), ()), (dma(4e6), (0,)), (vector(1e6), (1,))], reuse_bytes={1: 10e6})
    for sbuf_bytes, moved in ((5e6, 8e6), (8e6, 6e6), (20e6, 4e6)):
        report = estimate(reused, chip.replace({"sbuf.size_bytes": sbuf_bytes}))
        assert report.hbm_bytes == pytest.approx(moved)
        assert report.hbm_bytes_compulsory == 4e6


@pytest.mark.parametrize(
    ("rows", "engine"),
    [
        ([(dma(1e5), ()), (matmul(2048.0, 2048.0, 2048.0), (0,))], "tensor"),
        ([(dma(1e8), ()), (matmul(128.0, 128.0, 128.0), (0,))], "dma"),
        ([(dma(1e5), ()), (vector(1e8), (0,))], "vector"),
    ],
    ids=["tensor", "dma", "vector"],
)
def test_the_bottleneck_is_the_engine_whose_absence_helps_most(chip, rows, engine):
    report = estimate(program(rows), chip)
    assert report.bottleneck == engine
    assert report.without_s[engine] == min(report.without_s.values()) < 0.1 * report.latency_s
    assert re.search(r"if it took no time: [\d.]+ .?s, [\d.,]+ times faster", report.bottleneck_text)


def test_top_operations_share_out_the_serial_time(any_report):
    assert sum(operation.seconds for operation in any_report.top) == pytest.approx(any_report.serial_s)
    assert sum(operation.share for operation in any_report.top) == pytest.approx(1.0)
    assert list(any_report.top) == sorted(any_report.top, key=lambda operation: -operation.seconds)


def test_throttle_is_a_line_of_its_own(layer, chip):
    on, off = estimate(layer, chip), estimate(layer, chip, throttle=False)
    assert on.latency_s == off.latency_s
    assert on.warmup_s > 0 == off.warmup_s
    assert "warms up" in on.to_table()
    assert "warms up" not in off.to_table()
    assert estimate(layer, trn_jax.load_chip("trainium1")).warmup_s == 0


def test_one_chip_and_one_program_only(layer, chip):
    batch = chip.replace({"tensor.rows": jnp.array([64.0, 128.0])})
    with pytest.raises(trn_jax.ChipError, match="batch shape. Use trn_jax.latency there, or trn_jax.sweep"):
        estimate(layer, batch)
    with pytest.raises(trn_jax.ChipError, match="inside jit, grad or vmap"):
        jax.jit(lambda chip: estimate(layer, chip).latency_s)(chip)
    two = jax.tree.map(lambda *columns: np.stack(columns), layer, layer)
    with pytest.raises(trn_jax.ProgramError, match=r"batch of shape \(2,\)"):
        estimate(two, chip)
    with pytest.raises(trn_jax.ProgramError, match="overlap"):
        estimate(layer, chip, overlap=1.5)
    with pytest.raises(trn_jax.ProgramError, match="Make one with trn_jax.trace"):
        estimate(lambda x: x, chip)
