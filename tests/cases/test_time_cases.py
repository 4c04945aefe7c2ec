"""Troubles that users reported about predicted times, each with the right answer."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hand_programs import costs, program, scalar, vector

import trn_jax

TRN1, TRN2 = trn_jax.load_chip("trainium1"), trn_jax.load_chip("trainium2")
ROOT = Path(__file__).parents[2]


def shape(*sizes, dtype=jnp.bfloat16):
    return jax.ShapeDtypeStruct(sizes, dtype)


@pytest.mark.parametrize(
    ("chip", "core_flop_per_s", "advertised_flop_per_s"),
    [(TRN1, 91.75e12, 190e12), (TRN2, 78.64e12, 667e12)],
    ids=["trainium1", "trainium2"],
)
def test_tim_01_utilisation_says_whether_it_is_of_the_core_or_of_the_advertised_chip(chip, core_flop_per_s, advertised_flop_per_s):
    """Which peak is the denominator of MFU? https://github.com/pytorch/torchtitan/issues/2382."""
    report = trn_jax.estimate(trn_jax.trace(jnp.matmul, shape(1024, 1024), shape(1024, 1024)), chip)
    assert report.flops / (report.mfu * report.latency_s) == pytest.approx(core_flop_per_s, rel=1e-3)
    assert report.flops * chip.cores / (report.mfu_chip * report.latency_s) == pytest.approx(advertised_flop_per_s)
    assert "of the chip's advertised peak" in report.to_table()
    assert chip.cores * core_flop_per_s < advertised_flop_per_s  # dense figures both; AWS does not explain what is missing


def test_tim_05_short_instructions_have_a_shortest_interval_and_their_engine_s_rate():
    """Small instructions cost more than their elements: https://awsdocs-neuron.readthedocs-hosted.com/en/latest/nki/api/nki.api.shared.html."""
    bare = TRN2.replace({"scalar.overhead_cycles": 0, "vector.overhead_cycles": 0})

    def cycles(record, clock_hz):
        return costs(program([(record, ())]), bare)[0][0] * clock_hz

    columns = (32, 64, 512)
    on_scalar = [cycles(scalar(128 * n, "reciprocal"), TRN2.scalar.clock_hz) for n in columns]
    on_vector = [cycles(vector(128 * n, "reciprocal", 1.0, "reciprocal"), TRN2.vector.clock_hz) for n in columns]
    np.testing.assert_allclose(on_scalar, [64, 64, 512], rtol=1e-6)
    np.testing.assert_allclose(on_vector, [256, 512, 4096], rtol=1e-6)


