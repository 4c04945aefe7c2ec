"""Troubles that users reported about training in low precision, each with the right answer."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import trn_jax

TRN2, TRN3 = trn_jax.load_chip("trainium2"), trn_jax.load_chip("trainium3")
BF16, ALL_BF16 = trn_jax.AutoCast("matmult", "bf16"), trn_jax.AutoCast("all", "bf16")


def test_trn_01_small_updates_vanish_in_bf16_weights_unless_rounded_stochastically():
    """A loss stayed flat with bf16 weights: https://github.com/keras-team/keras-hub/issues/2629."""

    def train(start, rounding, seed):
        def step(w, i):
            update = trn_jax.emulate(lambda w: w - jnp.asarray(1e-3, w.dtype), TRN2, rounding=rounding, seed=seed * jnp.uint32(1000) + i)
            return update(w), w

        return jax.lax.scan(step, start, jnp.arange(1000, dtype=jnp.uint32))

    assert train(jnp.bfloat16(1), "nearest", jnp.uint32(0))[0] == 1
    assert abs(train(jnp.float32(1), "nearest", jnp.uint32(0))[0]) < 1e-4
    runs, paths = jax.jit(jax.vmap(lambda seed: train(jnp.bfloat16(1), "stochastic", seed)))(jnp.arange(200, dtype=jnp.uint32))
    assert abs(runs.astype(jnp.float32).mean()) < 4 * 0.042 / np.sqrt(200)
    assert abs((paths[:, 1] != 1).mean() - 0.256) < 4 * np.sqrt(0.256 * 0.744 / 200)  # 1e-3, a bf16 0.0010, over a step of 2^-8


def test_trn_02_beta2_is_one_in_bf16_so_the_optimizer_keeps_its_scalars_in_float32():
    """Adam's scalars were silently bf16: https://github.com/tenstorrent/tt-metal/issues/55935."""
    from trn_jax.training.optimizer import OptimizerConfig

    np.testing.assert_array_equal(trn_jax.round_to(jnp.array([0.999, 0.9, 0.95]), "bf16"), np.float32([1.0, 0.8984375, 0.94921875]))
    with pytest.raises(trn_jax.TrainingError, match="below 1 in float32, or its moment never moves"):
        OptimizerConfig(learning_rate=1e-3, warmup_steps=0, decay_steps=10, beta2=1.0)
    moment = trn_jax.emulate(lambda v, g: 0.999 * v + (1 - 0.999) * g * g, TRN2, autocast=BF16)
    np.testing.assert_allclose(moment(jnp.ones(2), jnp.zeros(2)), 0.999, rtol=1e-6)


def test_trn_04_micro_batches_are_lost_when_their_gradients_are_summed_in_bf16():
    """Gradient accumulation stopped counting: https://github.com/deepspeedai/DeepSpeed/issues/1800."""
    accumulate = lambda dtype: lambda g: jax.lax.scan(lambda total, one: (total + one.astype(dtype), None), jnp.zeros((), dtype), g)[0]
    gradients = jnp.ones(512, jnp.bfloat16)
    assert trn_jax.emulate(accumulate(jnp.bfloat16), TRN2)(gradients) == 256
    assert trn_jax.emulate(accumulate(jnp.float32), TRN2)(gradients) == 512


@pytest.mark.slow
def test_trn_06_every_parameter_of_the_default_model_gets_a_gradient_in_the_default_precision():
    """A model that did not learn at all: https://github.com/huggingface/optimum-neuron/issues/1019. (Learning: test_step.py.)"""
    from trn_jax.models import GPT, GPTConfig, split_model
    from trn_jax.training.step import batch_loss

    apply, params = split_model(GPT(GPTConfig(vocab_size=11, d_model=16, n_heads=2, n_layers=2, max_tokens=8)))
    batch = jnp.arange(18).reshape(2, 9) % 11
    gradient = trn_jax.emulate(jax.grad(lambda p: batch_loss(apply, p, batch)), TRN2, autocast=BF16, fidelity="fused")(params)
    still = [path for path, g in jax.tree_util.tree_leaves_with_path(gradient) if not float(jnp.abs(g).max()) > 0]
    assert still == []


@pytest.mark.slow
def test_trn_07_padded_rows_and_odd_sizes_give_finite_losses_and_gradients():
    """NaN from the first step on: https://github.com/aws-neuron/aws-neuron-sdk/issues/903."""
    from trn_jax.models.loss import IGNORED_TARGET, cross_entropy

    targets = jnp.array([[4, 2, 6, 1, 0], [IGNORED_TARGET] * 5])
    hidden, table = (jax.random.normal(jax.random.key(i), shape) for i, shape in enumerate([(2, 5, 25), (25, 37)]))
    loss = lambda h, w, targets: cross_entropy((h @ w).astype(jnp.bfloat16), targets)
    run = trn_jax.emulate(jax.value_and_grad(loss, (0, 1)), TRN2, autocast=ALL_BF16)
    value, gradients = run(hidden, table, targets)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves((value, gradients)))
    assert (gradients[0][1] == 0).all()
    np.testing.assert_allclose(value, loss(hidden[:1], table, targets[:1]), rtol=2**-6)
    nothing, gradients = run(hidden, table, jnp.full_like(targets, IGNORED_TARGET))
    assert nothing == 0
    assert all((x == 0).all() for x in gradients)


