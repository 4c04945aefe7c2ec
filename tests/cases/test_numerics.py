"""Troubles that users of low-precision hardware reported about numbers, each with the right answer."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import trn_jax

TRN2, IDEAL = trn_jax.load_chip("trainium2"), trn_jax.load_chip("ideal")
ALL_BF16 = trn_jax.AutoCast("all", "bf16")
INF, NAN = np.inf, np.nan


def rounded(values, fmt, **options):
    return np.asarray(trn_jax.round_to(jnp.asarray(values, jnp.float32), fmt, **options))


def test_num_01_the_smallest_float32_as_a_mask_becomes_minus_infinity_in_bf16_and_then_nan():
    """BERT fine-tuned in bf16 gave NaN in its first step: https://github.com/aws-neuron/aws-neuron-sdk/issues/593."""
    lowest = np.finfo(np.float32).min
    assert rounded(lowest, "bf16") == -INF
    assert rounded(lowest, "bf16", overflow="saturate") == np.float32(-3.3895314e38)
    masked = lambda keep, lowest: (1 - keep) * lowest.astype(keep.dtype)
    keep = jnp.array([0.0, 1.0], jnp.bfloat16)
    np.testing.assert_array_equal(trn_jax.emulate(masked, TRN2)(keep, lowest).astype(np.float32), [-INF, NAN])
    np.testing.assert_array_equal(
        trn_jax.emulate(masked, TRN2, overflow="saturate")(keep, lowest).astype(np.float32), np.float32([-3.3895314e38, 0])
    )


def test_num_02_two_additive_masks_overflow_and_a_where_mask_does_not():
    """A causal and a padding mask, added in bf16: https://github.com/NVIDIA-NeMo/Automodel/issues/2658."""
    from trn_jax.models.attention import mask_scores

    lowest = jnp.finfo(jnp.bfloat16).min.astype(jnp.bfloat16)
    softmax = trn_jax.emulate(jax.nn.softmax, TRN2)
    assert trn_jax.emulate(jnp.add, TRN2)(lowest, lowest) == -jnp.inf
    assert jnp.isnan(softmax(jnp.full(3, -jnp.inf, jnp.bfloat16))).all()
    np.testing.assert_array_equal(softmax(jnp.full(3, lowest)).astype(jnp.float32), np.full(3, 0.333984375, np.float32))
    both = lambda scores: mask_scores(scores, jnp.zeros(3, bool) & jnp.zeros(3, bool))
    assert jnp.isfinite(trn_jax.emulate(lambda x: jax.nn.softmax(both(x)), TRN2)(jnp.ones(3, jnp.bfloat16))).all()


def test_num_03_and_31_each_fp8_format_overflows_in_its_own_way():
    """Whether 448 is a number depends on who says e4m3: https://github.com/jax-ml/ml_dtypes/issues/400."""
    np.testing.assert_array_equal(
        rounded([239, 240, 247.9, 248, 256, 448, 1000, INF, NAN, -248], "fp8_e4m3"), [240, 240, 240, INF, INF, INF, INF, INF, NAN, -INF]
    )
    np.testing.assert_array_equal(rounded([248, 1000, -INF], "fp8_e4m3", overflow="saturate"), [240, 240, -240])
    np.testing.assert_array_equal(rounded([448, 464, 465, 480], "fp8_e4m3fn"), [448, 448, NAN, NAN])
    np.testing.assert_array_equal(rounded([57344, 61439, 61440], "fp8_e5m2"), [57344, 57344, INF])
    np.testing.assert_array_equal(rounded([15.74, 15.75], "fp8_e3m4"), [15.5, INF])


