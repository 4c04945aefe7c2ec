import subprocess
import sys

import pytest


@pytest.mark.slow
def test_reports_and_sweeps_import_nothing_heavy_until_they_are_used():
    heavy = ("xarray", "pandas", "optax", "matplotlib", "tqdm")
    code = f"import sys, trn_jax; print([name for name in {heavy!r} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