def test_trn_08_rows_are_flipped_by_where_and_shapes_that_depend_on_data_are_refused_as_jax_does():
    """An assignment to masked rows was compiled wrongly: https://github.com/aws-neuron/aws-neuron-sdk/issues/1381. Decision 0010."""
    x, mask = np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32), np.array([1, 0, 0, 1, 1, 0], bool)
    expected = x.copy()
    expected[mask] = x[:, ::-1][mask]
    flipped = trn_jax.emulate(lambda x, mask: jnp.where(mask[:, None], x[:, ::-1], x), TRN2)
    np.testing.assert_array_equal(jax.jit(flipped)(x, mask), expected)
    with pytest.raises(jax.errors.NonConcreteBooleanIndexError, match="Array boolean indices must be concrete"):
        trn_jax.emulate(lambda x, mask: x[mask], TRN2)(x, mask)


def test_trn_09_logaddexp_of_nothing_is_nothing_and_our_loss_has_a_gradient_where_logits_are_minus_infinity():
    """CTC losses with -inf: https://github.com/aws-neuron/aws-neuron-sdk/issues/1381. Decision 0010."""
    from trn_jax.models.loss import cross_entropy

    nothing = jnp.float32(-jnp.inf)
    assert trn_jax.emulate(jnp.logaddexp, TRN2)(nothing, nothing) == -jnp.inf
    plain, emulated = (f(nothing, nothing) for f in (jax.grad(jnp.logaddexp), trn_jax.emulate(jax.grad(jnp.logaddexp), TRN2)))
    np.testing.assert_array_equal(emulated, plain)  # JAX's own derivative, NaN, is kept
    logits = jnp.array([[1.0, -jnp.inf, 2.0]])
    value, gradient = trn_jax.emulate(jax.value_and_grad(cross_entropy), TRN2)(logits, jnp.array([0]))
    assert np.isfinite(value)
    np.testing.assert_allclose(gradient, jax.nn.softmax(logits) - jnp.array([[1.0, 0, 0]]), rtol=1e-5, atol=1e-7)


def test_trn_11_the_derivative_of_a_rounding_is_one_even_where_it_overflowed():
    """Which straight-through estimator is it? https://github.com/huggingface/optimum-quanto/issues/146."""
    x = jnp.array([1.0, 239.0, 300.0, -300.0, jnp.nan, 0.001])
    for overflow in (None, "saturate"):
        gradient = jax.grad(lambda x, overflow=overflow: trn_jax.round_to(x, "fp8_e4m3", overflow=overflow).sum())(x)
        np.testing.assert_array_equal(gradient, np.ones(6))
    narrow = jax.grad(lambda x: trn_jax.round_to(x, "fp8_e4m3").astype(jnp.float32).sum())(x.astype(jnp.bfloat16))
    assert narrow.dtype == jnp.bfloat16


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_trn_13_loss_and_gradient_over_ranks_do_not_depend_on_their_number(ranks):
    """A gradient through psum was off by the number of ranks: https://github.com/jax-ml/jax/issues/3970."""
    mesh = trn_jax.network.make_mesh(ranks, "data")
    local = lambda w, x: jax.lax.psum(jnp.sum((w * x) ** 2), "data")
    loss = jax.shard_map(local, mesh=mesh, in_specs=(jax.P(), jax.P("data")), out_specs=jax.P())
    x = jnp.arange(8.0)
    assert trn_jax.emulate(jax.value_and_grad(loss), TRN2)(3.0, x) == (1260, 840)
    assert jax.value_and_grad(trn_jax.emulate(loss, TRN2))(3.0, x) == (1260, 840)


@pytest.mark.slow
@pytest.mark.parametrize("reduce_format", ["bf16", "fp32"])
def test_trn_14_the_format_of_a_gradient_reduction_is_chosen_and_changes_its_sum(reduce_format):
    """Gradients were reduced in bf16 before anybody could say otherwise: https://github.com/NVIDIA/Megatron-LM/issues/502."""
    mesh = trn_jax.network.make_mesh(8, "r")
    x = jnp.ones((8, 8)).at[0].set(256.0)
    reduce = lambda x: trn_jax.network.ring_all_reduce(x[0], "r", wire_format="bf16", reduce_format=reduce_format)
    total = np.asarray(jax.shard_map(reduce, mesh=mesh, in_specs=jax.P("r"), out_specs=jax.P("r"))(x)).reshape(8, 8)
    assert (total == total[0]).all()
    expected = {"bf16": [264, 264, 260, 260, 260, 260, 256, 256], "fp32": [264] * 8}[reduce_format]
    np.testing.assert_array_equal(np.sort(total[0]), np.sort(expected))


