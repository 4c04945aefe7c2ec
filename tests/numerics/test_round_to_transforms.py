"""Rounding composes with jit, grad, vmap, scan, remat and shard_map; its gradient is the plain straight-through one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trn_jax.numerics import FORMATS, mix, round_to, rounder
from trn_jax.numerics.hash import stream_key

modes = pytest.mark.parametrize("rounding", ["nearest", "stochastic"])


@modes
@pytest.mark.parametrize("fmt", FORMATS)
def test_cotangent_passes_unrounded(fmt, rounding):
    weights = jnp.float32([0.0005, 0.1, 300, 1000, 1e-30, 1.2345678])
    x = jnp.float32([1, 239, 300, -1e30, jnp.nan, jnp.inf])
    gradient = jax.grad(lambda x: jnp.sum(round_to(x, fmt, rounding=rounding, seed=1, overflow="saturate") * weights))(x)
    np.testing.assert_array_equal(gradient, weights)


@pytest.mark.parametrize("overflow", ["inf", "nan", "saturate"])
def test_gradient_is_one_for_every_input_and_policy(overflow):
    x = jnp.float32([1.0, 239, 240, 300, -300, jnp.nan, 0.001, 0.0, -0.0])
    gradient = jax.vmap(jax.grad(lambda x: round_to(x, "fp8_e4m3", overflow=overflow)))(x)
    np.testing.assert_array_equal(gradient, np.ones(9, np.float32))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16, jnp.float8_e4m3])
def test_gradient_has_the_dtype_of_the_input(dtype):
    gradient = jax.grad(lambda x: round_to(x, "fp8_e5m2").astype(jnp.float32).sum())(jnp.ones(3, dtype))
    assert gradient.dtype == dtype
    assert (gradient.astype(jnp.float32) == 1).all()


@modes
def test_forward_reverse_and_second_order_agree(rounding):
    x, weights = jnp.linspace(-2, 2, 7), jnp.linspace(0.1, 1.7, 7)

    def f(x):
        return jnp.sum(round_to(x, "bf16", rounding=rounding, seed=3) ** 2 * weights)

    value, tangent = jax.jvp(f, (x,), (jnp.ones_like(x),))
    assert value == f(x)
    rounded = round_to(x, "bf16", rounding=rounding, seed=3)
    want = 2 * rounded * weights
    np.testing.assert_allclose(jax.grad(f)(x), want, rtol=1e-6)
    np.testing.assert_allclose(jax.jacfwd(f)(x), want, rtol=1e-6)
    np.testing.assert_allclose(tangent, want.sum(), rtol=1e-5)
    np.testing.assert_allclose(jax.hessian(f)(x), np.diag(2 * weights), rtol=1e-6)


def test_seed_has_no_gradient():
    def f(x, seed):
        return round_to(x, "bf16", rounding="stochastic", seed=seed).sum()

    _, of_seed = jax.grad(f, argnums=(0, 1), allow_int=True)(jnp.ones(3), jnp.uint32(2))
    assert of_seed.dtype == jax.dtypes.float0


@modes
def test_jit_vmap_scan_and_remat_change_nothing(rounding):
    x_BF = jnp.asarray(np.random.default_rng(1).normal(size=(4, 33)), jnp.float32)
    seeds_B = mix(5, jnp.arange(4))

    def f(x, seed):
        return round_to(jnp.sin(x) * 3, "fp8_e4m3", rounding=rounding, seed=seed)

    loop = np.stack([f(x, seed) for x, seed in zip(x_BF, seeds_B, strict=True)])
    np.testing.assert_array_equal(jax.vmap(f)(x_BF, seeds_B), loop)
    np.testing.assert_array_equal(jax.jit(jax.vmap(f))(x_BF, seeds_B), loop)
    np.testing.assert_array_equal(jax.lax.scan(lambda c, a: (c, f(*a)), 0, (x_BF, seeds_B))[1], loop)
    np.testing.assert_array_equal(jax.checkpoint(f)(x_BF[0], seeds_B[0]), loop[0])

    def loss(x, seed):
        return jnp.sum(f(x, seed) ** 2)

    gradients = np.stack([jax.grad(loss)(x, seed) for x, seed in zip(x_BF, seeds_B, strict=True)])
    np.testing.assert_array_equal(jax.jit(jax.vmap(jax.grad(jax.checkpoint(loss))))(x_BF, seeds_B), gradients)


def test_unmapped_seed_gives_every_lane_the_same_bits():
    x_F = jnp.linspace(1, 2, 64)
    x_BF = jnp.stack([x_F, x_F])
    lanes = jax.vmap(lambda x: round_to(x, "bf16", rounding="stochastic", seed=4))(x_BF)
    np.testing.assert_array_equal(lanes[0], lanes[1])
    np.testing.assert_array_equal(lanes[0], round_to(x_F, "bf16", rounding="stochastic", seed=4))
    whole = round_to(x_BF, "bf16", rounding="stochastic", seed=4)
    assert (whole[0] != whole[1]).any()


def test_gradient_flows_through_a_scan_of_rounded_carries():
    def f(x):
        def step(carry, index):
            return round_to(carry * 0.5, "fp8_e5m2", rounding="stochastic", seed=mix(1, index)), None

        return jax.lax.scan(step, x, jnp.arange(3))[0].sum()

    np.testing.assert_array_equal(jax.grad(f)(jnp.float32([1.1, -7.7])), np.float32([0.125, 0.125]))


@pytest.mark.parametrize("own_seeds", [False, True], ids=["one seed", "seed per device"])
@pytest.mark.parametrize("sharded", [False, True], ids=["replicated", "sharded"])
def test_shard_map_forward_and_backward(sharded, own_seeds):
    mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    x_BF = jnp.linspace(1, 2, 128).reshape(4, 32)
    seeds = jnp.uint32([3, 4]) if own_seeds else jnp.uint32([3])
    on_x, on_seeds = jax.P("data" if sharded else None), jax.P("data" if own_seeds else None)

    def f(x, seeds):
        return round_to(x, "bf16", rounding="stochastic", seed=seeds[0])

    parts = jax.shard_map(f, mesh=mesh, in_specs=(on_x, on_seeds), out_specs=jax.P("data"))(x_BF, seeds)
    shards = [x_BF[:2], x_BF[2:]] if sharded else [x_BF, x_BF]
    want = np.concatenate([f(shard, seeds[-1:] if i else seeds[:1]) for i, shard in enumerate(shards)])
    np.testing.assert_array_equal(parts, want)

    def loss(x, seeds):
        return jax.lax.psum(jnp.sum(f(x, seeds) * 0.3), "data")

    total = jax.shard_map(loss, mesh=mesh, in_specs=(on_x, on_seeds), out_specs=jax.P())
    copies = 1 if sharded else 2  # a replicated input reaches the sum once for each device
    np.testing.assert_allclose(jax.jit(jax.grad(total))(x_BF, seeds), np.full((4, 32), 0.3 * copies), rtol=1e-6)


def test_bits_do_not_depend_on_how_an_array_is_sharded():
    mesh = jax.make_mesh((2,), ("data",))
    x = jnp.linspace(1, 2, 128).reshape(4, 32)
    with jax.set_mesh(mesh):
        sharded = round_to(jax.device_put(x, jax.P("data")), "bf16", rounding="stochastic", seed=3)
    np.testing.assert_array_equal(sharded, round_to(x, "bf16", rounding="stochastic", seed=3))


def test_rounder_is_the_same_function_built_once():
    x = jnp.linspace(-300, 300, 1001)
    assert rounder("fp8_e4m3", "stochastic", "saturate") is rounder(FORMATS["fp8_e4m3"], "stochastic", "saturate")
    np.testing.assert_array_equal(
        rounder("fp8_e4m3", "stochastic", "saturate")(x, stream_key(6)),
        round_to(x, "fp8_e4m3", rounding="stochastic", overflow="saturate", seed=6),
    )
    assert rounder("fp32", "stochastic")(x, None) is x
    assert rounder("tf32", container="bf16")(x) is x
    with pytest.raises(TypeError, match="key"):
        rounder("bf16", "stochastic")(x)


def test_mapped_keys_give_each_lane_its_own_bits():
    x_F = jnp.linspace(1, 2, 64)
    keys = jax.random.split(jax.random.key(1), 3)
    lanes = jax.vmap(lambda key: round_to(x_F, "bf16", rounding="stochastic", key=key))(keys)
    np.testing.assert_array_equal(lanes[1], round_to(x_F, "bf16", rounding="stochastic", key=keys[1]))
    assert (lanes[0] != lanes[1]).any()