@pytest.mark.parametrize("fmt", ["fp8_e4m3", "fp8_e5m2", "fp8_e3m4"])
def test_num_31_zero_keeps_its_sign_nan_stays_and_infinity_saturates_only_on_request(fmt):
    """Stacks disagreed about special values: https://github.com/onnx/onnx/issues/6220."""
    special = rounded([-0.0, INF, -INF, NAN], fmt)
    np.testing.assert_array_equal(special, [-0.0, INF, -INF, NAN])
    assert np.signbit(special[0])
    largest = float(ml_dtypes.finfo(fmt.replace("fp8", "float8")).max)
    np.testing.assert_array_equal(rounded([-0.0, INF, -INF, NAN], fmt, overflow="saturate"), [-0.0, largest, -largest, NAN])


def test_num_06_an_fp32_result_is_rounded_once_and_not_by_way_of_bf16():
    """Through bf16 the wrong neighbour is found for 3 % of values: https://github.com/triton-lang/triton/issues/2583."""
    assert rounded(232.03683, "fp8_e4m3") == 240
    assert rounded(rounded(232.03683, "bf16"), "fp8_e4m3") == 224
    assert rounded(1.062501, "fp8_e4m3") == 1.125
    sweep = np.float32(1) + np.arange(2**20, dtype=np.float32) / np.float32(2**20)
    assert (rounded(sweep, "fp8_e4m3") != rounded(rounded(sweep, "bf16"), "fp8_e4m3")).sum() == 32_768
    product = trn_jax.emulate(lambda a, b: jnp.dot(a, b, preferred_element_type=jnp.float32).astype(jnp.float8_e4m3), TRN2)
    assert product(jnp.array([232.0, 0.03683]), jnp.ones(2)) == 240


def test_num_07_doubles_are_refused_because_casting_them_first_is_a_rounding_of_its_own():
    """The usual oracle went through float32 silently: https://github.com/jax-ml/ml_dtypes/issues/401."""
    twice = np.float64(1 + 2**-8 + 2**-40).astype(np.float32).astype(ml_dtypes.bfloat16)
    assert twice == 1.0  # rounded once it is 1.0078125
    with jax.enable_x64(True), pytest.raises(trn_jax.FormatError, match="Cast it to float32 first, which is itself a rounding"):
        trn_jax.round_to(np.float64(1 + 2**-8 + 2**-40), "bf16")


def test_num_08_subnormal_values_are_kept():
    """Emulators flushed them or were a binade off: https://github.com/Tiiiger/QPyTorch/issues/24."""
    tiny = [2**-9, 2**-10, 0.00097656256, 3 * 2**-10, 0.9 * 2**-6]
    np.testing.assert_array_equal(rounded(tiny, "fp8_e4m3"), [0.001953125, 0, 0.001953125, 0.00390625, 0.013671875])
    for fmt, smallest in {"fp8_e4m3": 2**-9, "fp8_e5m2": 2**-16, "fp8_e3m4": 2**-6}.items():
        np.testing.assert_array_equal(rounded([smallest, 0.5 * smallest, 0.51 * smallest], fmt), [smallest, 0, smallest])


def test_num_09_reduce_precision_is_not_an_fp8_rounding():
    """It has the widths of e4m3 but no subnormal values: https://github.com/jax-ml/jax/issues/23007."""
    x = jnp.array([2**-9, 1.5 * 2**-10, 3 * 2**-10, 2**-6, 0.9 * 2**-6])
    np.testing.assert_array_equal(jax.lax.reduce_precision(x, 4, 3), [0, 0, 0, 0.015625, 0])
    np.testing.assert_array_equal(rounded(x, "fp8_e4m3"), [0.001953125, 0.001953125, 0.00390625, 0.015625, 0.013671875])


