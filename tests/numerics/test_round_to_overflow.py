"""What becomes of values past the largest finite one: a policy that the caller chooses, never a silent choice."""

import jax.numpy as jnp
import numpy as np
import pytest

from trn_jax.errors import FormatError
from trn_jax.numerics import FORMATS, round_to

inf, nan = np.inf, np.nan


@pytest.mark.parametrize(
    ("name", "overflow", "x", "want"),
    [
        ("fp8_e4m3", None, [239, 240, 247.9, 248, 256, 448, 1000, inf, nan, -248], [240, 240, 240, inf, inf, inf, inf, inf, nan, -inf]),
        ("fp8_e4m3", "saturate", [247.9, 248, 1000, inf, -inf, nan], [240, 240, 240, 240, -240, nan]),
        ("fp8_e4m3", "nan", [240, 247.9, 248, -1000, inf, nan], [240, 240, nan, nan, nan, nan]),
        ("fp8_e4m3fn", None, [448, 464, 465, 480, inf], [448, 448, nan, nan, nan]),
        ("fp8_e4m3fn", "saturate", [465, -1e30, inf], [448, -448, 448]),
        ("fp8_e5m2", None, [57344, 61439, 61440], [57344, 57344, inf]),
        ("fp8_e3m4", None, [15.74, 15.75], [15.5, inf]),
        ("fp16", None, [65519.996, 65520], [65504, inf]),
        ("fp16", "saturate", [65520, -inf], [65504, -65504]),
        ("bf16", None, [-3.4028235e38], [-inf]),
        ("bf16", "inf", [-3.4028235e38], [-inf]),
        ("bf16", "saturate", [-3.4028235e38, inf], [-3.3895314e38, 3.3895314e38]),
        ("bf16", "nan", [-3.4028235e38, 3.3895314e38], [nan, 3.3895314e38]),
        ("tf32", "saturate", [3.4028235e38], [3.4011621e38]),
    ],
)
def test_overflow_policy(name, overflow, x, want):
    np.testing.assert_array_equal(round_to(jnp.float32(x), name, overflow=overflow), np.float32(want))


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "fp32"])
@pytest.mark.parametrize("overflow", [None, "saturate", "nan"])
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_zero_signs_and_nan_are_kept_under_every_policy(name, overflow, rounding):
    quiet_and_not = np.array([0x7FC00000, 0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF, 0xFF800001], np.uint32).view(np.float32)
    x = np.concatenate([np.float32([0.0, -0.0]), quiet_and_not])
    result = np.asarray(round_to(x, name, overflow=overflow, rounding=rounding, seed=1))
    np.testing.assert_array_equal(result[:2].view(np.uint32), [0, 0x80000000])
    assert np.isnan(result[2:]).all()


def test_first_step_nan_of_a_down_cast_mask_is_reproduced_and_avoidable():
    lowest = jnp.float32(np.finfo(np.float32).min)
    assert np.isnan((1 - 1) * round_to(lowest, "bf16"))
    assert (1 - 1) * round_to(lowest, "bf16", overflow="saturate") == 0


def test_narrow_input_saturates_at_the_largest_common_value():
    x = jnp.bfloat16([65280, 65536, jnp.inf, -jnp.inf])
    np.testing.assert_array_equal(round_to(x, "fp16").astype(jnp.float32), [65280, inf, inf, -inf])
    np.testing.assert_array_equal(round_to(x, "fp16", overflow="saturate").astype(jnp.float32), [65280, 65280, 65280, -65280])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"fmt": "bf17"}, r"'bf17'.*Did you mean 'bf16'"),
        (
            {"fmt": "bf16", "rounding": "stochastik"},
            r"Unknown rounding 'stochastik'\. Did you mean 'stochastic'\? Known: nearest, stochastic",
        ),
        ({"fmt": "bf16", "overflow": "saturated"}, r"Unknown overflow 'saturated'\. Did you mean 'saturate'"),
        ({"fmt": "fp8_e4m3fn", "overflow": "inf"}, r"fp8_e4m3fn has no infinity.*overflow='nan' or 'saturate'"),
    ],
)
def test_wrong_options_are_named(arguments, message):
    with pytest.raises(FormatError, match=message):
        round_to(jnp.ones(2), **arguments)


def test_only_floating_point_up_to_float32_is_rounded():
    with pytest.raises(FormatError, match=r"cannot round int32 values\. Accepted dtypes: float32, bfloat16, float16"):
        round_to(jnp.arange(3), "bf16")
    with pytest.raises(FormatError, match=r"cannot round complex64"):
        round_to(jnp.ones(2, jnp.complex64), "bf16")
