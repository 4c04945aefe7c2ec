"""trn_jax: a differentiable model of AWS Trainium in JAX.

chip = trn_jax.load_chip("trainium2")
trn_jax.emulate(f, chip)(x)                            # f with the chip's arithmetic
program = trn_jax.trace(f, x)                          # f as instructions of one NeuronCore
trn_jax.latency(program, chip)                         # seconds on the chip
jax.grad(lambda c: trn_jax.latency(program, c))(chip)  # sensitivity to every parameter of the chip
"""

from trn_jax import _requirements as _requirements  # isort: skip
from trn_jax import engines, faults, network, numerics
from trn_jax.cast_report import Cast, CastReport, cast_report
from trn_jax.chips import Chip, leaf_paths, list_chips, load_chip
from trn_jax.design.sweep import sweep
from trn_jax.design.tune import tune
from trn_jax.emulate import ConstantSeedWarning, emulate
from trn_jax.errors import (
    ChipError,
    FaultError,
    FormatError,
    ModelError,
    NetworkError,
    NoRuleError,
    ProgramError,
    ShapeError,
    TrainingError,
    TrnJaxError,
    UnsupportedError,
    ValidationError,
)
from trn_jax.graph.instruction import Instruction, Work
from trn_jax.graph.numerics import AutoCast, Numerics
from trn_jax.graph.rules import register_rule
from trn_jax.kernels import kernel
from trn_jax.numerics import ActivationTable, round_to
from trn_jax.observe.compare import Comparison, compare_exact
from trn_jax.observe.nonfinite import NonFinite, find_nonfinite
from trn_jax.observe.taps import Taps, tap
from trn_jax.report.estimate import estimate
from trn_jax.report.report import Report
from trn_jax.software import Software, load_software
from trn_jax.timing.bound import bound
from trn_jax.timing.elasticity import elasticity
from trn_jax.timing.energy import energy
from trn_jax.timing.latency import latency
from trn_jax.timing.program import Program
from trn_jax.timing.trace import trace

__version__ = "0.1.0"

__all__ = [
    "ActivationTable",
    "AutoCast",
    "Cast",
    "CastReport",
    "Chip",
    "ChipError",
    "Comparison",
    "ConstantSeedWarning",
    "FaultError",
    "FormatError",
    "Instruction",
    "ModelError",
    "NetworkError",
    "NoRuleError",
    "NonFinite",
    "Numerics",
    "Program",
    "ProgramError",
    "Report",
    "ShapeError",
    "Software",
    "Taps",
    "TrainingError",
    "TrnJaxError",
    "UnsupportedError",
    "ValidationError",
    "Work",
    "bound",
    "cast_report",
    "compare_exact",
    "elasticity",
    "emulate",
    "energy",
    "engines",
    "estimate",
    "faults",
    "find_nonfinite",
    "kernel",
    "latency",
    "leaf_paths",
    "list_chips",
    "load_chip",
    "load_software",
    "network",
    "numerics",
    "register_rule",
    "round_to",
    "sweep",
    "tap",
    "trace",
    "tune",
]
