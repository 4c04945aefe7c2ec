"""Rounds arrays to the values of a number format: once, on the bits of float32, with a straight-through gradient.

    round_to(x) = sign(x) * overflow(round(|x|)),    d round_to(x) / dx = 1

where `round` is nearest.py's or stochastic.py's and `overflow` decides about everything that rounded past the largest
finite value. Nothing here casts to the narrow type and back, which a compiler may drop as excess precision.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Float32

from trn_jax.errors import FormatError, did_you_mean
from trn_jax.numerics import bits, nearest, stochastic
from trn_jax.numerics.blocks import BLOCK_FORMATS, BlockFormat, round_blocks
from trn_jax.numerics.formats import FORMATS, Format, format_of, get_format
from trn_jax.numerics.hash import Seed, stream_key
from trn_jax.numerics.seed import as_seed
from trn_jax.numerics.stream import draw, random_bits

Rounding = Literal["nearest", "stochastic"]
Overflow = Literal["inf", "nan", "saturate"]
Rounder = Callable[..., Float32[Array, "*dims"]]

# Names of the compiled functions that round -> name of the format: who reads a traced program knows a rounding by them.
ROUNDINGS: dict[str, str] = {}


def round_to(
    x: Float[ArrayLike, "*dims"],
    fmt: str | Format | BlockFormat,
    *,
    rounding: Rounding = "nearest",
    overflow: Overflow | None = None,
    key: Any = None,
    seed: Seed | None = None,
    axis: int = -1,
) -> Float[Array, "*dims"]:
    """Rounds `x` to the values that `fmt` can hold, kept in `x.dtype`.

    Models what an engine does when it writes its float32 result in a narrower format: one rounding, subnormal values and
    the sign of zero kept, NaN staying NaN. Everything whose rounded magnitude exceeds the largest finite value, infinities
    included, follows `overflow`. Stochastic rounding first chooses between a value's two neighbours, the upper one being
    where the next mantissa step would be even if that is past the largest finite value, and then applies the same rule.

    A format with every value of `x.dtype` (fp32 for all, bf16 for bf16) leaves `x` as it is, infinities included. Otherwise
    `x` is rounded once, in float32, to the values that both `fmt` and `x.dtype` can hold: for bf16 input and "fp16" the
    largest finite value is 65280. An infinity that `x.dtype` lacks becomes its NaN.

    Block formats ("mxfp8_e4m3fn", "mxfp8_e5m2", "mxfp4_e2m1fn") give each 32 neighbours along `axis` one power of two as their
    scale, and round what it leaves to the element format, once. Elements saturate; blocks of zeros stay zeros, tiny blocks stay
    finite, subnormal values are kept, and a block with an infinity or NaN becomes NaN. The scale is that of Trainium3's quantize_mx,
    2^(floor(log2 max) - (largest exponent - 1)) for MXFP8, and OCP's for MXFP4; OCP's for MXFP8 is
    `dataclasses.replace(trn_jax.numerics.BLOCK_FORMATS["mxfp8_e4m3fn"], peak_exponent=8)` as `fmt`.

    Under `vmap` an unmapped seed gives every lane the same random bits; so do equal seeds on the devices of a `shard_map`.

    Args:
        x: Floating-point values of any shape, of a dtype that `format_of` knows (float32, bfloat16, float16, fp8).
        fmt: Name of the number format, e.g. "fp8_e4m3", or a `Format` or `BlockFormat`.
        rounding: "nearest" (ties to even) or "stochastic" (up with a probability proportional to the distance).
        overflow: "inf", "nan" or "saturate" (the largest finite value, also for infinities). None is what ml_dtypes does:
            infinity where the format has one, else NaN. Block formats saturate.
        key: For "stochastic": a JAX PRNG key (typed or raw), or
        seed: an int or a uint32 scalar, traced or not. Pass another one at every step: a constant one rounds the same way
            every time. Both are ignored when rounding to nearest.
        axis: Axis along which a block format has its blocks; other formats do not read it.

    Returns:
        Array of the shape and dtype of `x`.

    Raises:
        FormatError: Unknown format, rounding or overflow; `x` not floating point or wider than float32; no seed, or two; a block
            format with another overflow, or an axis that `x` does not have.

    Units: none (dimensionless).
    Gradient: plain straight-through, the identity in both modes even where the value overflowed; the cotangent is not
        rounded. None with respect to key or seed.
    Basis: documented (formats, round to nearest even, stochastic rounding: AWS Neuron, rounding modes) and derived (bits equal
        to ml_dtypes; largest-value behaviour of stochastic rounding and saturation of infinities chosen here).
    """
    x = jnp.asarray(x)
    container = _container(x.dtype)
    if isinstance(fmt, str) and fmt in BLOCK_FORMATS:
        fmt = BLOCK_FORMATS[fmt]
    if isinstance(fmt, BlockFormat):
        round_x = block_rounder(fmt, rounding, overflow, container, axis=_existing_axis(axis, x.ndim))
    else:
        round_x = rounder(fmt, rounding, overflow, container)
    if rounding == "nearest":
        return round_x(x.astype(jnp.float32)).astype(x.dtype)
    return round_x(x.astype(jnp.float32), stream_key(as_seed(key=key, seed=seed))).astype(x.dtype)


def rounder(
    fmt: str | Format, rounding: Rounding = "nearest", overflow: Overflow | None = None, container: str | Format = "fp32"
) -> Rounder:
    """The rounding of `round_to` as a function `(x, key) -> rounded` of float32 arrays, checked and built once.

    For inner loops: the returned function checks nothing. `key` is a `Stream`, or a uint32 scalar as `mix` returns (neighbouring
    integers would give related bits), and may be left out for "nearest".
    `container` is the format of the values' real dtype, when that is narrower than the float32 they are given in.

    Raises:
        FormatError: Unknown format, rounding mode or overflow policy, or "inf" for a format without infinity.

    Units: none. Gradient: plain straight-through. Basis: see `round_to`.
    """
    fmt, container = get_format(fmt), get_format(container)
    _check_option("rounding", rounding, get_args(Rounding))
    if overflow is not None:
        _check_option("overflow", overflow, get_args(Overflow))
    overflow = overflow or fmt.default_overflow
    if overflow == "inf" and not fmt.has_inf:
        raise FormatError(f"{fmt.name} has no infinity to overflow to. Give overflow='nan' or 'saturate', or None for its default.")
    return _build(fmt, rounding, overflow, container)


def block_rounder(
    fmt: str | BlockFormat,
    rounding: Rounding = "nearest",
    overflow: Overflow | None = None,
    container: str | Format = "fp32",
    *,
    axis: int,
) -> Rounder:
    """As `rounder`, for a block format with its blocks along `axis` (not negative).

    Raises:
        FormatError: Unknown rounding mode, or an overflow that block formats do not have.
    """
    fmt = BLOCK_FORMATS[fmt] if isinstance(fmt, str) else fmt
    _check_option("rounding", rounding, get_args(Rounding))
    if overflow not in (None, "saturate"):
        raise FormatError(f"overflow={overflow!r} does not apply to {fmt.name}: its elements saturate. Give None or 'saturate'.")
    return _build_blocks(fmt, rounding, get_format(container), axis)


@cache
def _build_blocks(fmt: BlockFormat, rounding: Rounding, container: Format, axis: int) -> Rounder:
    name = f"round_{fmt.name}_{rounding}"
    ROUNDINGS[name] = fmt.name
    rounded = _straight_through(partial(round_blocks, fmt=fmt, axis=axis, container=container), name)
    if rounding == "stochastic":
        return lambda x, key: rounded(x, *draw(key))
    return lambda x, key=None: rounded(x)


def _existing_axis(axis: int, ndim: int) -> int:
    """The axis counted from the front."""
    if not -ndim <= axis < ndim:
        raise FormatError(
            f"axis={axis} does not exist: blocks lie along an axis, and x has {ndim} of them. Give one of them, or reshape x."
        )
    return axis % ndim


@cache
def _build(fmt: Format, rounding: Rounding, overflow: Overflow, container: Format) -> Rounder:
    if fmt.holds(container):
        return lambda x, key=None: x
    largest = fmt.largest_common(container)
    bound = bits.bits_of(largest), {"inf": bits.INF, "nan": bits.NAN, "saturate": bits.bits_of(largest)}[overflow]
    if bits.has_float32_exponents(fmt) and overflow == "inf" and largest == fmt.max_finite:
        bound = None
    name = f"round_{fmt.name}_{rounding}"
    ROUNDINGS[name] = fmt.name
    rounded = _straight_through(partial(_round_float32, fmt=fmt, bound=bound), name)
    if rounding == "stochastic":
        return lambda x, key: rounded(x, *draw(key))
    return lambda x, key=None: rounded(x)


def _round_float32(x: Array, *key: Array, fmt: Format, bound: tuple[np.uint32, np.uint32] | None) -> Array:
    """Rounds to nearest without a key, stochastically with one.

    `bound` is the largest finite magnitude and what stands for everything past it. Without one the carry past the largest
    value is infinity by itself (the exponents are float32's own), and the sign bit may stay where it is: only a NaN's carry
    could reach it.
    """
    word = bits.to_bits(x)
    magnitude = word if bound is None else word & bits.MAGNITUDE
    if key:
        rounded = stochastic.round_magnitude(magnitude, fmt, random_bits(x.shape, *key))
    else:
        rounded = nearest.round_magnitude(magnitude, fmt)
    if bound is not None:
        largest, beyond = bound
        rounded = jnp.where(rounded > largest, beyond, rounded) | (word & bits.SIGN)
    return jnp.where(x != x, x, bits.to_float(rounded))


def _straight_through(compute: Callable[..., Array], name: str) -> Rounder:
    """`compute(x, *key)` compiled under a name, with the identity as its derivative in x."""
    compute.__name__ = name  # pyright: ignore[reportFunctionMemberAccess]
    compute = jax.jit(compute)

    @jax.custom_jvp
    def rounded(x, *key):
        return compute(x, *key)

    @rounded.defjvp
    def _(primals, tangents):
        value, tangent = rounded(*primals), tangents[0]
        if jax.typeof(value) != jax.typeof(tangent):  # in a shard_map where only the key differs across devices
            tangent = tangent * (primals[1] * 0 + 1).astype(tangent.dtype)
        return value, tangent

    return jax.jit(rounded)  # jitted once more, so that a program with hundreds of roundings traces the rule once per shape


def _container(dtype: np.dtype) -> Format:
    """The format of an input dtype, or an error that says which dtypes are accepted."""
    name = format_of(dtype)
    if name is None:
        accepted = ", ".join(f.storage for f in FORMATS.values() if f.storage)
        hint = " Cast it to float32 first, which is itself a rounding." if dtype == np.float64 else ""
        raise FormatError(f"round_to cannot round {dtype} values. Accepted dtypes: {accepted}.{hint}")
    return FORMATS[name]


def _check_option(what: str, value: object, accepted: tuple[str, ...]) -> None:
    if value not in accepted:
        raise FormatError(f"Unknown {what} {value!r}. {did_you_mean(str(value), accepted)}")
