"""The table of formats agrees with ml_dtypes, and its errors say what to type instead."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from trn_jax.errors import FormatError
from trn_jax.numerics import FORMATS, format_of, get_format
from trn_jax.numerics.formats import scalar_format

STORED = [fmt for fmt in FORMATS.values() if fmt.storage]


@pytest.mark.parametrize("fmt", STORED, ids=lambda fmt: fmt.name)
def test_limits_are_those_of_the_storage_type(fmt):
    info = ml_dtypes.finfo(fmt.dtype)
    assert (fmt.max_finite, fmt.min_normal, fmt.min_subnormal) == (float(info.max), float(info.tiny), float(info.smallest_subnormal))
    assert (fmt.exponent_bits, fmt.mantissa_bits, fmt.width_bits, fmt.storage_bits) == (info.nexp, info.nmant, info.bits, info.bits)
    assert fmt.has_inf == np.isinf(np.float32(np.inf).astype(fmt.dtype))
    assert format_of(fmt.dtype) == fmt.name


def test_limits_of_the_documented_formats():
    assert {name: FORMATS[name].max_finite for name in FORMATS if name.startswith("fp8")} == {
        "fp8_e5m2": 57344.0,
        "fp8_e4m3": 240.0,
        "fp8_e4m3fn": 448.0,
        "fp8_e3m4": 15.5,
    }
    assert (FORMATS["fp8_e4m3"].min_subnormal, FORMATS["fp8_e5m2"].min_subnormal, FORMATS["fp8_e3m4"].min_subnormal) == (
        2**-9,
        2**-16,
        2**-6,
    )
    assert (FORMATS["tf32"].width_bits, FORMATS["tf32"].storage_bits, FORMATS["tf32"].dtype) == (19, 32, None)


def test_a_new_format_is_one_row():
    e2m1 = scalar_format("fp4_e2m1fn", 2, 1, "none", storage="float4_e2m1fn", source="documented: OCP microscaling formats 1.0")
    assert (e2m1.max_finite, e2m1.min_normal, e2m1.min_subnormal, e2m1.default_overflow) == (6.0, 1.0, 0.5, "saturate")


def test_every_row_names_its_source():
    assert all(fmt.source.startswith(("documented", "derived", "measured", "assumed")) for fmt in FORMATS.values())
    assert all(name == fmt.name for name, fmt in FORMATS.items())


def test_formats_are_frozen_and_hashable():
    assert len(set(FORMATS.values())) == len(FORMATS)
    with pytest.raises(AttributeError):
        FORMATS["bf16"].bias = 3
    with pytest.raises(TypeError):
        FORMATS["bf16"] = FORMATS["fp16"]


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        (jnp.float32, "fp32"),
        (jnp.bfloat16, "bf16"),
        ("float16", "fp16"),
        (jnp.zeros(1, jnp.float8_e4m3).dtype, "fp8_e4m3"),
        (np.float64, None),
        (jnp.int32, None),
        (jnp.float8_e4m3b11fnuz, None),
        (bool, None),
        ("no such dtype", None),
    ],
)
def test_format_of_a_dtype(dtype, name):
    assert format_of(dtype) == name


def test_format_of_a_key_dtype_is_none():
    assert format_of(jax.random.key(0).dtype) is None


def test_get_format_takes_a_name_or_a_format():
    assert get_format("bf16") is FORMATS["bf16"]
    assert get_format(FORMATS["tf32"]) is FORMATS["tf32"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fp8_e4m3b", r"'fp8_e4m3b'.*Did you mean 'fp8_e4m3'\?.*Known: bf16, fp16, fp32"),
        ("e5m2", r"Did you mean 'fp8_e5m2'"),
        ("bfloat16", r"'bfloat16' is a dtype; .* called 'bf16'"),
        (jnp.float8_e4m3fn, r"'float8_e4m3fn' is a dtype; .* called 'fp8_e4m3fn'"),
        (8, r"No number format is called 8\. Known:"),
    ],
)
def test_unknown_format_names_the_closest(name, message):
    with pytest.raises(FormatError, match=message):
        get_format(name)


def test_containment_of_formats():
    def holds(a, b):
        return FORMATS[a].holds(FORMATS[b])

    assert all(FORMATS["fp32"].holds(fmt) for fmt in FORMATS.values())
    assert all(fmt.holds(fmt) for fmt in FORMATS.values())
    assert holds("tf32", "bf16")
    assert holds("tf32", "fp16")
    assert holds("fp16", "fp8_e5m2")
    assert not holds("fp16", "bf16")
    assert not holds("bf16", "fp16")
    assert not holds("fp8_e4m3fn", "fp8_e4m3")  # no infinity
    assert FORMATS["fp16"].largest_common(FORMATS["bf16"]) == 65280.0
    assert FORMATS["fp8_e4m3"].largest_common(FORMATS["fp8_e5m2"]) == 224.0
