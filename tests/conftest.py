"""Settings of every test run: eight CPU devices for meshes, and no silent rank promotion in our code.

Strict dtype promotion stays off because optax's schedules and Adam mix int32 step counts with floats on purpose. A test that
needs NumPy broadcasting between ranks (a user's `x @ w + b`) wraps itself in `jax.numpy_rank_promotion("allow")`.
"""

import jax

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_rank_promotion", "raise")
