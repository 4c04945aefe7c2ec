"""Bits of different places of a program, of loop iterations and of elements are independent fair coins."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trn_jax.numerics import start_stream
from trn_jax.numerics.stream import Stream, draw, random_bits

COUNT = 2**14
PATHS = [*itertools.product(range(8), range(2), range(2)), (0,), (0, 0), ()]


def bits(stream, shape=(COUNT,)):
    return random_bits(shape, *draw(stream))


@pytest.fixture(scope="module")
def root():
    return start_stream(jnp.uint32(3), COUNT)


@pytest.fixture(scope="module")
def uniform(root):
    """Bits of many places as numbers of mean 0 and variance 1."""
    words = np.stack([np.asarray(bits(root.split(*path))) for path in PATHS])
    return (words / 2**32 - 0.5) * np.sqrt(12)


def test_every_place_has_fair_bits_independent_of_every_other_place(uniform):
    assert np.abs(uniform.mean(1)).max() * np.sqrt(COUNT) < 4.5
    correlation = uniform @ uniform.T / COUNT - np.diag((uniform**2).mean(1))
    assert np.abs(correlation).max() * np.sqrt(COUNT) < 4.5


def test_neighbouring_elements_and_equal_elements_of_two_places_fill_the_plane_evenly(root):
    words = np.stack([np.asarray(bits(root.split(*path))) for path in PATHS])
    for first, second in ((words[:, :-1], words[:, 1:]), (words[:-1], words[1:]), (words[:-1, 1:], words[1:, :-1])):
        cells = np.bincount(((first >> 27) * 32 + (second >> 27)).ravel(), minlength=1024)
        expected = cells.sum() / 1024
        assert abs(((cells - expected) ** 2 / expected).sum() - 1023) / np.sqrt(2 * 1023) < 4.5


def test_the_discarded_half_of_a_word_is_uniform(root):
    counts = np.bincount(np.asarray(bits(root.split(4, 2))) >> 22, minlength=1024)
    assert abs(((counts - COUNT / 1024) ** 2 / (COUNT / 1024)).sum() - 1023) / np.sqrt(2 * 1023) < 4.5


def test_bits_depend_on_seed_place_iteration_and_element_only(root):
    again = jax.jit(lambda seed: bits(start_stream(seed, COUNT).split(1, 2)))(jnp.uint32(3))
    np.testing.assert_array_equal(again, bits(root.split(1).split(2)))
    np.testing.assert_array_equal(bits(root, (2, 3)), np.asarray(bits(root))[:6].reshape(2, 3))
    assert (bits(root.split(1, 2)) != bits(start_stream(jnp.uint32(4), COUNT).split(1, 2))).any()
    assert (bits(root.split(1).fold_in(5)) != bits(root.split(1).fold_in(6))).any()
    np.testing.assert_array_equal(bits(root.split(1).fold_in(5)), jax.jit(lambda s, i: bits(s.split(1).fold_in(i)))(root, jnp.uint32(5)))


def test_a_place_deep_in_calls_has_as_good_bits_as_one_at_the_top(root):
    stream = root
    for depth in range(40):
        stream = stream.split(depth).resolved()
        assert stream.path == ()
    assert len(np.unique(np.asarray(stream.state) & 1)) + len(np.unique(np.asarray(stream.state))) > 4
    keys = [int(stream.split(place).key()) for place in range(64)]
    ones = np.array([[(key >> bit) & 1 for bit in range(1, 32)] for key in keys]).mean(0)
    assert np.abs(ones - 0.5).max() * 2 * np.sqrt(64) < 4.5
    assert len(set(keys)) == 64
    assert all(key % 2 for key in keys)


def test_arrays_longer_than_the_shared_words_read_them_through_other_multipliers():
    stream = start_stream(jnp.uint32(1), 1024)
    rows = np.asarray(bits(stream, (16, 1024)))
    uniform = (rows / 2**32 - 0.5) * np.sqrt(12)
    correlation = uniform @ uniform.T / 1024 - np.diag((uniform**2).mean(1))
    assert np.abs(correlation).max() * np.sqrt(1024) < 4.5
    assert bits(stream, (3, 700)).shape == (3, 700)


def test_without_shared_words_bits_are_hashed_where_they_are_used():
    stream = start_stream(jnp.uint32(1))
    assert stream.words is None
    first, second = np.asarray(bits(stream.split(0))), np.asarray(bits(stream.split(1)))
    assert abs(np.corrcoef(first, second)[0, 1]) * np.sqrt(COUNT) < 4.5


def test_a_stream_goes_through_transformations(root):
    mapped = jax.vmap(lambda seed: bits(start_stream(seed, 8), (8,)))(jnp.arange(3, dtype=jnp.uint32))
    np.testing.assert_array_equal(mapped[1], bits(start_stream(jnp.uint32(1), 8), (8,)))
    leaves, structure = jax.tree.flatten(root.split(7))
    assert isinstance(jax.tree.unflatten(structure, leaves), Stream)
    assert jax.tree.unflatten(structure, leaves).path == (7,)
