"""Products in groups (a mixture of experts): tiles of K in order, rows of each group with their own matrix."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from product_bounds import normals

import trn_jax

CHIP = trn_jax.load_chip("trainium2").replace({"tensor.rows": 4.0})
SIZES = jnp.array([2, 0, 3])
LHS, RHS = normals(0, (5, 11)), normals(1, (3, 11, 4))


def ragged(lhs, rhs):
    return jax.lax.ragged_dot(lhs, rhs, SIZES)


@pytest.mark.parametrize("fidelity", ["tiled", "systolic"])
def test_every_group_sums_its_tiles_of_k_in_order(fidelity):
    psum = np.zeros((5, 4), np.float32)
    for start in range(0, 11, 4):
        tile = np.concatenate([LHS[a:b, start : start + 4] @ RHS[g, start : start + 4] for g, a, b in ((0, 0, 2), (2, 2, 5))])
        psum = psum + tile if start else tile
    got = trn_jax.emulate(ragged, CHIP, fidelity=fidelity)(LHS, RHS)
    np.testing.assert_allclose(got, psum, rtol=2**-21, atol=2**-22)
    np.testing.assert_allclose(got, ragged(LHS, RHS), rtol=1e-5, atol=1e-5)


def test_tiles_are_visible_where_the_order_of_a_sum_matters():
    lhs, rhs = jnp.ones((1, 8)), jnp.array([[[2.0**24], [1], [0], [0], [1], [0], [0], [0]]])
    one = lambda lhs, rhs: jax.lax.ragged_dot(lhs, rhs, jnp.array([1]))
    assert trn_jax.emulate(one, CHIP)(lhs, rhs) == 2**24  # tiles 2^24 + 1 -> 2^24, then + 1 -> 2^24
    swapped = jnp.roll(rhs, 4, axis=1)
    assert trn_jax.emulate(one, CHIP)(lhs, swapped) == 2**24
    together = jnp.array([[[1.0], [1], [0], [0], [2.0**24], [0], [0], [0]]])
    assert trn_jax.emulate(one, CHIP)(lhs, together) == 2**24 + 2


def test_operands_are_rounded_and_gradients_are_those_of_one_product():
    bf16 = trn_jax.AutoCast("matmult", "bf16")
    rounded = trn_jax.emulate(ragged, CHIP, autocast=bf16)(LHS, RHS)
    np.testing.assert_allclose(rounded, ragged(trn_jax.round_to(LHS, "bf16"), trn_jax.round_to(RHS, "bf16")), rtol=1e-5, atol=1e-5)
    loss = lambda run: lambda lhs, rhs: jnp.sum(jnp.sin(run(lhs, rhs)))
    plain = jax.grad(loss(ragged), (0, 1))(LHS, RHS)
    for got in (
        jax.jit(jax.grad(loss(trn_jax.emulate(ragged, CHIP)), (0, 1)))(LHS, RHS),
        trn_jax.emulate(jax.grad(loss(ragged), (0, 1)), CHIP)(LHS, RHS),
    ):
        for one, other in zip(got, plain, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
