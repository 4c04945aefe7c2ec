"""Settings of every test run: eight CPU devices for meshes, no silent rank promotion in our code, programs that do not pile up.

Strict dtype promotion stays off because optax's schedules and Adam mix int32 step counts with floats on purpose. A test that
needs NumPy broadcasting between ranks (a user's `x @ w + b`) wraps itself in `jax.numpy_rank_promotion("allow")`.
"""

import gc
from pathlib import Path

import jax
import pytest

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_rank_promotion", "raise")

MAPS = Path("/proc/self/maps")
MANY_MAPS = 20_000
"""A compiled program keeps some twenty memory maps and Linux gives a process 65,530; XLA's compiler crashes where there are no more."""


@pytest.fixture(autouse=True)
def forget_compiled_programs():
    """Drops JAX's compiled programs before the process runs out of memory maps."""
    yield
    if MAPS.exists() and MAPS.read_bytes().count(b"\n") > MANY_MAPS:
        jax.clear_caches()
        gc.collect()
