"""The hashed bits behave like independent fair coins over elements, seeds and neighbouring pairs of both."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trn_jax.numerics import hash as hashing
from trn_jax.numerics import hash_bits, mix
from trn_jax.numerics.hash import high_bits

SEEDS, COUNT = 32, 2**14


@pytest.fixture(scope="module")
def words():
    """Bits of 32 neighbouring seeds."""
    return np.asarray(jax.vmap(lambda seed: hash_bits(seed, (COUNT,)))(jnp.arange(SEEDS, dtype=jnp.uint32)))


def test_bits_are_a_function_of_seed_and_row_major_index():
    flat = np.asarray(hash_bits(5, (24,)))
    np.testing.assert_array_equal(flat, np.asarray(hash_bits(5, (2, 3, 4))).ravel())
    np.testing.assert_array_equal(flat, jax.jit(lambda seed: hash_bits(seed, (24,)))(jnp.uint32(5)))
    assert hash_bits(5, ()) == flat[0]
    assert flat.dtype == np.uint32
    np.testing.assert_array_equal(flat >> 16, np.asarray(high_bits(5, (24,))) >> 16)


def test_no_word_repeats_within_a_stream(words):
    assert all(len(np.unique(stream)) == COUNT for stream in words)


def test_every_bit_is_fair_in_every_stream(words):
    ones = np.stack([((words >> bit) & 1).mean(1) for bit in range(32)])
    deviations = (ones - 0.5) * 2 * np.sqrt(COUNT)
    assert np.abs(deviations).max() < 5  # of 1024 standard normal draws
    assert 0.9 < deviations.std() < 1.1


def test_neighbouring_seeds_and_indices_are_uncorrelated(words):
    uniform = (words / 2**32 - 0.5) * np.sqrt(12)
    for seed_step, index_step in itertools.product((0, 1, 2, 16), (-4096, -64, -2, -1, 0, 1, 2, 64, 4096)):
        if seed_step == 0 and index_step <= 0:
            continue
        first = uniform[: SEEDS - seed_step, max(0, -index_step) : COUNT - max(0, index_step)]
        second = uniform[seed_step:, max(0, index_step) : COUNT - max(0, -index_step)]
        assert abs((first * second).mean()) * np.sqrt(first.size) < 4.5, (seed_step, index_step)


def test_streams_are_not_shifted_copies_of_each_other(words):
    # With one hash of seed + index or seed ^ index, neighbouring seeds would share nearly all their words.
    repeats = words.size - np.unique(words).size
    assert repeats < 80  # (SEEDS COUNT)^2 / 2^33 = 32 expected by chance


def unscrambled(word):
    """The input of the hash's scrambling step, by undoing its operations one by one."""
    word ^= (word >> 15) ^ (word >> 30)
    word = word * pow(hashing._B, -1, 2**32) % 2**32
    word ^= (word >> 15) ^ (word >> 30)
    word = word * pow(hashing._A, -1, 2**32) % 2**32
    return word ^ (word >> 16)


def test_no_pair_of_seeds_shares_a_shifted_stream():
    # The worst pair: its first keys differ by one index, so without a second key the streams would overlap entirely.
    seed, golden = 1234, hashing._GOLDEN
    key = int(hashing._scramble(jnp.uint32((seed + golden) % 2**32)))
    other = (unscrambled((key + hashing._A) % 2**32) - golden) % 2**32
    assert int(hashing._scramble(jnp.uint32((other + golden) % 2**32))) == (key + hashing._A) % 2**32
    first, second = (np.asarray(high_bits(s, (COUNT,))) for s in (seed, other))
    assert np.intersect1d(first, second).size <= 3
    assert abs(np.corrcoef(first[1:], second[:-1])[0, 1]) * np.sqrt(COUNT) < 4.5


def test_one_element_over_many_seeds_is_fair_and_uncorrelated():
    over_seeds = np.asarray(jax.vmap(lambda seed: hash_bits(seed, (16,)))(jnp.arange(COUNT, dtype=jnp.uint32)))
    uniform = (over_seeds / 2**32 - 0.5) * np.sqrt(12)
    assert np.abs(uniform.mean(0)).max() * np.sqrt(COUNT) < 4.5
    for step in (1, 2, 16):
        assert np.abs((uniform[step:] * uniform[:-step]).mean(0)).max() * np.sqrt(COUNT) < 4.5
    correlation = uniform.T @ uniform / COUNT - np.diag((uniform**2).mean(0))
    assert np.abs(correlation).max() * np.sqrt(COUNT) < 4.5


def test_upper_bits_of_neighbours_fill_the_plane_evenly(words):
    for first, second in ((words[:, :-1], words[:, 1:]), (words[:-1], words[1:]), (words[:-1, 1:], words[1:, :-1])):
        cells = np.bincount(((first >> 27) * 32 + (second >> 27)).ravel(), minlength=1024)
        expected = cells.sum() / 1024
        assert abs(((cells - expected) ** 2 / expected).sum() - 1023) / np.sqrt(2 * 1023) < 4.5


def test_mix_folds_words_in_order():
    assert mix(1, 2, 3) == mix(mix(1, 2), 3)
    assert mix(7) == 7
    assert len({int(mix(*words)) for words in itertools.product(range(-2, 6), repeat=3)}) == 8**3
    # Two pairs with equal sums, which a generator that adds its two seeds cannot tell apart.
    assert mix(2131132895, 1727029697) != mix(2131132885, 1727029707)


def test_mix_takes_python_and_traced_integers_alike():
    assert mix(3, 2**32 + 5) == mix(3, 5)
    assert mix(3, -1) == mix(3, 2**32 - 1) == mix(jnp.uint32(3), jnp.int32(-1))
    assert jax.jit(mix)(jnp.uint32(3), jnp.int32(4)) == mix(3, 4)
    many = mix(3, jnp.arange(5))
    assert many.shape == (5,)
    assert many[4] == mix(3, 4)
    assert many.dtype == jnp.uint32


def test_mix_is_a_bijection_in_each_word_and_spreads_single_bits():
    words = np.asarray(mix(11, np.arange(2**16, dtype=np.uint32)))
    assert len(np.unique(words)) == 2**16
    assert len(np.unique(np.asarray(mix(np.arange(2**16, dtype=np.uint32), 11)))) == 2**16
    for bit in range(16):
        flipped = words ^ words[np.arange(2**16) ^ (1 << bit)]
        changed = np.array([((flipped >> i) & 1).mean() for i in range(32)])
        assert np.abs(changed - 0.5).max() < 0.04