def test_trn_16_cotangents_of_fp8_products_are_e5m2_and_keep_what_e4m3_would_make_infinite():
    """Mixed fp8 formats in a backward pass: https://github.com/marin-community/marin/issues/7433."""
    x, w = jnp.array([[0.5, 2.0]], jnp.bfloat16), jnp.array([[1.1], [3.0]], jnp.bfloat16)
    loss = lambda x, w: (x @ w).astype(jnp.float32)[0, 0] * 57344.0  # the cotangent of the product
    run = lambda **options: trn_jax.emulate(
        jax.value_and_grad(loss, (0, 1)), TRN2, autocast=trn_jax.AutoCast("matmult", "fp8_e4m3", **options)
    )
    value, (dx, dw) = run(backward="fp8_e5m2")(x, w)
    assert value == (0.5 * 1.125 + 2 * 3) * 57344  # 1.1 is 1.125 in E4M3
    assert dx.dtype == dw.dtype == jnp.bfloat16
    np.testing.assert_array_equal(dw.ravel(), jnp.asarray([0.5 * 57344, 2 * 57344], jnp.bfloat16))
    np.testing.assert_array_equal(dx.ravel(), jnp.asarray([1.125 * 57344, 3 * 57344], jnp.bfloat16))
    scaled = run(backward="fp8_e5m2", scaling="tensor")(x, w)[1]
    np.testing.assert_array_equal(scaled[1].ravel(), dw.ravel())
    report = trn_jax.cast_report(jax.grad(loss, (0, 1)), TRN2, autocast=trn_jax.AutoCast("matmult", "fp8_e4m3", backward="fp8_e5m2"))(x, w)
    assert {c.to_format for c in report if c.role != "write"} == {"fp8_e4m3", "fp8_e5m2"}
    assert np.isinf(np.float32(run(backward="fp8_e4m3")(x, w)[1][1])).all()


def test_trn_17_scanned_layers_have_the_gradients_of_layers_written_out():
    """Gradients differed between a scan over layers and a loop: https://github.com/google/flax/issues/4771."""
    w = jax.random.normal(jax.random.key(0), (6, 8, 8)) / 3
    x = jax.random.normal(jax.random.key(1), (4, 8))
    layer = lambda x, w: jnp.tanh(x @ w)
    scanned = lambda w: jnp.sum(jax.lax.scan(lambda x, w: (layer(x, w), None), x, w)[0] ** 2)

    def written(w):
        out = x
        for i in range(6):
            out = layer(out, w[i])
        return jnp.sum(out**2)

    run = lambda loss: jax.jit(trn_jax.emulate(jax.grad(loss), TRN2, autocast=ALL_BF16))(w)
    np.testing.assert_array_equal(run(scanned), run(written))


def test_trn_18_saturation_changes_nothing_on_clean_data_and_is_recorded():
    """A flag that saturates infinities changed a loss: https://github.com/huggingface/optimum-neuron/issues/721."""
    x, w = (jax.random.normal(jax.random.key(i), (8, 8)) for i in range(2))
    loss = jax.value_and_grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))
    runs = {overflow: trn_jax.emulate(loss, TRN2, autocast=ALL_BF16, overflow=overflow) for overflow in (None, "saturate")}
    assert {overflow: run.numerics.overflow for overflow, run in runs.items()} == {None: None, "saturate": "saturate"}
    for one, other in zip(jax.tree.leaves(runs[None](w)), jax.tree.leaves(runs["saturate"](w)), strict=True):
        np.testing.assert_array_equal(one, other)
        assert np.isfinite(one).all()


def test_trn_19_the_gradient_of_a_rounding_is_not_rounded():
    """A cast to fp8 rounds the gradient too, to 0 or infinity: https://github.com/huggingface/optimum-quanto/issues/146."""
    x, w = jnp.ones(4), jnp.array([0.0005, 0.1, 300.0, 1000.0])
    cast = jax.grad(lambda x: jnp.sum(x.astype(jnp.float8_e4m3).astype(jnp.float32) * w))(x)
    np.testing.assert_array_equal(cast, [0, 0.1015625, np.inf, np.inf])
    ours = jax.grad(lambda x: jnp.sum(trn_jax.round_to(x, "fp8_e4m3") * w))(x)
    np.testing.assert_array_equal(ours, w)
    through = jax.grad(trn_jax.emulate(lambda x: jnp.sum(x * w), TRN2, autocast=trn_jax.AutoCast("all", "fp8_e5m2")))(x)
    np.testing.assert_array_equal(through, w)
