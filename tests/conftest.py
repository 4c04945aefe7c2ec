"""Settings of every test run: eight CPU devices for meshes, no silent rank promotion, compiled programs shared and not piled up.

Strict dtype promotion stays off because optax's schedules and Adam mix int32 step counts with floats on purpose. A test that
needs NumPy broadcasting between ranks (a user's `x @ w + b`) wraps itself in `jax.numpy_rank_promotion("allow")`.
"""

import gc
import os
import tempfile
from pathlib import Path

import jax
import pytest

if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    COMPILED = tempfile.TemporaryDirectory(prefix="trn_jax_compiled_", ignore_cleanup_errors=True)  # gone with this process
    os.environ["JAX_COMPILATION_CACHE_DIR"] = COMPILED.name
# Much of the time goes to XLA: workers, and the processes that tests start, read what another of them has compiled.
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
jax.config.update("jax_compilation_cache_dir", os.environ["JAX_COMPILATION_CACHE_DIR"])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_rank_promotion", "raise")

TIMED = {"chips", "design", "laws", "profiling", "report", "timing", "validation"}
"""Directories of tests that do not ask how the compiler treats a rounding: theirs is compiled quickly instead of for speed."""

MAPS = Path("/proc/self/maps")
MANY_MAPS = 20_000
"""A compiled program keeps some twenty memory maps and Linux gives a process 65,530; XLA's compiler crashes where there are no more."""


@pytest.fixture(autouse=True)
def compile_quickly(request):
    """Leaves out what only makes compiled code faster, where time is computed and not the arithmetic of the chip."""
    jax.config.update("jax_disable_most_optimizations", request.path.parent.name in TIMED)


@pytest.fixture(autouse=True)
def forget_compiled_programs():
    """Drops JAX's compiled programs before the process runs out of memory maps."""
    yield
    if MAPS.exists() and MAPS.read_bytes().count(b"\n") > MANY_MAPS:
        jax.clear_caches()
        gc.collect()
