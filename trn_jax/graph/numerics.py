"""How a program computes: auto-cast, rounding, overflow, fidelity. One record that rules, engines and time read alike."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax.core
import jax.numpy as jnp
import numpy as np

from trn_jax.chips.schema import Chip
from trn_jax.errors import FormatError, did_you_mean
from trn_jax.numerics import FORMATS, Overflow, Rounding, format_of

SCOPES = ("none", "matmult", "all")
# Functions of jax.random that turn random bits into a distribution. An auto-cast to a narrow format stops at their door: rounded
# inside, a uniform draw reaches the ends of its interval, and the normal made of it is infinite.
RANDOM_SAMPLERS = frozenset(
    "_uniform _normal _normal_real _truncated_normal _gumbel _exponential _gamma _gamma_batched _laplace _logistic _bernoulli _beta "
    "_cauchy _dirichlet _poisson _binomial _t _rayleigh _wald _weibull_min _maxwell _double_sided_maxwell _pareto _triangular "
    "_multivariate_normal _chisquare _f _geometric _lognormal _generalized_normal _ball _orthogonal".split()
)

CHOICES = {
    "rounding": ("nearest", "stochastic"),
    "fidelity": ("fused", "tiled", "systolic"),
    "writes": ("value", "instruction"),
    "overflow": (None, "inf", "nan", "saturate"),
    "activation": ("exact",),
    "integer": ("exact",),
}


_LABELLED: dict[str, Numerics] = {}


def is_label(name: str) -> bool:
    """Whether a call of this name has numerics of its own."""
    return name in _LABELLED


@dataclass(frozen=True, slots=True)
class AutoCast:
    """Which fp32 arithmetic is cast to a narrower format, as the Neuron compiler's --auto-cast and --auto-cast-type.

    Attributes:
        scope: "none" (as in Neuron since 2.27), "matmult" (operands of matrix multiplications), or "all" (those, and every
            fp32 value when it is written).
        to: The format, e.g. "bf16".

    Raises:
        FormatError: For an unknown scope or format.
    """

    scope: str = "none"
    to: str = "bf16"

    def __post_init__(self) -> None:
        if self.scope not in SCOPES:
            raise FormatError(f"AutoCast scope {self.scope!r} is not known. {did_you_mean(str(self.scope), SCOPES)}")
        if self.to not in FORMATS:
            raise FormatError(f"AutoCast format {self.to!r} is not known. {did_you_mean(str(self.to), FORMATS)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Numerics:
    """The arithmetic of one run; static and hashable.

    Attributes:
        autocast: See `AutoCast`.
        rounding: "nearest" or "stochastic", at every rounding point.
        overflow: Policy beyond the largest finite value; None is each format's own.
        fidelity: How the Tensor Engine runs: "fused", "tiled" or "systolic".
        writes: "value" rounds every value to its dtype; "instruction" keeps fp32 inside one chain of element-wise operations.
        rounds: False on `ideal`: nothing is rounded.
        rows, cols: Tensor Engine array, as integers.
        formats: Formats the chip's Tensor Engine takes; empty for any.
        axis_sizes: Mesh axes in scope, for the cost of collectives.
    """

    autocast: AutoCast = AutoCast()
    rounding: Rounding = "nearest"
    overflow: Overflow | None = None
    fidelity: str = "tiled"
    writes: str = "value"
    activation: str = "exact"
    integer: str = "exact"
    rounds: bool = True
    rows: int = 128
    cols: int = 128
    chip_name: str = ""
    formats: tuple[str, ...] = ()
    axis_sizes: tuple[tuple[str, int], ...] = ()

    def write_format(self, dtype: Any) -> str:
        """Format a value of this dtype is rounded to when an instruction writes it; "" where nothing is rounded."""
        if not self.rounds or not jnp.issubdtype(dtype, jnp.floating):
            return ""
        fmt = format_of(dtype)
        if fmt != "fp32":
            return fmt or ""
        return self.autocast.to if self.autocast.scope == "all" and self.autocast.to != "fp32" else ""

    def operand_format(self, dtype: Any) -> str:
        """Format in which the Tensor Engine takes an operand of this dtype.

        Raises:
            FormatError: If the chip's Tensor Engine has no such format.
        """
        if not jnp.issubdtype(dtype, jnp.floating):
            return ""
        fmt = format_of(dtype) or ""
        if fmt == "fp32" and self.autocast.scope != "none":
            fmt = self.autocast.to
        if self.formats and fmt not in self.formats:
            raise FormatError(
                f"The Tensor Engine of {self.chip_name or 'this chip'} has no {fmt or dtype} operands; it takes {', '.join(self.formats)}. "
                "Cast before the matmul, or choose a chip that has the format."
            )
        return fmt

    @property
    def needs_seed(self) -> bool:
        """Whether anything is left to chance."""
        return self.rounds and self.rounding == "stochastic"

    def inside(self, name: str) -> Numerics:
        """The arithmetic inside a call that the Graph knows by this name.

        In a sampler of jax.random nothing is auto-cast; in a call that `label` named, its own numerics hold.
        """
        if name in _LABELLED:
            return replace(_LABELLED[name], axis_sizes=self.axis_sizes)
        return replace(self, autocast=AutoCast()) if name in RANDOM_SAMPLERS else self

    @property
    def label(self) -> str:
        """Name of a call inside which these numerics hold, whatever holds around it."""
        name = f"emulated_{zlib.crc32(repr(self).encode()):08x}"
        _LABELLED[name] = self
        return name

    def within(self, axis_sizes: Mapping[str, int]) -> Numerics:
        """The same arithmetic inside a shard_map over these axes."""
        return replace(self, axis_sizes=(*self.axis_sizes, *((str(name), int(size)) for name, size in axis_sizes.items())))


def numerics_for(chip: Chip, *, autocast: AutoCast | None = None, **options: Any) -> Numerics:
    """Numerics of a run on `chip`, with every option checked.

    Raises:
        FormatError: For an unknown option value (with the closest match), or an auto-cast format the chip does not have.
        TypeError: If the chip's array size is traced or not whole: running needs concrete sizes.
    """
    for name, value in options.items():
        if value not in CHOICES[name]:
            known = CHOICES[name]
            raise FormatError(f"{name}={value!r} is not known. {did_you_mean(str(value), [str(choice) for choice in known])}")
    autocast = AutoCast() if autocast is None else autocast
    if not isinstance(autocast, AutoCast):
        raise TypeError(f'autocast={autocast!r} is not accepted; give trn_jax.AutoCast("matmult", "bf16") or another AutoCast, or None.')
    numerics = Numerics(
        autocast=autocast,
        rounds=chip.rounds,
        rows=_whole(chip.tensor.rows, "tensor.rows"),
        cols=_whole(chip.tensor.cols, "tensor.cols"),
        chip_name=chip.name,
        formats=chip.formats if chip.rounds else (),
        **options,
    )
    if numerics.rounds and autocast.scope != "none":
        numerics.operand_format(np.dtype(np.float32))
    return numerics


def _whole(size: Any, path: str) -> int:
    if isinstance(size, jax.core.Tracer):
        raise TypeError(
            f"emulate needs a concrete chip, but {path} is traced: loops over tiles have static lengths. Build the chip outside jit, "
            "grad and vmap and close over it (only latency, estimate, sweep and tune take a traced chip)."
        )
    if np.ndim(size):
        raise TypeError(f"emulate runs on one chip, but {path} has shape {np.shape(size)}. Take one chip out of the batch.")
    if float(size) != int(size) or size < 1:
        raise TypeError(f"emulate needs a whole number of array rows and columns, but {path} is {size}. Round it first.")
    return int(size)
