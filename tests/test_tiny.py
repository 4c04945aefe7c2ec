"""The whole promise of trn_jax in one readable file: run a function on the chip, time it, differentiate the time, tune the chip."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

import trn_jax

CHIP = trn_jax.load_chip("trainium2")
BF16 = trn_jax.AutoCast("matmult", "bf16")
X = jax.random.normal(jax.random.key(0), (32, 200))
PARAMS = {"up": jax.random.normal(jax.random.key(1), (200, 64)) / 14, "down": jax.random.normal(jax.random.key(2), (64, 10)) / 8}


def loss(params, x):
    return -jax.nn.log_softmax(jax.nn.gelu(x @ params["up"]) @ params["down"])[:, 0].mean()


def train_step(params, x):
    value, gradient = jax.value_and_grad(loss)(params, x)
    return jax.tree.map(lambda w, g: w - 0.5 * g, params, gradient), value


def test_the_ideal_chip_is_plain_jax_and_trainium_rounds():
    ideal = jax.jit(trn_jax.emulate(loss, trn_jax.load_chip("ideal"), fidelity="fused"))(PARAMS, X)
    rounded = jax.jit(trn_jax.emulate(loss, CHIP, autocast=BF16))(PARAMS, X)
    assert ideal == jax.jit(loss)(PARAMS, X)
    assert rounded != ideal
    np.testing.assert_allclose(rounded, ideal, rtol=2**-7)


def test_a_network_learns_on_the_emulated_chip():
    step = jax.jit(lambda i, p: trn_jax.emulate(train_step, CHIP, autocast=BF16, rounding="stochastic", seed=i)(p, X))
    params, losses = PARAMS, []
    for i in range(20):
        params, value = step(jnp.uint32(i), params)
        losses.append(float(value))
    assert losses[-1] < 0.5 * losses[0]


def test_the_array_computes_clock_by_clock():
    run = trn_jax.engines.tensor.systolic(X[:4, :20], PARAMS["up"][:20, :8], rows=8, cols=8)
    np.testing.assert_allclose(run.output, X[:4, :20] @ PARAMS["up"][:20, :8], rtol=1e-5, atol=1e-6)
    assert run.cycles == 3 * (2 * 8 + 8 + 4 - 2) - 1


def test_the_step_has_a_time_a_report_and_a_derivative_in_the_chip():
    program = trn_jax.trace(train_step, PARAMS, jax.ShapeDtypeStruct((4096, 200), jnp.float32), autocast=BF16)
    seconds = trn_jax.latency(program, CHIP)
    report = trn_jax.estimate(program, CHIP)
    assert 0 < trn_jax.bound(program, CHIP) < seconds
    assert 0 < report.engines["tensor"].busy_s < report.latency_s
    assert report.bottleneck in report.to_table()

    faster = CHIP.replace({"hbm.bandwidth_bytes_per_s": 2 * CHIP.hbm.bandwidth_bytes_per_s})
    slope = jax.grad(lambda chip: trn_jax.latency(program, chip))(CHIP).hbm.bandwidth_bytes_per_s
    assert trn_jax.latency(program, faster) < seconds
    assert slope < 0


def test_chips_are_swept_in_one_go_and_tuned_by_gradient():
    program = trn_jax.trace(loss, PARAMS, jax.ShapeDtypeStruct((4096, 200), jnp.float32), autocast=BF16)
    grid = trn_jax.sweep(program, CHIP, {"tensor.rows": [64, 128], "dma.bandwidth_bytes_per_s": [1e11, 4e11]})
    assert grid["latency_s"].shape == (2, 2)
    assert (grid["latency_s"].diff("dma.bandwidth_bytes_per_s") <= 0).all()
    price = lambda chip, seconds: seconds * (1 + chip.dma.bandwidth_bytes_per_s / 4e11)
    best = trn_jax.tune(program, CHIP, {"dma.bandwidth_bytes_per_s": (5e10, 2e12)}, objective=price, starts=4, steps=40)
    assert price(best.chip, best.latency_s) <= price(CHIP, trn_jax.latency(program, CHIP))


def test_ranks_reduce_around_a_ring():
    mesh = jax.make_mesh((4,), ("ring",), axis_types=(jax.sharding.AxisType.Auto,))
    reduce = lambda x: trn_jax.network.ring_all_reduce(x, "ring", wire_format="bf16")
    total = jax.shard_map(reduce, mesh=mesh, in_specs=jax.P("ring"), out_specs=jax.P("ring"))(jnp.arange(32.0))
    np.testing.assert_array_equal(total.reshape(4, 8), np.broadcast_to(np.arange(32.0).reshape(4, 8).sum(0), (4, 8)))


def test_optax_runs_inside():
    optimizer = optax.adamw(1e-2)
    step = trn_jax.emulate(lambda g, s, p: optimizer.update(g, s, p), CHIP, autocast=BF16)
    updates, _ = step(jax.grad(loss)(PARAMS, X), optimizer.init(PARAMS), PARAMS)
    assert jax.tree.structure(updates) == jax.tree.structure(PARAMS)
