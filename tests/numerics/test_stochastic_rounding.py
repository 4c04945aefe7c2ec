"""Stochastic rounding picks a neighbour with the right probability, changes with the seed, and never produces surprises."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rounding_oracle as oracle

from trn_jax.errors import FormatError
from trn_jax.numerics import FORMATS, bits, mix, round_to, rounder
from trn_jax.numerics.stochastic import round_magnitude

each_format = pytest.mark.parametrize("fmt", oracle.NARROW, ids=lambda fmt: fmt.name)


def neighbours(x, fmt):
    """The values of the format on both sides of positive numbers, one past the largest included."""
    values = oracle.finite_values(fmt)
    upper = np.searchsorted(values, x)
    return np.where(values[upper] == x, x, values[np.maximum(upper - 1, 0)]), values[upper]


@each_format
def test_probability_is_the_distance_to_the_lower_neighbour(fmt):
    draws = 2**16
    normal = 8 * fmt.min_normal
    points = np.float32([1.07 * normal, 1.4142135 * normal, 0.3 * fmt.min_normal, 0.6 * fmt.min_subnormal, 1.3 * fmt.min_subnormal])
    points = np.concatenate([points, np.float32([fmt.min_subnormal / 100])])
    lower, upper = neighbours(points.astype(np.float64), fmt)
    want = (points - lower) / (upper - lower)
    for sign in (1, -1):
        x = sign * np.broadcast_to(points[:, None], (points.size, draws))
        got = np.abs(np.asarray(round_to(x, fmt.name, rounding="stochastic", seed=9))).astype(np.float64)
        assert ((got == lower[:, None]) | (got == upper[:, None])).all()
        assert (np.signbit(x) == np.signbit(np.asarray(round_to(x, fmt.name, rounding="stochastic", seed=9)))).all()
        deviations = ((got == upper[:, None]).mean(1) - want) / np.sqrt(want * (1 - want) / draws)
        assert np.abs(deviations).max() < 4


@each_format
def test_values_of_the_format_never_change(fmt):
    x = oracle.finite_values(fmt)[:-1].astype(np.float32)
    x = np.concatenate([x, -x, np.float32([np.nan])])
    for seed in range(3):
        oracle.assert_same_bits(round_to(x, fmt.name, rounding="stochastic", seed=seed), x, x)


@each_format
def test_extreme_random_words_give_the_lower_and_the_upper_neighbour(fmt):
    magnitude = np.abs(oracle.patterns(fmt, 2**12))
    magnitude = magnitude[(magnitude < fmt.max_finite) & ((magnitude > fmt.min_subnormal * 2.0**-24) | (magnitude == 0))]
    lower, upper = neighbours(magnitude.astype(np.float64), fmt)
    for word, want in ((0, lower), (2**32 - 1, upper)):
        random = jnp.full(magnitude.shape, word, jnp.uint32)
        got = bits.to_float(round_magnitude(bits.to_bits(jnp.asarray(magnitude)), fmt, random))
        oracle.assert_same_bits(got, want.astype(np.float32), magnitude)


@each_format
@pytest.mark.parametrize("overflow", [None, "saturate"])
def test_results_are_values_of_the_format_for_any_bit_pattern(fmt, overflow):
    x = oracle.patterns(fmt, 2**16)
    x = np.concatenate([x, -x])
    got = np.asarray(round_to(x, fmt.name, rounding="stochastic", overflow=overflow, seed=4))
    oracle.assert_same_bits(oracle.nearest(got, fmt), got, x)
    assert (np.isnan(x) <= np.isnan(got)).all()
    inside = np.abs(x) <= fmt.max_finite
    assert np.isfinite(got[inside]).all()
    assert (np.signbit(got) == np.signbit(x))[~np.isnan(x)].all()
    if overflow == "saturate":
        assert (np.abs(got[~np.isnan(x)]) <= fmt.max_finite).all()


@pytest.mark.parametrize(("name", "beyond"), [("fp8_e4m3", np.inf), ("fp8_e4m3fn", np.nan), ("bf16", np.inf), ("fp16", np.inf)])
def test_between_the_largest_value_and_the_next_step_overflow_has_the_probability_of_the_distance(name, beyond):
    largest = FORMATS[name].max_finite
    step = largest - oracle.finite_values(FORMATS[name])[-3]
    x = np.full(2**14, largest + step / 4, np.float32)
    got = np.asarray(round_to(x, name, rounding="stochastic", seed=5))
    np.testing.assert_array_equal(np.unique(got), np.float32([largest, beyond]))
    assert np.mean(got != largest) == pytest.approx(0.25, abs=0.015)
    assert (np.asarray(round_to(x, name, rounding="stochastic", seed=5, overflow="saturate")) == largest).all()
    if largest + step < np.finfo(np.float32).max:
        past = round_to(np.full(64, largest + step, np.float32), name, rounding="stochastic", seed=5)
        np.testing.assert_array_equal(past, np.full(64, beyond, np.float32))


def test_small_updates_reach_the_right_mean_only_if_the_seed_changes():
    def run(seed_of_step):
        def step(weights, index):
            return rounder("bf16", "stochastic")(weights - 1e-3, seed_of_step(index)), None

        return jax.lax.scan(step, jnp.ones(20_000, jnp.float32), jnp.arange(400, dtype=jnp.uint32))[0]

    changing = run(lambda step: mix(3, step))
    assert float(changing.mean()) == pytest.approx(0.6, abs=0.002)
    # 0.256 of the weights move at the first step, and the same ones at every later step.
    constant = run(lambda step: mix(3, 0))
    assert float(constant.mean()) == pytest.approx(0.77, abs=0.01)
    assert float((constant == 1).mean()) == pytest.approx(0.744, abs=0.01)
    np.testing.assert_array_equal(round_to(jnp.ones(3) - 1e-3, "bf16"), np.ones(3, np.float32))  # nearest never moves


def test_fp16_counts_halves_on_average_where_nearest_stands_still():
    def count(rounding):
        def step(total, index):
            return rounder("fp16", rounding)(total + 0.5, mix(8, index)), None

        return jax.lax.scan(step, jnp.full(400, 1024.0), jnp.arange(2048))[0]

    assert (count("nearest") == 1024).all()
    stochastic = np.asarray(count("stochastic"))
    assert abs(stochastic.mean() - 2048) < 5
    assert stochastic.std() == pytest.approx(np.sqrt(2048 / 4), rel=0.15)


def test_bits_follow_from_the_seed_alone():
    x = jnp.linspace(1, 2, 4096)

    def draw(**source):
        return np.asarray(round_to(x, "bf16", rounding="stochastic", **source))

    np.testing.assert_array_equal(draw(seed=7), draw(seed=7))
    np.testing.assert_array_equal(draw(seed=7), jax.jit(lambda s: round_to(x, "bf16", rounding="stochastic", seed=s))(jnp.uint32(7)))
    np.testing.assert_array_equal(draw(seed=7), draw(seed=jnp.int32(7)))
    np.testing.assert_array_equal(draw(key=jax.random.key(7)), draw(key=jax.random.PRNGKey(7)))
    streams = [
        draw(seed=7),
        draw(seed=8),
        draw(key=jax.random.key(7)),
        draw(key=jax.random.key(8)),
        draw(key=jax.random.key(7, impl="rbg")),
    ]
    for i, first in enumerate(streams):
        for second in streams[:i]:
            assert 0.2 < np.mean(first != second) < 0.45  # two independent draws differ at 2 p (1 - p), a third on average
    with jax.enable_x64(True):
        np.testing.assert_array_equal(draw(seed=7), streams[0])


def test_operation_by_operation_equals_compiled():
    for fmt in oracle.NARROW:
        x = oracle.patterns(fmt, 2**10)[-(2**10) :]
        compiled = round_to(x, fmt.name, rounding="stochastic", seed=1)
        with jax.disable_jit():
            oracle.assert_same_bits(compiled, np.asarray(round_to(x, fmt.name, rounding="stochastic", seed=1)), x)


def test_nearest_ignores_a_seed():
    x = jnp.linspace(1, 2, 100)
    np.testing.assert_array_equal(round_to(x, "bf16", seed=3), round_to(x, "bf16"))
    np.testing.assert_array_equal(rounder("bf16")(x, jnp.uint32(3)), round_to(x, "bf16"))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({}, r"exactly one of key= .* and seed= .*; none given"),
        ({"seed": 1, "key": 2}, r"both given"),
        ({"seed": 1.5}, r"seed must be an int or a uint32 scalar, traced or not; got 1\.5"),
        ({"seed": True}, r"got True"),
        ({"seed": -1}, r"seed must be in 0 \.\. 2\^32 - 1; got -1"),
        ({"seed": 2**32}, r"got 4294967296\. Reduce it, or fold its parts with trn_jax\.numerics\.mix"),
        ({"seed": np.arange(2)}, r"got an array int(32|64)\[2\]"),
        ({"seed": "step"}, r"got 'step'"),
        ({"key": 3}, r"key must be one JAX PRNG key, typed or raw; got 3\. Use jax\.random\.key\(seed\)"),
    ],
)
def test_source_of_random_bits_is_checked(source, message):
    with pytest.raises(FormatError, match=message):
        round_to(jnp.ones(2), "bf16", rounding="stochastic", **source)


def test_keys_and_seeds_are_not_confused():
    with pytest.raises(FormatError, match=r"got an array key<fry>\[\]\. Of a PRNG key, give jax\.random\.bits\(key\)"):
        round_to(jnp.ones(2), "bf16", rounding="stochastic", seed=jax.random.key(0))
    with pytest.raises(FormatError, match=r"one JAX PRNG key, typed or raw; got an array key<fry>\[2\]"):
        round_to(jnp.ones(2), "bf16", rounding="stochastic", key=jax.random.split(jax.random.key(0)))
