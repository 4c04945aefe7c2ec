import jax
import jax.numpy as jnp
import numpy as np
import pytest

import trn_jax
from trn_jax.errors import ModelError
from trn_jax.models import GPT, GPTConfig, cross_entropy, split_model, stack_blocks, unstack_blocks

TINY = GPTConfig(vocab_size=32, d_model=16, n_layers=2, n_heads=4, max_tokens=8)
TOKENS = jax.random.randint(jax.random.key(9), (2, 8), 0, 32)
VARIANTS = {
    "default": {},
    "learned positions, layer norm": {"positions": "learned", "norm": "layer"},
    "grouped heads, swiglu": {"n_kv_heads": 2, "activation": "swiglu"},
    "one key/value head, tied": {"n_kv_heads": 1, "tied_embeddings": True},
    "remat": {"remat": True},
    "scanned": {"scan_layers": True},
    "scanned, remat, learned": {"scan_layers": True, "remat": True, "positions": "learned"},
    "bf16": {"param_dtype": "bfloat16", "compute_dtype": "bfloat16"},
}
every_variant = pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS.keys())


def loss_of(apply, **kwargs):
    return lambda params: cross_entropy(apply(params, TOKENS[:, :-1], **kwargs), TOKENS[:, 1:])


@every_variant
def test_loss_starts_near_the_entropy_of_the_vocabulary_and_every_weight_gets_a_gradient(changes):
    apply, params = split_model(GPT(TINY.replace(**changes)))
    loss, gradients = jax.jit(jax.value_and_grad(loss_of(apply)))(params)
    assert abs(loss - np.log(32)) < 0.8
    for path, leaf in jax.tree_util.tree_leaves_with_path(gradients):
        assert np.isfinite(leaf.astype(jnp.float32)).all(), path
        assert np.abs(leaf.astype(jnp.float32)).max() > 0, path


@every_variant
def test_parameter_count_is_that_of_the_built_model(changes):
    config = TINY.replace(**changes)
    _, params = split_model(GPT(config))
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == config.parameter_count()
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype(config.param_dtype)}


@pytest.mark.parametrize(
    "changes", [{}, {"positions": "learned", "n_kv_heads": 2}, {"scan_layers": True}], ids=["default", "learned", "scanned"]
)
def test_a_logit_depends_on_no_later_token(changes):
    # Token t is t, so row t of the table is what place t reads: the derivative of each place's logits says what they depend on.
    apply, params = split_model(GPT(TINY.replace(**changes)))
    logits = jax.jit(jax.jacrev(lambda table: apply({**params, "table_VD": table}, jnp.arange(8)[None])[0].sum(axis=-1)))
    reached = jnp.abs(logits(params["table_VD"])[:, :8]).sum(axis=-1) > 0
    np.testing.assert_array_equal(reached, np.tril(np.ones((8, 8), bool)))


@pytest.mark.parametrize(
    "changes", [pytest.param({}, marks=pytest.mark.slow), {"norm": "layer", "activation": "swiglu", "n_kv_heads": 2}, {"dropout": 0.2}]
)
def test_scanned_layers_equal_written_out_ones(changes):
    written_out, params = split_model(GPT(TINY.replace(**changes), seed=4))
    scanned, stacked = split_model(GPT(TINY.replace(scan_layers=True, **changes), seed=4))
    jax.tree.map(np.testing.assert_array_equal, stack_blocks(params), stacked)
    jax.tree.map(np.testing.assert_array_equal, unstack_blocks(stacked), params)
    key = jax.random.key(5) if "dropout" in changes else None
    one, gradients = jax.jit(jax.value_and_grad(loss_of(written_out, dropout_key=key)))(params)
    two, stacked_gradients = jax.jit(jax.value_and_grad(loss_of(scanned, dropout_key=key)))(stacked)
    np.testing.assert_allclose(one, two, rtol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), stack_blocks(gradients), stacked_gradients)


def test_remat_changes_no_value():
    plain, params = split_model(GPT(TINY))
    again, _ = split_model(GPT(TINY.replace(remat=True)))
    one, two = (jax.jit(jax.value_and_grad(loss_of(apply)))(params) for apply in (plain, again))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), one, two)


def test_dropout_needs_a_key_and_differs_by_key():
    apply, params = split_model(GPT(TINY.replace(dropout=0.5)))
    plain, _ = split_model(GPT(TINY))
    run = jax.jit(lambda key: apply(params, TOKENS, dropout_key=key))
    np.testing.assert_array_equal(jax.jit(apply)(params, TOKENS), jax.jit(plain)(params, TOKENS))
    first, same, other = run(jax.random.key(0)), run(jax.random.key(0)), run(jax.random.key(1))
    np.testing.assert_array_equal(first, same)
    assert (first != other).any()


def test_the_same_seed_gives_the_same_weights_and_another_seed_others():
    first, same, other = (split_model(GPT(TINY, seed=seed))[1]["table_VD"] for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, same)
    assert (first != other).any()


def test_every_part_runs_in_a_named_scope():
    apply, params = split_model(GPT(TINY))
    text = jax.jit(jax.grad(loss_of(apply))).lower(params).as_text(debug_info=True)
    for scope in ("embedding", "block0", "block1", "attention", "mlp", "norm", "head", "loss"):
        assert scope in text


@pytest.mark.parametrize("shape", [(8,), (1, 9), (1, 2, 3)])
def test_tokens_of_a_wrong_shape_are_refused(shape):
    apply, params = split_model(GPT(TINY))
    with pytest.raises(ModelError, match=r"expected \(batch, tokens\) with at most max_tokens = 8"):
        apply(params, jnp.zeros(shape, jnp.int32))


def test_odd_sizes_and_a_row_without_targets_stay_finite():
    config = GPTConfig(vocab_size=33, d_model=10, n_layers=1, n_heads=2, d_ff=7, max_tokens=5, positions="learned")
    apply, params = split_model(GPT(config))
    tokens = jnp.asarray([[1, 2, 3], [0, 0, 0]])
    targets = jnp.asarray([[2, 3, 4], [-1, -1, -1]])
    loss, gradients = jax.jit(jax.value_and_grad(lambda p: cross_entropy(apply(p, tokens), targets)))(params)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((loss, gradients)))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_emulated_scanned_layers_equal_written_out_ones_bit_for_bit(dtype):
    chip = trn_jax.load_chip("trainium2")
    config = TINY.replace(param_dtype=dtype, compute_dtype=dtype)
    written_out, params = split_model(GPT(config))
    scanned, _ = split_model(GPT(config.replace(scan_layers=True)))

    def run(apply, weights):
        return jax.jit(trn_jax.emulate(loss_of(apply), chip, autocast=trn_jax.AutoCast("matmult", "bf16"), fidelity="fused"))(weights)

    assert run(written_out, params) == run(scanned, stack_blocks(params))
