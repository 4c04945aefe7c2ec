"""Troubles that users reported about usability, installation and reliability, each with the right behaviour."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import trn_jax

TRN2 = trn_jax.load_chip("trainium2")
ROOT = Path(__file__).parents[2]


def run_python(script, *, cwd=None, prefix=(), **environment):
    done = subprocess.run(
        [*prefix, sys.executable, "-c", script],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_use_01_a_value_is_rounded_to_its_dtype_when_it_is_stored():
    """A simulator passed where the device failed: https://github.com/aws-neuron/aws-neuron-sdk/issues/1051."""
    kernel = lambda x: ((x + 1) - x).astype(jnp.float32)
    x = jnp.full(3, 300.0)
    np.testing.assert_array_equal(trn_jax.emulate(kernel, TRN2)(x), [1, 1, 1])
    np.testing.assert_array_equal(trn_jax.emulate(kernel, TRN2)(x.astype(jnp.bfloat16)), [0, 0, 0])
    report = trn_jax.cast_report(kernel, TRN2)(x.astype(jnp.bfloat16))
    assert "bf16" in str(report)
    assert "bf16" not in str(trn_jax.cast_report(kernel, TRN2)(x))


def test_use_07_what_cannot_be_emulated_is_an_error_and_never_plain_jax():
    """A silent fallback hid that no kernel ran: https://github.com/trnsci/trnsparse/issues/27. Decision 0010."""
    with pytest.raises(trn_jax.FormatError, match="has no fp8_e4m3fn operands; it takes"):
        trn_jax.emulate(jnp.dot, TRN2)(jnp.ones(2, jnp.float8_e4m3fn), jnp.ones(2, jnp.float8_e4m3fn))
    with jax.enable_x64(True), pytest.raises(trn_jax.FormatError, match="a NeuronCore has no 64-bit floats"):
        trn_jax.emulate(jnp.sin, TRN2)(np.ones(2))
    with pytest.raises(trn_jax.UnsupportedError, match="mutable reference"):
        trn_jax.emulate(lambda x: jax.new_ref(x)[...], TRN2)(jnp.ones(2))


def test_ins_01_versions_are_declared_and_a_missing_format_says_which_package_to_upgrade():
    """Mismatched ml_dtypes, NumPy and JAX broke imports: https://github.com/jax-ml/jax/issues/17693."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    ranges = {line.split(">=")[0]: line.split(">=")[1] for line in project["dependencies"]}
    assert ranges["ml_dtypes"] == "0.5"  # the first with float8_e4m3 and float8_e3m4
    assert project["requires-python"] == ">=3.11"
    old = "import ml_dtypes; del ml_dtypes.float8_e4m3; ml_dtypes.__version__ = '0.4.1'; import trn_jax.numerics"
    code, printed = run_python(old)
    assert code != 0
    assert (
        printed.strip()
        .splitlines()[-1]
        .endswith(
            "ImportError: trn_jax needs ml_dtypes >= 0.5 for float8_e4m3, but 0.4.1 is installed. Upgrade it: pip install -U ml_dtypes."
        )
    )


@pytest.mark.slow
def test_ins_02_presets_and_the_quick_start_work_from_any_directory(tmp_path):
    """Examples needed files of the checkout: https://github.com/scalesim-project/SCALE-Sim/issues/37. (The wheel: test_chip_wheel.py.)"""
    script = """if True:
        import jax.numpy as jnp, trn_jax as trn
        chip = trn.load_chip("trainium2")
        program = trn.trace(lambda x, w: jnp.tanh(x @ w), jnp.ones((8, 8)), jnp.ones((8, 8)))
        print(len(trn.list_chips()), trn.estimate(program, chip).bottleneck, trn.emulate(jnp.dot, chip)(jnp.ones(2), jnp.ones(2)))
    """
    code, printed = run_python(script, cwd=tmp_path)
    assert code == 0, printed
    assert printed.split()[-1] == "2.0"


def test_ins_03_a_mesh_runs_shard_map_whatever_this_jax_makes_of_axes():
    """Axes became Explicit by default and shard_map calls broke: https://github.com/patrick-kidger/equinox/issues/1175."""
    mesh = trn_jax.network.make_mesh(8)
    assert set(mesh.axis_types) == {jax.sharding.AxisType.Auto}
    total = jax.shard_map(lambda x: jax.lax.psum(x, "data"), mesh=mesh, in_specs=jax.P("data"), out_specs=jax.P())
    assert trn_jax.emulate(total, TRN2)(jnp.arange(8.0)) == 28


@pytest.mark.slow
@pytest.mark.parametrize(("wait", "threads"), [("jax.block_until_ready", {}), ("", {"NPROC": "32"})])
def test_rel_01_eight_ranks_on_two_cores_finish_if_every_step_is_waited_for_or_there_are_threads(wait, threads):
    """Collectives hang when there are more ranks than cores, in plain JAX as well: https://github.com/pytorch/xla/issues/5005."""
    script = f"""if True:
        import jax, jax.numpy as jnp, trn_jax
        jax.config.update("jax_num_cpu_devices", 8)
        local = lambda x: jax.lax.psum(x, "data") / 8
        mesh, spec = trn_jax.network.make_mesh(8), jax.P("data")
        step = jax.shard_map(local, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
        run = jax.jit(trn_jax.emulate(step, trn_jax.load_chip("trainium2")))
        x = jnp.arange(8.0)
        for _ in range(100):
            x = {wait}(run(x))
        print(x[0])
    """
    code, printed = run_python(script, prefix=("taskset", "-c", "0,1") if shutil.which("taskset") else (), **threads)
    assert code == 0, printed
    assert printed.split()[-1] == "3.5"


@pytest.mark.slow
def test_nbk_04_an_emulated_step_of_a_toy_model_costs_a_few_plain_ones():
    """Emulation in a notebook must not be slow: https://github.com/jax-ml/jax/issues/810. (Figures: docs/benchmarks.md.)"""
    script = ROOT / "benchmarks" / "emulation_overhead.py"
    assert script.exists()
    figures = (ROOT / "docs" / "benchmarks.md").read_text()
    ratios = [float(line.split("|")[2]) for line in figures.splitlines() if line.startswith(("| `fused_ratio`", "| `tiled_sr_ratio`"))]
    assert len(ratios) == 2
    assert max(ratios) < 5
