"""Rules: how each primitive becomes instructions of the NeuronCore. Keyed by primitive name; nothing is skipped silently."""

from __future__ import annotations

from trn_jax.graph.rules import collectives, elementwise, linalg, matmul, movement, random, reductions, sparse
from trn_jax.graph.rules.registry import RULES, VIEWS, lower, register_rule

__all__ = [
    "RULES",
    "VIEWS",
    "collectives",
    "elementwise",
    "linalg",
    "lower",
    "matmul",
    "movement",
    "random",
    "reductions",
    "register_rule",
    "sparse",
]
