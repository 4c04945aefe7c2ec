"""Reduce-scatter and all-gather on their own: rows, roundings, errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from trn_jax.errors import NetworkError
from trn_jax.network import ring_all_gather, ring_all_reduce, ring_reduce_scatter


def normal(*shape):
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


def over_ranks(f, x_R):
    return np.asarray(jax.jit(jax.vmap(f, axis_name="r"))(x_R))


@pytest.mark.parametrize("two_way", [False, True], ids=["one_way", "two_way"])
def test_reduce_scatter_leaves_every_rank_its_rows_of_the_sum(two_way):
    x = np.random.default_rng(0).integers(-8, 9, (3, 6, 5)).astype(np.float32)
    got = over_ranks(lambda v: ring_reduce_scatter(v, "r", two_way=two_way), x)
    want = over_ranks(lambda v: lax.psum_scatter(v, "r", tiled=True), x)
    assert (got == want).all()


@pytest.mark.parametrize("two_way", [False, True], ids=["one_way", "two_way"])
def test_all_gather_stacks_the_rounded_pieces_of_all_ranks(two_way):
    x = normal(3, 2, 5)
    got = over_ranks(lambda v: ring_all_gather(v, "r", "bf16", two_way), x)
    assert (got == x.astype(jnp.bfloat16).astype(np.float32).reshape(1, 6, 5)).all()


def test_halves_agree_with_shard_map_and_keep_its_types(on_ranks):
    x = normal(4, 8)
    got = on_ranks(lambda v: ring_all_gather(ring_reduce_scatter(v, "r", "bf16"), "r", "bf16"), x)
    assert (got == on_ranks(lambda v: ring_all_reduce(v, "r", "bf16"), x)).all()


def test_values_that_are_equal_on_all_ranks_are_accepted(on_ranks):
    got = on_ranks(lambda v: ring_all_gather(jnp.arange(2.0), "r") + ring_reduce_scatter(jnp.ones(18), "r"), np.zeros((3, 0), np.float32))
    assert got.tolist() == [[3, 4, 3, 4, 3, 4]] * 3


def test_scattered_sums_are_not_rounded_for_the_wire():
    x = np.full((2, 2), 1 + 2.0**-7, np.float32)
    x[1] = 2.0**-9
    assert (over_ranks(lambda v: ring_reduce_scatter(v, "r", "bf16"), x) == 1 + 2.0**-7 + 2.0**-9).all()


def test_sums_outside_the_range_of_the_wire_do_not_travel():
    x = np.full((3, 3), 40000, np.float32)  # fp16 holds 40000 but not 80000, where bf16 has steps of 512
    assert (over_ranks(lambda v: ring_reduce_scatter(v, "r", "fp16", "bf16"), x) == 119808).all()


def test_parts_are_added_in_the_reduce_format():
    x = np.ones((8, 8), np.float32)
    x[0] = 256
    got = over_ranks(lambda v: ring_reduce_scatter(v, "r", "fp8_e5m2", "bf16"), x)
    assert got.reshape(-1).tolist() == [264, 264, 260, 260, 260, 260, 256, 256]


def test_stochastic_rounding_differs_between_ranks_and_elements():
    x = np.full((4, 4 * 32), 1 + 2.0**-8, np.float32)  # half way: each part sent becomes 1 or 1 + 2^-7
    sums = over_ranks(lambda v: ring_reduce_scatter(v, "r", "bf16", rounding="stochastic", seed=5), x)
    ups = (sums - 4 - 2.0**-8) * 2**7  # of the three parts received
    assert set(ups.reshape(-1).tolist()) == {0, 1, 2, 3}
    assert len({row.tobytes() for row in ups}) == 4


def test_integers_pass_unrounded():
    x = np.full((2, 4), 2**24 + 1, np.int32)
    assert (over_ranks(lambda v: ring_reduce_scatter(v, "r", "bf16"), x) == 2 * (2**24 + 1)).all()
    assert (over_ranks(lambda v: ring_all_gather(v, "r", "bf16"), x) == 2**24 + 1).all()


def test_rows_that_do_not_divide_are_refused():
    with pytest.raises(NetworkError, match=r"over 3 ranks.*shape \(4,\)"):
        over_ranks(lambda v: ring_reduce_scatter(v, "r"), np.ones((3, 4), np.float32))


def test_gathering_scalars_is_refused():
    with pytest.raises(NetworkError, match="x is a scalar"):
        over_ranks(lambda v: ring_all_gather(v, "r"), np.ones(3, np.float32))
