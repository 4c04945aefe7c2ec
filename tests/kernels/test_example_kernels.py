"""The example kernels give what the plain functions give, and take the time that their order of instructions implies."""

import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kernels.example_kernels import EXAMPLES, EXAMPLES_BY_NAME, MATMULS, arguments, structs

import trn_jax as trn

NAMES = list(EXAMPLES_BY_NAME)
HALF_ULP_OF_BF16 = 2.0**-8  # relative; a result next to a tie may go the other way, which makes it one ulp


def _slow_but(names, quick):
    """All names; those that are not quick are in the slow tier."""
    return [name if name in quick.split() else pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.mark.parametrize("name", NAMES)
def test_an_fp32_kernel_equals_the_plain_function(name):
    example = EXAMPLES_BY_NAME[name]
    got = np.asarray(example.kernel(*arguments(name), **example.settings), np.float64)
    exact = np.asarray(example.plain(*arguments(name)), np.float64)
    assert got.shape == exact.shape
    depth = max(max(shape) for shape in example.shapes)  # sums in another order differ by at most their length in ulp
    assert np.abs(got - exact).max() <= 2.0**-24 * depth * np.abs(exact).max()


@pytest.mark.parametrize("name", _slow_but([name for name in NAMES if not EXAMPLES_BY_NAME[name].fp32_only], "tiled softmax"))
def test_a_bf16_kernel_rounds_where_its_tiles_say(name):
    example, operands = EXAMPLES_BY_NAME[name], arguments(name, jnp.bfloat16)
    got = example.kernel(*operands, **example.settings)
    assert got.dtype == jnp.bfloat16
    got, exact = np.asarray(got, np.float64), np.asarray(example.plain(*operands), np.float64)
    before = 2 * HALF_ULP_OF_BF16 if name == "flash_attention" else 2.0**-24 * max(max(shape) for shape in example.shapes)
    assert (np.abs(got - exact) <= 2 * HALF_ULP_OF_BF16 * np.abs(exact) + before * np.abs(exact).max()).all()


@pytest.mark.parametrize("name", _slow_but(NAMES, "vector_add tiled softmax rmsnorm_matmul selective_scan"))
def test_time_falls_with_bandwidth_and_two_buffers_never_cost(name):
    example = EXAMPLES_BY_NAME[name]
    chip = trn.load_chip("trainium2")
    chips = chip.replace({"dma.bandwidth_bytes_per_s": np.array([0.25, 0.5, 1.0, 4.0]) * float(chip.dma.bandwidth_bytes_per_s)})
    times = {}
    for buffers in (1, 2):
        dtype = jnp.float32 if example.fp32_only else jnp.bfloat16
        program = trn.trace(example.kernel.replace(buffers=buffers), *structs(name, dtype), **example.settings)
        times[buffers] = np.asarray(trn.latency(program, chips))
    assert (times[2] > 0).all()
    for seconds in times.values():
        assert (np.diff(seconds) <= 0).all()
        assert seconds[-1] < seconds[0]
    assert (times[2] <= times[1] * (1 + 1e-6)).all()


@pytest.mark.parametrize("chip", [pytest.param("trainium1", marks=pytest.mark.slow), "trainium2"])
def test_each_step_of_the_matmul_tutorial_is_no_slower(chip):
    shapes = structs_of_product(512, 1024)
    times = [float(trn.latency(trn.trace(EXAMPLES_BY_NAME[name].kernel, *shapes), trn.load_chip(chip))) for name in MATMULS[:3]]
    settings = {"tiles_m": 4, "tiles_n": 2, "tiles_k": 4}
    times.append(float(trn.latency(trn.trace(EXAMPLES_BY_NAME["blocked"].kernel, *shapes, **settings), trn.load_chip(chip))))
    assert times[0] > times[1] > times[2]
    assert times[3] < times[0]


def structs_of_product(size, columns=None):
    return [jax.ShapeDtypeStruct((size, size), jnp.bfloat16), jax.ShapeDtypeStruct((size, columns or size), jnp.bfloat16)]


def test_traffic_of_each_step_is_what_its_loops_say():
    size, item = 1024, 2
    shapes = structs_of_product(size)
    result, once = size * size * item, size * size * item
    expected = {
        "tiled": result + once * (size // 512) + once * (size // 128),
        "hoisted": result + once + once * (size // 128),
        "blocked_free": result + once + once * (size // 256),
    }
    for name, size_bytes in expected.items():
        program = trn.trace(EXAMPLES_BY_NAME[name].kernel, *shapes)
        assert float((program.table["bytes"] * program.table["hbm"] * program.repeats).sum()) == size_bytes


@pytest.mark.slow
def test_the_comparison_prints_every_published_figure():
    done = subprocess.run([sys.executable, EXAMPLES / "compare.py", "--quick", "--json"], check=True, capture_output=True, timeout=300)
    result = json.loads(done.stdout)
    assert len(result["rows"]) == 4
    for row in result["rows"]:
        one, two, eight = (row["seconds"][buffers] for buffers in ("1", "2", "8"))
        assert row["published_s"] > 0
        assert eight <= two <= one
