"""Random numbers: counters and hashes on GpSimd (its own generators are not the ones JAX promises, so values stay JAX's).

Basis: assumed cost (integer work per word drawn); documented that GpSimd has native 32-bit integer arithmetic.
"""

from __future__ import annotations

from trn_jax.graph.graph import Op
from trn_jax.graph.instruction import Instruction
from trn_jax.graph.numerics import Numerics
from trn_jax.graph.rules.registry import register_rule, register_views, streaming

DRAWS = (
    "random_bits random_seed random_split random_fold_in random_gamma rng_bit_generator rng_uniform "
    "threefry2x32 threefry4x32 philox2x32 philox4x32"
).split()

register_views("random_wrap", "random_unwrap", "random_clone")


@register_rule(*DRAWS)
def _draw(op: Op, numerics: Numerics) -> Instruction:
    return streaming(op, numerics, "gpsimd", "rng")