def test_num_10_no_rounding_is_lost_under_jit():
    """Compilers drop a round trip through bf16 as excess precision: https://github.com/openxla/xla/issues/41605."""
    x, y = (jnp.asarray(np.random.default_rng(i).standard_normal(1000), jnp.float32) for i in range(2))
    there_and_back = lambda x, y: y.astype(jnp.bfloat16) - ((x.astype(jnp.bfloat16) + y.astype(jnp.bfloat16)) - x.astype(jnp.bfloat16))
    for fn in (there_and_back, lambda x, y: trn_jax.round_to(x, "bf16") + y):
        emulated = trn_jax.emulate(fn, TRN2)
        np.testing.assert_array_equal(jax.jit(emulated)(x, y), emulated(x, y))
    assert (jax.jit(trn_jax.emulate(there_and_back, TRN2))(x, y) != 0).mean() > 0.2


@pytest.mark.parametrize(("fmt", "nans"), [("fp8_e4m3", 14), ("fp8_e4m3fn", 2), ("fp8_e5m2", 6), ("fp8_e3m4", 30)])
def test_num_12_every_code_comes_back_as_itself(fmt, nans):
    """An encoder and decoder that disagreed on half of all codes: https://github.com/tenstorrent/tt-metal/issues/51971."""
    values = np.arange(256, dtype=np.uint8).view(fmt.replace("fp8", "float8")).astype(np.float32)
    assert np.isnan(values).sum() == nans
    np.testing.assert_array_equal(rounded(values, fmt), values)


def test_num_14_stochastic_rounding_counts_halves_where_nearest_stands_still():
    """Neuron's demonstration: fp16 1024 plus 0.5, 2048 times (Neuron documentation, rounding modes)."""

    def count(seed, rounding):
        def step(total, i):
            add = trn_jax.emulate(lambda t: t + jnp.float16(0.5), TRN2, rounding=rounding, seed=seed * jnp.uint32(4096) + i)
            return add(total), None

        return jax.lax.scan(step, jnp.float16(1024), jnp.arange(2048, dtype=jnp.uint32))[0]

    assert count(jnp.uint32(0), "nearest") == 1024
    runs = jax.jit(jax.vmap(lambda seed: count(seed, "stochastic")))(jnp.arange(400, dtype=jnp.uint32)).astype(np.float32)
    assert abs(runs.mean() - 2048) < 5
    assert 18 < runs.std() < 28  # sqrt(2048 / 4) = 22.6


def test_num_16_random_bits_differ_by_seed_step_and_array_and_come_back_for_equal_ones():
    """Two seeds gave one stream on a device: https://github.com/aws-neuron/aws-neuron-sdk/issues/724."""
    x = jnp.full(4096, 1 + 2**-9)
    draw = lambda seed: trn_jax.round_to(x, "bf16", rounding="stochastic", seed=seed)
    np.testing.assert_array_equal(draw(7), draw(7))
    for one, other in ((2131132895, 2131132885), (1727029697, 1727029707), (0, 1)):
        assert 0.33 < (draw(one) != draw(other)).mean() < 0.42  # of independent draws 2 x 1/4 x 3/4 differ
    two_arrays = trn_jax.emulate(lambda x: (x * 1, x * 1), TRN2, autocast=ALL_BF16, rounding="stochastic", seed=7)
    first, second = two_arrays(x)
    assert 0.33 < (first != second).mean() < 0.42


def test_num_17_sums_of_ones_stall_at_256_in_bf16_but_not_in_psum():
    """A running sum in bf16: https://github.com/jax-ml/ml_dtypes/issues/63."""
    ones = jnp.ones(70_000, jnp.bfloat16)
    assert trn_jax.emulate(jnp.dot, TRN2)(ones, ones) == 70_144
    running = lambda x: jax.lax.scan(lambda total, one: (total + one, None), jnp.bfloat16(0), x)[0]
    assert trn_jax.emulate(running, TRN2)(ones[:1000]) == 256
    assert trn_jax.emulate(lambda x: x.astype(jnp.float32).sum(), TRN2)(ones[:1000]) == 1000


