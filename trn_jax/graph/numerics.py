"""How a program computes: auto-cast, rounding, overflow, fidelity. One record that rules, engines and time read alike."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import jax.core
import jax.numpy as jnp
import numpy as np

from trn_jax.chips.schema import Chip
from trn_jax.errors import FaultError, FormatError, did_you_mean
from trn_jax.faults import Fault, checked
from trn_jax.numerics import BLOCK_FORMATS, FORMATS, Overflow, Rounding, format_of
from trn_jax.numerics.activation_fit import SOURCES, fitted_table
from trn_jax.numerics.activation_table import ActivationTable

if TYPE_CHECKING:
    from trn_jax.graph.graph import Call

SCOPES = ("none", "matmult", "all")
SCALINGS = (None, "tensor", "block")
# Functions of jax.random that turn random bits into a distribution. An auto-cast to a narrow format stops at their door: rounded
# inside, a uniform draw reaches the ends of its interval, and the normal made of it is infinite.
RANDOM_SAMPLERS = frozenset(
    "_uniform _normal _normal_real _truncated_normal _gumbel _exponential _gamma _gamma_batched _laplace _logistic _bernoulli _beta "
    "_cauchy _dirichlet _poisson _binomial _t _rayleigh _wald _weibull_min _maxwell _double_sided_maxwell _pareto _triangular "
    "_multivariate_normal _chisquare _f _geometric _lognormal _generalized_normal _ball _orthogonal _randint".split()
)

CHOICES = {
    "rounding": ("nearest", "stochastic"),
    "fidelity": ("fused", "tiled", "systolic"),
    "writes": ("value", "instruction"),
    "overflow": (None, "inf", "nan", "saturate"),
    "integer": ("exact", "fp32"),
    "psum": ("fp32", "bf16"),
}


_LABELLED: dict[str, Numerics] = {}


def is_label(name: str) -> bool:
    """Whether a call of this name has numerics of its own."""
    return name in _LABELLED


@functools.cache
def _float_format(dtype: Any) -> str | None:
    """Format with the values of a floating point dtype, "" if it has none; None for any other dtype."""
    return (format_of(dtype) or "") if jnp.issubdtype(dtype, jnp.floating) else None


def _meet(one: str, other: str) -> bool:
    """Whether the Tensor Engine multiplies operands of two formats (documented: NKI reference, nc_matmul)."""
    for kind in (frozenset(BLOCK_FORMATS), frozenset({"fp32", "tf32"})):
        if (one in kind) != (other in kind):
            return False
    return {one, other} != {"fp8_e4m3", "fp8_e4m3fn"}


@dataclass(frozen=True, slots=True)
class AutoCast:
    """Which fp32 arithmetic is cast to a narrower format, as the Neuron compiler's --auto-cast and --auto-cast-type.

    Attributes:
        scope: "none" (as in Neuron since 2.27), "matmult" (operands of matrix multiplications), or "all" (those, and every
            fp32 value when it is written).
        to: The format, e.g. "bf16", or for "matmult" a block format such as "mxfp8_e4m3fn", with its blocks along the contraction.
        scaling: Of operands cast to `to`, so that their largest magnitude becomes the format's: None, "tensor" (one fp32 scale for
            each operand, multiplied back after accumulation) or "block" (one for each row of lhs or column of rhs and K tile of
            `tensor.rows`, multiplied back tile by tile). Needs "matmult".
        backward: Format of cotangents where they are operands, e.g. "fp8_e5m2"; None is `to`.

    A block format, `scaling` or `backward` makes a recipe: it also casts bf16 and fp16 operands, which the plain auto-cast leaves.

    Raises:
        FormatError: For an unknown scope, format or scaling, or ones that do not go together.
    """

    scope: str = "none"
    to: str = "bf16"
    scaling: str | None = None
    backward: str | None = None

    def __post_init__(self) -> None:
        if self.scope not in SCOPES:
            raise FormatError(f"AutoCast scope {self.scope!r} is not known. {did_you_mean(str(self.scope), SCOPES)}")
        for fmt in (self.to, self.to if self.backward is None else self.backward):
            if not isinstance(fmt, str) or (fmt not in FORMATS and fmt not in BLOCK_FORMATS):
                raise FormatError(f"AutoCast format {fmt!r} is not known. {did_you_mean(str(fmt), [*FORMATS, *BLOCK_FORMATS])}")
        if self.scaling not in SCALINGS:
            raise FormatError(f"AutoCast scaling {self.scaling!r} is not known. {did_you_mean(str(self.scaling), map(str, SCALINGS))}")
        if self.is_recipe and self.scope != "matmult":
            raise FormatError(
                f"AutoCast({self.scope!r}, {self.to!r}, scaling={self.scaling!r}, backward={self.backward!r}): block formats, scaling and "
                'backward are for operands of products only. Use scope "matmult".'
            )
        if self.scaling and (self.to in BLOCK_FORMATS or self.backward in BLOCK_FORMATS):
            raise FormatError(f"AutoCast scaling={self.scaling!r} cannot be combined with a block format, which has scales of its own.")
        if self.backward and not _meet(self.to, self.backward):
            raise FormatError(
                f"AutoCast: {self.to} and {self.backward} operands cannot meet in one product: block formats, fp32 or tf32, and fp8_e4m3fn "
                "each need a partner of their own kind. Choose another backward format."
            )

    @property
    def is_recipe(self) -> bool:
        """Whether operands are cast from any wider format, not only from fp32."""
        return bool(self.to in BLOCK_FORMATS or self.scaling or self.backward)


@dataclass(frozen=True, slots=True, kw_only=True)
class Numerics:
    """The arithmetic of one run; static and hashable.

    Attributes:
        autocast: See `AutoCast`.
        rounding: "nearest" or "stochastic", at every rounding point.
        overflow: Policy beyond the largest finite value; None is each format's own.
        fidelity: How the Tensor Engine runs: "fused", "tiled" or "systolic".
        writes: "value" rounds every value to its dtype; "instruction" keeps fp32 inside one chain of element-wise operations.
        activation: "exact", or the tables that stand for functions of the Scalar Engine.
        rounds: False on `ideal`: nothing is rounded.
        integer: "exact", or "fp32" for 32-bit integer arithmetic as the Vector Engine does it.
        psum: Format in which the Tensor Engine accumulates from K tile to K tile.
        faults: What is broken.
        rows, cols: Tensor Engine array, as integers.
        formats: Formats the chip's Tensor Engine takes; empty for any.
        axis_sizes: Mesh axes in scope, for the cost of collectives.
    """

    autocast: AutoCast = AutoCast()
    rounding: Rounding = "nearest"
    overflow: Overflow | None = None
    fidelity: str = "tiled"
    writes: str = "value"
    activation: Literal["exact"] | tuple[ActivationTable, ...] = "exact"
    integer: str = "exact"
    psum: str = "fp32"
    faults: tuple[Fault, ...] = ()
    rounds: bool = True
    rows: int = 128
    cols: int = 128
    chip_name: str = ""
    formats: tuple[str, ...] = ()
    axis_sizes: tuple[tuple[str, int], ...] = ()

    @property
    def needs_seed(self) -> bool:
        """Whether anything is left to chance."""
        return (self.rounds and self.rounding == "stochastic") or any(fault.rate > 0 for fault in self.faults)

    @property
    def array_faults(self) -> tuple[Fault, ...]:
        """The faults in the array of the Tensor Engine."""
        return tuple(fault for fault in self.faults if fault.in_array)

    def write_format(self, dtype: Any) -> str:
        """Format a value of this dtype is rounded to when an instruction writes it; "" where nothing is rounded."""
        fmt = _float_format(dtype) if self.rounds else ""
        if fmt != "fp32":
            return fmt or ""
        return self.autocast.to if self.autocast.scope == "all" and self.autocast.to != "fp32" else ""

    def operand_format(self, dtype: Any, *, cotangent: bool = False) -> str:
        """Format in which the Tensor Engine takes an operand of this dtype; `cotangent` says whether it is one.

        Raises:
            FormatError: If the chip's Tensor Engine has no such format.
        """
        fmt = _float_format(dtype)
        if fmt is None:
            return ""
        if self.autocast.scope != "none" and (fmt == "fp32" or (self.autocast.is_recipe and fmt in ("bf16", "fp16"))):
            fmt = self.autocast.backward if cotangent and self.autocast.backward else self.autocast.to
        if self.formats and fmt not in self.formats:
            raise FormatError(
                f"The Tensor Engine of {self.chip_name or 'this chip'} has no {fmt or dtype} operands; it takes {', '.join(self.formats)}. "
                "Cast before the matmul, or choose a chip that has the format."
            )
        return fmt

    def table_of(self, function: str) -> ActivationTable | None:
        """The table that the Scalar Engine evaluates for a function, if any."""
        if not self.rounds or self.activation == "exact":
            return None
        return next((table for table in self.activation if table.function == function), None)

    def inside(self, name: str) -> Numerics:
        """The arithmetic inside a call that the Graph knows by this name.

        In a sampler of jax.random nothing is auto-cast and integers are exact; in a call that `label` named, its own numerics hold.
        """
        if name in _LABELLED:
            return replace(_LABELLED[name], axis_sizes=self.axis_sizes)
        return replace(self, autocast=AutoCast(), integer="exact") if name in RANDOM_SAMPLERS else self

    def entering(self, call: Call) -> Numerics:
        """The arithmetic in the body of a call: that `inside` the called function, `within` the mesh of a shard_map."""
        numerics = self.inside(call.known_as)
        return numerics.within(call.params["mesh"].shape) if call.ranks else numerics

    @property
    def label(self) -> str:
        """Name of a call inside which these numerics hold, whatever holds around it."""
        name = f"emulated_{zlib.crc32(repr(self).encode()):08x}"
        _LABELLED[name] = self
        return name

    def within(self, axis_sizes: Mapping[str, int]) -> Numerics:
        """The same arithmetic inside a shard_map over these axes."""
        return replace(self, axis_sizes=(*self.axis_sizes, *((str(name), int(size)) for name, size in axis_sizes.items())))


def numerics_for(chip: Chip, *, autocast: AutoCast | None = None, faults: Sequence[Fault] | None = None, **options: Any) -> Numerics:
    """Numerics of a run on `chip`, with every option checked.

    Raises:
        FormatError: For an unknown option value (with the closest match), or an auto-cast format the chip does not have.
        FaultError: For faults that the chip's array cannot have, or that are not modelled together with the other options.
        TypeError: If it is no Chip, or its array size is traced or not whole: running needs concrete sizes.
    """
    check_chip(chip)
    activation = _tables(options.pop("activation", "exact"))
    for name, value in options.items():
        if value not in CHOICES[name]:
            known = CHOICES[name]
            raise FormatError(f"{name}={value!r} is not known. {did_you_mean(str(value), [str(choice) for choice in known])}")
    autocast = checked_autocast(autocast)
    rows, cols = _whole(chip.tensor.rows, "tensor.rows"), _whole(chip.tensor.cols, "tensor.cols")
    numerics = Numerics(
        autocast=autocast,
        faults=checked(faults, rows, cols),
        rounds=chip.rounds,
        rows=rows,
        cols=cols,
        chip_name=chip.name,
        formats=chip.formats if chip.rounds else (),
        activation=activation,
        **options,
    )
    if numerics.rounds and autocast.scope != "none":
        numerics.operand_format(np.dtype(np.float32))
        numerics.operand_format(np.dtype(np.float32), cotangent=True)
    if numerics.rounds and numerics.psum not in chip.psum_formats:
        raise FormatError(
            f"psum={numerics.psum!r}: PSUM of {chip.name} accumulates in {' or '.join(chip.psum_formats)} only. Leave psum='fp32', or "
            "choose a chip whose psum_formats have it, such as trainium3."
        )
    if numerics.array_faults and (autocast.is_recipe or numerics.psum != "fp32"):
        raise FaultError(
            f"{numerics.array_faults[0]} is not modelled together with block formats, scaling, backward formats or a bf16 PSUM. Use "
            "faults of memories and engines, or a plain AutoCast with psum='fp32'."
        )
    return numerics


def check_chip(chip: Any) -> None:
    """Raises TypeError unless it is a Chip."""
    if not isinstance(chip, Chip):
        raise TypeError(f"Got {chip!r} where a Chip is needed. Load one: trn_jax.load_chip('trainium2').")


def checked_autocast(autocast: Any) -> AutoCast:
    """What is given as `autocast=`, None being an AutoCast that casts nothing.

    Raises:
        TypeError: If it is neither.
    """
    if not isinstance(autocast, AutoCast | None):
        raise TypeError(f'autocast={autocast!r} is not accepted; give trn_jax.AutoCast("matmult", "bf16") or another AutoCast, or None.')
    return autocast or AutoCast()


def _tables(activation: Any) -> Literal["exact"] | tuple[ActivationTable, ...]:
    """What `emulate` takes as `activation`, checked."""
    if activation == "exact":
        return "exact"
    if activation == "table":
        return tuple(fitted_table(name) for name in SOURCES)
    if isinstance(activation, (list, tuple)) and activation and all(isinstance(table, ActivationTable) for table in activation):
        from trn_jax.graph.rules.elementwise import ACTIVATIONS  # rules import this module

        for table in activation:
            if table.function not in ACTIVATIONS:
                raise FormatError(
                    f"The Scalar Engine evaluates no function {table.function!r}, so its table would never be read. "
                    f"{did_you_mean(str(table.function), ACTIVATIONS)}"
                )
        return tuple(activation)
    raise FormatError(
        f"activation={activation!r} is not known. {did_you_mean(str(activation), ('exact', 'table'))} Or give a list of "
        "trn_jax.ActivationTable."
    )


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
