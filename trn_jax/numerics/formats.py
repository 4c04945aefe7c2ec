"""Scalar floating-point formats as rows of one table: an exponent width, a mantissa width and what the top exponent means.

A finite value is (-1)^s * 2^(max(E, 1) - bias) * (min(E, 1) + M / 2^mantissa_bits) with E and M the exponent and mantissa
fields; everything else in a `Format` follows from that, so a new scalar format is one more row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import ml_dtypes
import numpy as np

from trn_jax.errors import FormatError, did_you_mean

# What the codes of the largest exponent field mean. "ieee": infinities (mantissa 0) and NaN. "one_nan": ordinary values, but
# the all-ones mantissa is NaN and there is no infinity (the "fn" of OCP names). "none": ordinary values only.
Specials = Literal["ieee", "one_nan", "none"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Format:
    """A scalar floating-point format: the set of values that it can hold, and how it is stored.

    `storage` is the name of the numpy or ml_dtypes type with exactly these values, or None where no such type exists.
    `storage_bits` is what an element occupies in memory (tf32 has 19 meaningful bits and occupies 32).
    """

    name: str
    exponent_bits: int
    mantissa_bits: int
    bias: int
    specials: Specials
    storage: str | None
    storage_bits: int
    max_finite: float
    min_normal: float
    min_subnormal: float
    source: str

    @property
    def width_bits(self) -> int:
        """Meaningful bits: sign, exponent and mantissa."""
        return 1 + self.exponent_bits + self.mantissa_bits

    @property
    def has_inf(self) -> bool:
        """Whether an infinity can be stored."""
        return self.specials == "ieee"

    @property
    def has_nan(self) -> bool:
        """Whether a NaN can be stored."""
        return self.specials != "none"

    @property
    def default_overflow(self) -> Literal["inf", "nan", "saturate"]:
        """What becomes of a value that rounds past `max_finite` when nothing else is asked: what ml_dtypes does."""
        if self.has_inf:
            return "inf"
        return "nan" if self.has_nan else "saturate"

    @property
    def dtype(self) -> np.dtype | None:
        """The numpy dtype of `storage`, or None."""
        return None if self.storage is None else np.dtype(getattr(ml_dtypes, self.storage, self.storage))

    def holds(self, other: Format) -> bool:
        """Whether every value of `other` is also a value of this format, so that rounding `other` to it changes nothing."""
        return (
            self.mantissa_bits >= other.mantissa_bits
            and self.min_subnormal <= other.min_subnormal
            and self.max_finite >= other.max_finite
            and self.has_inf >= other.has_inf
            and self.has_nan >= other.has_nan
        )

    def largest_common(self, other: Format) -> float:
        """The largest finite value of both formats."""
        limit = min(self.max_finite, other.max_finite)
        _, exponent = math.frexp(limit)
        step = math.ldexp(1.0, exponent - 1 - min(self.mantissa_bits, other.mantissa_bits))
        return math.floor(limit / step) * step


def scalar_format(
    name: str,
    exponent_bits: int,
    mantissa_bits: int,
    specials: Specials = "ieee",
    *,
    storage: str | None = None,
    storage_bits: int | None = None,
    source: str,
) -> Format:
    """Completes a row of the table: bias 2^(exponent_bits - 1) - 1, and the limits that follow from the fields."""
    bias = 2 ** (exponent_bits - 1) - 1
    top_exponent = 2**exponent_bits - (2 if specials == "ieee" else 1) - bias
    top_mantissa = 2**mantissa_bits - (2 if specials == "one_nan" else 1)
    return Format(
        name=name,
        exponent_bits=exponent_bits,
        mantissa_bits=mantissa_bits,
        bias=bias,
        specials=specials,
        storage=storage,
        storage_bits=storage_bits or 1 + exponent_bits + mantissa_bits,
        max_finite=2.0**top_exponent * (1 + top_mantissa / 2**mantissa_bits),
        min_normal=2.0 ** (1 - bias),
        min_subnormal=2.0 ** (1 - bias - mantissa_bits),
        source=source,
    )


_NKI = "documented: NKI reference, supported data types"
_OCP = "documented: OCP 8-bit floating point specification 1.0"

FORMATS = MappingProxyType(
    {
        fmt.name: fmt
        for fmt in (
            scalar_format("fp32", 8, 23, storage="float32", source="documented: IEEE 754 binary32"),
            scalar_format("tf32", 8, 10, storage_bits=32, source=_NKI),
            scalar_format("bf16", 8, 7, storage="bfloat16", source=_NKI),
            scalar_format("fp16", 5, 10, storage="float16", source="documented: IEEE 754 binary16"),
            scalar_format("fp8_e5m2", 5, 2, storage="float8_e5m2", source=_OCP),
            scalar_format("fp8_e4m3", 4, 3, storage="float8_e4m3", source=_NKI + " (Trainium1 to 3; largest value 240)"),
            scalar_format("fp8_e4m3fn", 4, 3, "one_nan", storage="float8_e4m3fn", source=_OCP + " (Trainium3; largest value 448)"),
            scalar_format("fp8_e3m4", 3, 4, storage="float8_e3m4", source="derived: bit layout documented, specials as IEEE 754"),
        )
    }
)

_NAME_OF_STORAGE = {fmt.storage: fmt.name for fmt in FORMATS.values() if fmt.storage is not None}


def get_format(name: str | Format) -> Format:
    """The format called `name`; a `Format` is returned as it is.

    Raises:
        FormatError: If there is no such format; the message has the closest known name.
    """
    if isinstance(name, Format):
        return name
    if isinstance(name, str) and name in FORMATS:
        return FORMATS[name]
    if isinstance(name, str) and name.startswith("mx"):
        raise FormatError(
            f"{name!r} is not a scalar format. Block formats (mxfp8_e4m3fn, mxfp8_e5m2, mxfp4_e2m1fn) are taken by trn_jax.round_to and as "
            'operands of products: trn_jax.AutoCast("matmult", "mxfp8_e4m3fn"). Choose a scalar format here.'
        )
    dtype_name = name if isinstance(name, str) else _dtype_name(name)
    if dtype_name in _NAME_OF_STORAGE:
        raise FormatError(f"{dtype_name!r} is a dtype; the format with its values is called {_NAME_OF_STORAGE[dtype_name]!r}.")
    raise FormatError(f"No number format is called {name!r}. {did_you_mean(str(name), FORMATS)}")


def format_of(dtype: Any) -> str | None:
    """The name of the format with exactly the values of a dtype; None for float64, integers, PRNG keys and anything else."""
    return _NAME_OF_STORAGE.get(_dtype_name(dtype) or "")


def _dtype_name(dtype: Any) -> str | None:
    """The name of anything numpy or JAX takes as a dtype (PRNG key types included), or None."""
    if isinstance(getattr(dtype, "name", None), str):
        return dtype.name
    try:
        return np.dtype(dtype).name
    except TypeError:
        return None
