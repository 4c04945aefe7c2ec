"""The built wheel carries the chip files, and they load from a zip without a checkout."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from trn_jax.chips import list_chips

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_wheel_carries_every_chip_file_and_loads_them_from_it(tmp_path):
    pytest.importorskip("build")
    pytest.importorskip("hatchling")
    if not (ROOT / "README.md").exists():
        pytest.skip("no README to build with")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr[-2000:]
    (wheel,) = tmp_path.glob("*.whl")
    inside = set(zipfile.ZipFile(wheel).namelist())
    assert {f"trn_jax/chips/{name}.toml" for name in list_chips()} <= inside
    script = "import trn_jax.chips as chips; print(chips.__file__); print(*[chips.load_chip(name).name for name in chips.list_chips()])"
    command = [sys.executable, "-P", "-c", f"import sys; sys.path.insert(0, {str(wheel)!r}); {script}"]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    ran = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    place, names = ran.stdout.splitlines()
    assert place.startswith(str(wheel))
    assert names.split() == list_chips()