@pytest.mark.parametrize("queues", [1, 16])
def test_tim_05_a_thousand_tiny_transfers_take_their_issue_time_on_as_many_queues_as_there_are(queues):
    """A transfer of 64 bytes takes 600 ns to issue: https://awsdocs-neuron.readthedocs-hosted.com/en/latest/nki/api/nki.api.shared.html."""

    @trn_jax.kernel
    def gather(nc, x):
        out = nc.ndarray((1, 16), jnp.float32, buffer="hbm")
        for i in range(1000):
            tile = nc.load(x[i : i + 1, :], queue=f"sync:{i % queues}")
        nc.store(out, tile)
        return out

    rows = trn_jax.trace(gather, shape(1000, 16, dtype=jnp.float32))
    first_and_last_s = 2 * (TRN2.dma.latency_s + TRN2.dma.issue_s)
    assert 1000 / queues * 600e-9 <= float(trn_jax.latency(rows, TRN2)) <= -(-1000 // queues) * 600e-9 + first_and_last_s


def test_tim_08_endless_bandwidth_leaves_no_stalls_and_no_more_is_moved_than_there_is():
    """Stalls at infinite bandwidth, and a demand larger than the data: https://github.com/scalesim-project/SCALE-Sim/issues/4."""
    layer = trn_jax.trace(jnp.matmul, shape(1, 256), shape(256, 72))
    moved_bytes = 2 * (256 + 256 * 72 + 72)
    assert trn_jax.estimate(layer, TRN2).hbm_bytes == moved_bytes
    endless = {"dma.bandwidth_bytes_per_s": 1e18, "hbm.bandwidth_bytes_per_s": 1e18, "dma.latency_s": 0, "dma.issue_s": 0}
    report = trn_jax.estimate(layer, TRN2.replace(endless), overlap=1.0)
    assert report.hbm_bytes == moved_bytes
    assert report.engines["dma"].busy_s < 1e-5 * report.latency_s
    assert report.latency_s == pytest.approx(report.without_s["dma"], rel=1e-5)
    slow = trn_jax.estimate(layer, TRN2, overlap=1.0)
    assert slow.hbm_bytes / slow.latency_s < TRN2.dma.bandwidth_bytes_per_s


def test_tim_12_a_scan_counts_all_of_its_iterations():
    """XLA's cost analysis counts the body of a scan once: https://github.com/jax-ml/jax/issues/18672."""
    step = lambda carry, w: jnp.tanh(carry @ w)
    scanned = lambda w, x: jax.lax.scan(lambda carry, _: (step(carry, w), None), x, length=24)[0]

    def unrolled(w, x):
        for _ in range(24):
            x = step(x, w)
        return x

    shapes = shape(64, 64, dtype=jnp.float32), shape(8, 64, dtype=jnp.float32)
    loop, lines = (trn_jax.trace(f, *shapes) for f in (scanned, unrolled))
    assert float(loop.flops) == float(lines.flops) == 24 * 2 * 8 * 64 * 64 == 1_572_864
    assert float(trn_jax.latency(loop, TRN2)) == pytest.approx(float(trn_jax.latency(lines, TRN2)), rel=0.03)


def test_tim_14_an_array_of_sixteen_times_the_peak_is_as_much_faster_as_its_slowest_engine_lets_it():
    """An array sixteen times larger was three times faster: https://github.com/ucb-bar/gemmini/issues/397."""
    product = trn_jax.trace(jnp.matmul, shape(2048, 2048), shape(2048, 2048))
    small, large = (trn_jax.estimate(product, TRN2.replace({"tensor.rows": n, "tensor.cols": n}), overlap=1.0) for n in (128, 512))
    gain = small.latency_s / large.latency_s
    assert small.bottleneck == "tensor"
    assert large.bottleneck == "dma"
    assert 1 < gain < 16
    assert large.mfu / small.mfu == pytest.approx(gain / 16)
    busiest_s = max(engine.busy_s for engine in large.engines.values())
    assert busiest_s <= large.latency_s < 1.3 * busiest_s  # filling and emptying the pipeline are the rest
    assert small.engines["tensor"].busy_s / large.engines["tensor"].busy_s == pytest.approx(16, rel=0.01)


@pytest.mark.slow
def test_tim_18_times_and_values_are_the_same_bits_in_every_process_on_every_number_of_devices():
    """The same input gave another output on another day: https://github.com/KULeuven-MICAS/zigzag/issues/72."""
    script = """
import jax, jax.numpy as jnp, trn_jax
jax.config.update("jax_num_cpu_devices", {devices})
chip, f = trn_jax.load_chip("trainium2"), lambda x, w: jax.nn.softmax(x @ w)
x, w = (jax.random.normal(jax.random.key(i), (64, 64)) for i in range(2))
for _ in range(2):
    seconds = trn_jax.latency(trn_jax.trace(f, x, w), chip)
    values = trn_jax.emulate(f, chip, autocast=trn_jax.AutoCast("all", "bf16"), rounding="stochastic", seed=3)(x, w)
    print(float(seconds).hex(), values.tobytes().hex())
"""
    lines = []
    for devices in (1, 1, 8):
        command = [sys.executable, "-c", script.format(devices=devices)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        lines += subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout.splitlines()
    assert len(lines) == 6
    assert len(set(lines)) == 1
