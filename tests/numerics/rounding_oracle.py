"""Independent references for rounding: ml_dtypes casts, integer rounding for tf32, and exact float64 arithmetic for any format.

Inputs are float32 only: from float64 the casts of ml_dtypes round twice.
"""

import numpy as np

from trn_jax.numerics import FORMATS, Format

INF_BITS = np.uint32(0x7F80_0000)


def nearest(x: np.ndarray, fmt: Format) -> np.ndarray:
    """`x` rounded to nearest even with the format's usual overflow, as float32."""
    assert x.dtype == np.float32
    if fmt.name == "tf32":
        return tf32(x)
    with np.errstate(all="ignore"):
        return x.astype(fmt.dtype).astype(np.float32)


def tf32(x: np.ndarray) -> np.ndarray:
    """Compares the 13 discarded bits with one half, on integers."""
    word = x.view(np.uint32).astype(np.uint64)
    kept, rest = word >> 13, word & 0x1FFF
    kept += (rest > 0x1000) | ((rest == 0x1000) & (kept % 2 == 1))
    return np.where(np.isnan(x), x, (kept << 13).astype(np.uint32).view(np.float32))


def exact(x: np.ndarray, fmt: Format) -> np.ndarray:
    """Divides by the distance between neighbours in float64, where that is exact, and rounds to the even integer."""
    with np.errstate(all="ignore"):
        x64 = x.astype(np.float64)
        exponent = np.frexp(x64)[1] - 1
        step = np.ldexp(1.0, np.maximum(exponent, 1 - fmt.bias) - fmt.mantissa_bits)
        rounded = np.copysign(np.rint(np.abs(x64) / step) * step, x64)
    beyond = {"inf": np.inf, "nan": np.nan, "saturate": fmt.max_finite}[fmt.default_overflow]
    rounded = np.where(np.abs(rounded) > fmt.max_finite, np.copysign(beyond, x64), rounded)
    rounded = np.where(np.isinf(x64), np.copysign(beyond, x64), rounded)
    return np.where(np.isnan(x), x, rounded).astype(np.float32)


def finite_values(fmt: Format) -> np.ndarray:
    """All non-negative finite values of a format with at most 19 bits, ascending, and one step past the largest."""
    fields = np.arange(2 ** (fmt.width_bits - 1), dtype=np.int64)
    exponent, mantissa = fields >> fmt.mantissa_bits, fields & (2**fmt.mantissa_bits - 1)
    implied = np.minimum(exponent, 1)
    values = np.ldexp(
        (implied * 2**fmt.mantissa_bits + mantissa).astype(np.float64), np.maximum(exponent, 1) - fmt.bias - fmt.mantissa_bits
    )
    last = int(np.searchsorted(values, fmt.max_finite))
    return values[: last + 2]


def patterns(fmt: Format, random_count: int) -> np.ndarray:
    """Float32 inputs: every value of the format, all midpoints and their neighbours, all bf16 values, random bit patterns."""
    values = finite_values(fmt)
    midpoints = (values[:-1] + values[1:]) / 2
    near = midpoints[midpoints < np.finfo(np.float32).max].astype(np.float32)
    near = np.concatenate([values[:-1].astype(np.float32), near, np.nextafter(near, np.float32(0)), np.nextafter(near, np.float32(np.inf))])
    every_bf16 = (np.arange(2**16, dtype=np.uint32) << 16).view(np.float32)
    rng = np.random.default_rng(20)
    anything = rng.integers(0, 2**32, random_count, dtype=np.uint32).view(np.float32)
    # Half of the random patterns lie where the format has its values, subnormal and overflowing ones included.
    low, high = np.float32([fmt.min_subnormal / 4, fmt.max_finite]).view(np.uint32)
    inside = rng.integers(low, min(int(high) + 2**24, int(INF_BITS)), random_count // 2, dtype=np.uint32)
    inside |= rng.integers(0, 2, inside.size, dtype=np.uint32) << 31
    anything[: inside.size] = inside.view(np.float32)
    return np.concatenate([near, -near, every_bf16, anything])


def assert_same_bits(got: object, want: np.ndarray, x: np.ndarray) -> None:
    """Equal bit for bit, except that any NaN equals any NaN."""
    got = np.asarray(got)
    assert got.dtype == want.dtype
    assert got.dtype == np.float32
    same = (got.view(np.uint32) == want.view(np.uint32)) | (np.isnan(got) & np.isnan(want))
    first = np.flatnonzero(~same)[:5]
    assert same.all(), f"{(~same).sum()} differ: x {x[first]}, got {got[first]}, want {want[first]}"


NARROW = [fmt for fmt in FORMATS.values() if fmt.name != "fp32"]
