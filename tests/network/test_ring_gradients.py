"""Gradients through the ring are those through psum, psum_scatter and all_gather, straight through every rounding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

from trn_jax.network import make_mesh, ring_all_gather, ring_all_reduce, ring_reduce_scatter

CHECKS = pytest.mark.parametrize("check_vma", [True, False], ids=["vma", "no_vma"])


def loss_on_mesh(ranks, check_vma, reduce):
    mesh = make_mesh(ranks, "r", devices=jax.devices("cpu"))
    return jax.shard_map(lambda w, x: reduce(jnp.sum((w * x) ** 2)), mesh=mesh, in_specs=(P(), P("r")), out_specs=P(), check_vma=check_vma)


@CHECKS
@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_loss_and_gradient_do_not_depend_on_the_number_of_ranks(ranks, check_vma):
    loss = loss_on_mesh(ranks, check_vma, lambda v: ring_all_reduce(v, "r", "fp32"))
    value, gradient = jax.jit(jax.value_and_grad(loss))(3.0, jnp.arange(8.0))
    assert (float(value), float(gradient)) == (1260.0, 840.0)


def test_gradient_inside_shard_map_is_summed_already_when_types_are_checked():
    mesh = make_mesh(4, "r", devices=jax.devices("cpu"))
    inner = jax.value_and_grad(lambda w, x: ring_all_reduce(jnp.sum((w * x) ** 2), "r", "fp32"))
    value, gradient = jax.jit(jax.shard_map(inner, mesh=mesh, in_specs=(P(), P("r")), out_specs=P()))(3.0, jnp.arange(8.0))
    assert (float(value), float(gradient)) == (1260.0, 840.0)


@CHECKS
def test_rounding_leaves_no_trace_in_the_gradient(check_vma):
    x = np.random.default_rng(0).standard_normal(8).astype(np.float32)
    gradients = [
        jax.jit(jax.grad(loss_on_mesh(2, check_vma, reduce)))(1.1, x)
        for reduce in (lambda v: ring_all_reduce(v, "r", "fp8_e5m2", "fp8_e5m2"), lambda v: lax.psum(v, "r"))
    ]
    assert gradients[0] == gradients[1]


@CHECKS
def test_forward_and_second_derivatives_follow_psum(replicated_out, check_vma):
    x = np.arange(1.0, 7.0, dtype=np.float32).reshape(2, 3)
    ring = replicated_out(lambda v: ring_all_reduce(v**2, "r", "bf16"), 2, check_vma=check_vma)
    assert (jax.jit(lambda v: jax.jvp(ring, (v,), (jnp.ones_like(v),))[1])(x) == (2 * x).sum(0)).all()
    second = jax.jit(jax.hessian(lambda s: ring(s * x).sum()))(1.0)
    assert float(second) == 2 * (x**2).sum()


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (lambda v: ring_reduce_scatter(v, "r", "bf16"), lambda v: lax.psum_scatter(v, "r", tiled=True)),
        (lambda v: ring_all_gather(v, "r", "bf16"), lambda v: lax.all_gather(v, "r", tiled=True)),
    ],
    ids=["reduce_scatter", "all_gather"],
)
@CHECKS
def test_halves_have_the_gradients_of_the_lax_functions(ours, theirs, check_vma):
    mesh = make_mesh(2, "r", devices=jax.devices("cpu"))
    x, weight = np.random.default_rng(1).standard_normal((2, 4, 3)).astype(np.float32)

    def gradient(f):
        mapped = jax.shard_map(f, mesh=mesh, in_specs=P("r"), out_specs=P("r"), check_vma=check_vma)
        return jax.jit(jax.grad(lambda v: (mapped(v)[:2] * weight[:2]).sum()))(x)

    assert (gradient(ours) == gradient(theirs)).all()


def test_stochastic_rounding_with_a_traced_seed_can_be_differentiated():
    def total(x, seed):
        return jax.vmap(lambda v: ring_all_reduce(v, "r", rounding="stochastic", seed=seed), axis_name="r")(x)[0].sum()

    gradient = jax.jit(jax.grad(total))(jnp.ones((3, 5)), jnp.uint32(7))
    assert (gradient == 1).all()


def test_gradient_of_a_pytree_of_mixed_dtypes():
    def total(tree):
        out = jax.vmap(lambda t: ring_all_reduce(t, "r", "fp32"), axis_name="r")(tree)
        return (out["w"][0] * 2).sum() + out["h"][0].astype(jnp.float32).sum()

    tree = {"w": jnp.ones((2, 3)), "h": jnp.ones((2, 2), jnp.bfloat16)}
    gradient = jax.jit(jax.grad(total))(tree)
    assert (gradient["w"] == 2).all()
    assert gradient["h"].dtype == jnp.bfloat16
    assert (gradient["h"] == 1).all()
