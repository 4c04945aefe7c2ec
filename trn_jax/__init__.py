"""trn_jax: a differentiable model of AWS Trainium in JAX.

chip = trn_jax.load_chip("trainium2")
trn_jax.emulate(f, chip)(x)                         # f with the chip's arithmetic
trn_jax.latency(trn_jax.trace(f, x), chip)          # seconds on the chip
jax.grad(trn_jax.latency, argnums=1)(program, chip) # sensitivities to every parameter of the chip
"""

from trn_jax import engines, network, numerics
from trn_jax.cast_report import Cast, CastReport, cast_report
from trn_jax.chips import Chip, leaf_paths, list_chips, load_chip
from trn_jax.emulate import ConstantSeedWarning, emulate
from trn_jax.errors import (
    ChipError,
    FormatError,
    NetworkError,
    NoRuleError,
    ProgramError,
    TrainingError,
    TrnJaxError,
    UnsupportedError,
)
from trn_jax.graph.instruction import Instruction, Work
from trn_jax.graph.numerics import AutoCast, Numerics
from trn_jax.graph.rules import register_rule
from trn_jax.numerics import round_to

__version__ = "0.1.0"

__all__ = [
    "AutoCast",
    "Cast",
    "CastReport",
    "Chip",
    "ChipError",
    "ConstantSeedWarning",
    "FormatError",
    "Instruction",
    "NetworkError",
    "NoRuleError",
    "Numerics",
    "ProgramError",
    "TrainingError",
    "TrnJaxError",
    "UnsupportedError",
    "Work",
    "cast_report",
    "emulate",
    "engines",
    "leaf_paths",
    "list_chips",
    "load_chip",
    "network",
    "numerics",
    "register_rule",
    "round_to",
]