def test_num_18_a_mean_is_summed_in_fp32_whatever_it_averages():
    """Average losses were wrong because they were counted in bf16: https://github.com/pytorch/xla/issues/2425."""
    assert rounded(4096 + 1, "bf16") == 4096
    assert rounded(1828, "bf16") == 1824
    losses = jnp.full(5000, 1.0, jnp.bfloat16)
    assert trn_jax.emulate(jnp.mean, TRN2)(losses) == 1
    assert trn_jax.emulate(lambda hits: hits.mean(dtype=jnp.float32), TRN2)(jnp.arange(4000) < 1828) == np.float32(1828 / 4000)


@pytest.mark.parametrize(("autocast", "product"), [(None, 257), ("bf16", 256), ("tf32", 257), ("fp16", 257)])
def test_num_19_what_is_cast_is_chosen_and_listed(autocast, product):
    """An fp32 model gave bf16 results and nobody could see where: https://github.com/aws-neuron/aws-neuron-sdk/issues/203."""
    cast = autocast and trn_jax.AutoCast("matmult", autocast)
    a, b = jnp.array([[1 + 2**-8]]), jnp.array([[256.0]])
    emulated = trn_jax.emulate(jnp.matmul, TRN2, autocast=cast)
    assert emulated(a, b) == product
    assert str(autocast or "none") in repr(emulated.numerics.autocast)
    report = str(trn_jax.cast_report(jnp.matmul, TRN2, autocast=cast)(a, b))
    assert (autocast in report) if autocast else not report.count("bf16")


def test_num_20_a_transpose_moves_a_nan_and_a_product_with_the_identity_spreads_it():
    """Transposes made of products corrupt infinities and lose bits: https://github.com/aws-neuron/aws-neuron-sdk/issues/1043."""
    x = jnp.ones((128, 128))
    product = trn_jax.emulate(lambda x: x.T @ jnp.eye(128), TRN2)
    moved = trn_jax.emulate(lambda x: x.T * 1, TRN2)
    assert (jnp.isnan(product(x.at[3, 5].set(jnp.nan))).sum(), jnp.isnan(moved(x.at[3, 5].set(jnp.nan))).sum()) == (128, 1)
    spread = product(x.at[3, 5].set(jnp.inf))
    assert (jnp.isnan(spread).sum(), jnp.isinf(spread).sum()) == (127, 1)
    assert jnp.isinf(moved(x.at[3, 5].set(jnp.inf))).sum() == 1
    fine = x.at[0, 1].set(1 + 2**-20)
    np.testing.assert_array_equal(product(fine), fine.T)


def test_num_29_the_dtype_asked_for_is_the_dtype_written_and_psum_stays_fp32():
    """A requested accumulation dtype was not honoured: https://github.com/jax-ml/jax/issues/26365. Decision 0010."""
    a = jnp.full(300, 1.0, jnp.bfloat16)
    wide = trn_jax.emulate(lambda a: jnp.dot(a, a, preferred_element_type=jnp.float32), TRN2)(a + 2**-7)
    narrow = trn_jax.emulate(jnp.dot, TRN2)(a + 2**-7, a + 2**-7)
    assert (wide.dtype, narrow.dtype) == (jnp.float32, jnp.bfloat16)
    assert wide == np.float32(300 * (1 + 2**-7) ** 2)
    assert narrow == wide.astype(jnp.bfloat16)  # rounded once, when it leaves PSUM
    mean = trn_jax.emulate(lambda x: jnp.mean(x, dtype=jnp.bfloat16), TRN2)(jnp.arange(300.0))
    assert mean.dtype == jnp.bfloat16
    assert mean == 149  # the sum, 44850, is itself written in bf16 as 44800


def test_num_30_a_running_sum_carries_fp32():
    """A cumulative sum in bf16 stalled: https://github.com/ml-explore/mlx/issues/3907."""
    assert trn_jax.emulate(jnp.cumsum, TRN2)(jnp.ones(5000, jnp.bfloat16))[-1] == 4992
    np.testing.assert_array_equal(trn_jax.emulate(jnp.cumsum, TRN2)(jnp.array([0, 1])), [0, 1])
