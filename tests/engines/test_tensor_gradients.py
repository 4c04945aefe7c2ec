"""Gradients of the Tensor Engine are those of one plain dot of the rounded operands, whatever the fidelity and the transformation."""

from contextlib import nullcontext

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from product_bounds import normals
from test_tensor_numerics import FIDELITIES, SMALL, nc_matmul

import trn_jax as trn
from trn_jax.numerics import round_to

BF16 = ("bf16", "bf16")
LHS, RHS = jnp.asarray(normals(0, (3, 9))), jnp.asarray(normals(1, (9, 5)))
close = lambda a, b: jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5), a, b)


def plain(lhs, rhs):
    return round_to(lhs, "bf16") @ round_to(rhs, "bf16")


@pytest.mark.parametrize("fidelity", FIDELITIES)
def test_forward_reverse_and_second_derivatives(fidelity):
    def loss(product):
        return lambda lhs, rhs: jnp.sin(product(lhs, rhs)).sum()

    emulated = lambda lhs, rhs: nc_matmul(lhs, rhs, fidelity=fidelity, formats=BF16)
    close(jax.grad(loss(emulated), (0, 1))(LHS, RHS), jax.grad(loss(plain), (0, 1))(LHS, RHS))
    close(jax.jvp(emulated, (LHS, RHS), (LHS + 1, RHS + 1)), jax.jvp(plain, (LHS, RHS), (LHS + 1, RHS + 1)))
    directional = lambda product: lambda s: jax.grad(loss(product))(s * LHS, RHS).sum()
    close(jax.grad(directional(emulated))(1.0), jax.grad(directional(plain))(1.0))


@pytest.mark.parametrize("fidelity", ["tiled", "systolic"])
def test_tangents_are_not_rounded(fidelity):
    """The derivative of lhs @ rhs in lhs is rounded rhs times the tangent as it is."""
    product = lambda lhs: nc_matmul(lhs, jnp.eye(5), fidelity=fidelity, formats=BF16)
    _, tangent = jax.jvp(product, (jnp.ones((1, 5)),), (jnp.full((1, 5), 1 + 2.0**-12),))
    assert (tangent == 1 + 2.0**-12).all()


def test_the_side_without_a_tangent_costs_no_dot():
    grad = jax.grad(lambda rhs: nc_matmul(LHS, rhs, formats=BF16).sum())
    both = jax.grad(lambda lhs, rhs: nc_matmul(lhs, rhs, formats=BF16).sum(), (0, 1))
    dots = lambda function, *args: str(jax.make_jaxpr(function)(*args)).count("dot_general[")
    assert dots(both, LHS, RHS) == dots(grad, RHS) + 1


@pytest.mark.parametrize("fidelity", ["tiled", "systolic"])
def test_jit_vmap_scan_and_remat_leave_gradients_alone(fidelity):
    def loss(product):
        def step(carry, rhs):
            return jnp.tanh(jax.checkpoint(product)(carry, rhs)), None

        return lambda lhs, rhs_T: jax.lax.scan(step, lhs, rhs_T)[0].sum()

    emulated = lambda lhs, rhs: nc_matmul(lhs, rhs, fidelity=fidelity, formats=BF16)
    lhs_BMK, rhs_TKK = jnp.asarray(normals(0, (2, 3, 6))), jnp.asarray(normals(1, (2, 6, 6)))
    batched = lambda product: jax.jit(jax.vmap(jax.grad(loss(product), (0, 1)), in_axes=(0, None)))
    close(batched(emulated)(lhs_BMK, rhs_TKK), batched(plain)(lhs_BMK, rhs_TKK))


@pytest.mark.parametrize("fidelity", ["tiled", "systolic"])
@pytest.mark.parametrize("check_vma", [True, False])
def test_shard_map_with_a_replicated_operand(fidelity, check_vma):
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))
    spec = jax.sharding.PartitionSpec

    def loss(lhs, rhs):
        return jax.lax.pmean(jnp.tanh(nc_matmul(lhs, rhs, fidelity=fidelity, formats=BF16)).mean(), "data")

    lhs_MK = jnp.asarray(normals(0, (4, 9)))
    sharded = jax.jit(jax.shard_map(loss, mesh=mesh, in_specs=(spec("data"), spec()), out_specs=spec(), check_vma=check_vma))
    expected = lambda lhs, rhs: jnp.tanh(plain(lhs, rhs)).mean()
    close(sharded(lhs_MK, RHS), expected(lhs_MK, RHS))
    close(jax.grad(sharded, (0, 1))(lhs_MK, RHS), jax.grad(expected, (0, 1))(lhs_MK, RHS))


@pytest.mark.parametrize(("fidelity", "in_context"), [("tiled", True), ("tiled", False), ("systolic", True)])
def test_operands_sharded_over_an_explicit_mesh(fidelity, in_context):
    """The weight gradient contracts over the sharded batch, which a loop cannot slice where it lies."""
    loss = lambda w_DF, x_BTD: jnp.tanh(jnp.einsum("btd,df->btf", x_BTD, w_DF)).mean()
    w_DF, x_BTD = jnp.asarray(normals(0, (5, 2))), jnp.asarray(normals(1, (4, 3, 5)))
    expected = jax.grad(loss)(w_DF, x_BTD)
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Explicit,))
    with jax.set_mesh(mesh) if in_context else nullcontext():
        w_DF = jax.device_put(w_DF, jax.NamedSharding(mesh, jax.P()))
        x_BTD = jax.device_put(x_BTD, jax.NamedSharding(mesh, jax.P("data")))
        close(jax.jit(trn.emulate(jax.grad(loss), SMALL, fidelity=fidelity))(w_DF, x_BTD), expected)
