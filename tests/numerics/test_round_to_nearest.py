"""Rounding to nearest is bit for bit what ml_dtypes does, in every format, on every kind of float32 value."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rounding_oracle as oracle

from trn_jax.numerics import FORMATS, format_of, round_to
from trn_jax.numerics.formats import scalar_format

each_format = pytest.mark.parametrize("fmt", oracle.NARROW, ids=lambda fmt: fmt.name)


@each_format
def test_equals_the_reference_on_values_midpoints_and_random_patterns(fmt):
    x = oracle.patterns(fmt, 2**20)
    oracle.assert_same_bits(round_to(x, fmt.name), oracle.nearest(x, fmt), x)


@each_format
def test_references_agree_with_each_other(fmt):
    x = oracle.patterns(fmt, 2**16)
    oracle.assert_same_bits(oracle.nearest(x, fmt), oracle.exact(x, fmt), x)


@pytest.mark.parametrize(
    "fmt",
    [
        scalar_format("e6m9", 6, 9, source="assumed"),
        scalar_format("e5m3", 5, 3, "one_nan", source="assumed"),
        scalar_format("e2m1", 2, 1, "none", source="assumed"),
        scalar_format("e7m1", 7, 1, source="assumed"),
    ],
    ids=lambda fmt: fmt.name,
)
def test_formats_outside_the_table_round_by_the_same_code(fmt):
    x = oracle.patterns(fmt, 2**16)
    oracle.assert_same_bits(round_to(x, fmt), oracle.exact(x, fmt), x)


@each_format
def test_operation_by_operation_equals_compiled(fmt):
    x = oracle.patterns(fmt, 2**12)[-(2**12) :]
    with jax.disable_jit():
        eager = np.asarray(round_to(x, fmt.name))
    compiled = jax.jit(lambda x: round_to(x, fmt.name))(x)
    oracle.assert_same_bits(compiled, eager, x)


@pytest.mark.parametrize("name", ["bf16", "tf32"])
def test_equals_reduce_precision_where_the_exponent_is_float32s(name):
    x = oracle.patterns(FORMATS[name], 2**16)
    reduced = jax.lax.reduce_precision(x, 8, FORMATS[name].mantissa_bits)
    oracle.assert_same_bits(round_to(x, name), np.asarray(reduced), x)


def test_fp32_is_the_identity_even_for_signalling_nan():
    x = np.array([0x7F800001, 0xFFFFFFFF, 1, 0x80000000, 0x7F800000], np.uint32).view(np.float32)
    np.testing.assert_array_equal(np.asarray(round_to(x, "fp32", overflow="saturate")).view(np.uint32), x.view(np.uint32))


@pytest.mark.parametrize(
    ("name", "nan_codes"), [("fp8_e4m3", 14), ("fp8_e4m3fn", 2), ("fp8_e5m2", 6), ("fp8_e3m4", 30), ("fp16", 2046), ("bf16", 254)]
)
def test_every_code_decodes_and_encodes_to_itself(name, nan_codes):
    fmt = FORMATS[name]
    codes = np.arange(2**fmt.storage_bits, dtype=np.uint32).astype(f"uint{fmt.storage_bits}")
    decoded = codes.view(fmt.dtype).astype(np.float32)
    rounded = np.asarray(round_to(decoded, name))
    is_nan = np.isnan(decoded)
    assert is_nan.sum() == nan_codes
    assert np.isnan(rounded[is_nan]).all()
    np.testing.assert_array_equal(rounded[~is_nan].astype(fmt.dtype).view(codes.dtype), codes[~is_nan])


def test_one_rounding_not_two():
    # Through bf16 first, 232.03683 would become 232, a tie, and then 224.
    np.testing.assert_array_equal(round_to(jnp.float32([232.03683, 1.062501]), "fp8_e4m3"), [240.0, 1.125])
    x = np.linspace(1, 2, 2**16, endpoint=False, dtype=np.float32)
    twice = round_to(round_to(x, "bf16"), "fp8_e4m3")
    assert np.mean(np.asarray(round_to(x, "fp8_e4m3")) != np.asarray(twice)) == pytest.approx(0.031, abs=0.001)


def test_subnormal_values_are_kept():
    x = np.float32([2.0**-9, 2.0**-10, 0.00097656256, 3 * 2.0**-10, 0.9 * 2.0**-6])
    np.testing.assert_array_equal(round_to(x, "fp8_e4m3"), np.float32([2.0**-9, 0, 2.0**-9, 2.0**-8, 0.013671875]))
    tiny = np.array([1, 0x8000, 0x8001, 0x18000], np.uint32).view(np.float32)  # float32's own subnormals
    np.testing.assert_array_equal(np.asarray(round_to(tiny, "bf16")).view(np.uint32), [0, 0, 0x10000, 0x20000])


def test_rounding_survives_between_operations_of_a_compiled_function():
    def remainder(x, y):
        return round_to(y - (round_to(x + y, "bf16") - x), "bf16")

    x, y = np.random.default_rng(0).normal(size=(2, 1000)).astype(np.float32)
    with jax.disable_jit():
        eager = np.asarray(remainder(x, y))
    np.testing.assert_array_equal(jax.jit(remainder)(x, y), eager)
    assert (eager != 0).mean() > 0.5


@pytest.mark.parametrize("fmt", oracle.NARROW, ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float8_e5m2, jnp.float8_e4m3, jnp.float8_e4m3fn, jnp.float8_e3m4])
def test_narrow_inputs_keep_their_dtype_and_get_values_of_both_formats(dtype, fmt):
    container = FORMATS[format_of(dtype)]
    codes = np.arange(2**container.storage_bits, dtype=np.uint32).astype(f"uint{container.storage_bits}")
    x = codes.view(container.dtype)
    result = round_to(x, fmt.name)
    assert result.dtype == dtype
    wide, got = x.astype(np.float32), np.asarray(result).astype(np.float32)
    if fmt.holds(container):
        want = wide
    else:
        want = oracle.nearest(wide, fmt)
        past = np.abs(want) > fmt.largest_common(container)
        beyond = np.inf if fmt.has_inf and container.has_inf else np.nan
        want = np.where(past, np.copysign(np.float32(beyond), want), want)
    oracle.assert_same_bits(got, want, wide)


def test_shape_and_scalars_are_kept():
    assert round_to(1.1, "bf16").shape == ()
    assert float(round_to(1.1, "bf16")) == 1.1015625
    assert round_to(np.ones((2, 0, 3), np.float32), "fp16").shape == (2, 0, 3)
