"""Reference models: published weight counts, traced without weights; the decode step gives what the whole sequence gives."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import trn_jax
from trn_jax.errors import ModelError
from trn_jax.models import GPT, GPTConfig, empty_caches, reference, split_model


def count(params):
    return sum(leaf.size for leaf in jax.tree.leaves(params))


@pytest.mark.parametrize(
    ("name", "weights"),
    [("gpt2", 124_439_808), ("llama-3-8b", 8_030_261_248), ("llama-3.1-405b", 405_853_388_800), ("resnet50", 25_557_032)],
)
def test_reference_models_have_the_published_number_of_weights(name, weights):
    _, (params, *_) = reference(name)
    assert count(params) == weights
    assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(params))


@pytest.mark.parametrize("changes", [{}, {"bias": True, "norm": "layer"}, {"bias": True, "activation": "swiglu", "n_kv_heads": 2}])
def test_parameter_count_counts_biases(changes):
    config = GPTConfig(d_model=16, n_layers=2, vocab_size=11, max_tokens=8, **changes)
    assert config.parameter_count() == count(split_model(GPT(config))[1])


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"positions": "learned", "bias": True, "tied_embeddings": True}, marks=pytest.mark.slow),
        {"n_kv_heads": 2, "rotary_base": 500.0},
    ],
    ids=str,
)
def test_decoding_token_by_token_gives_the_logits_of_the_whole_sequence(changes):
    config = GPTConfig(vocab_size=13, d_model=16, n_layers=2, n_heads=4, max_tokens=8, **changes)
    model = GPT(config)
    apply, params = split_model(model)
    decode = jax.jit(split_model(model, "decode")[0])
    tokens = jax.random.randint(jax.random.key(1), (3, 6), 0, 13)
    whole, caches = apply(params, tokens), empty_caches(config, 3, 8)
    for position in range(6):
        logits, caches = decode(params, tokens[:, position : position + 1], caches, position)
        np.testing.assert_allclose(logits[:, 0], whole[:, position], atol=2e-5)


def test_a_decode_step_reads_its_weights_and_its_cache_once():
    function, args = reference("gpt2", "decode", batch=2, tokens=512)
    program = trn_jax.trace(function, *args)
    params, _, caches, _ = args
    held = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves((params, caches)))
    wte = 50257 * 768 * 2
    assert 0.95 * (held - wte) < program.compulsory_bytes < 1.3 * held


def test_a_train_step_does_about_three_times_the_products_of_the_forward_pass():
    forward, train = (trn_jax.trace(*_spread(reference("resnet50", mode, batch=2))) for mode in ("forward", "train"))
    assert 2.9 * forward.flops < train.flops < 3.6 * forward.flops  # the transpose of a strided convolution multiplies zeros too
    assert forward.flops == pytest.approx(2 * 2 * 4.09e9, rel=0.01)  # 4.09 G multiply-adds per image


def test_learned_positions_and_a_new_rotary_base_are_checked():
    with pytest.raises(ModelError, match="rotary_base is 0.5; it must be greater than 1"):
        GPTConfig(rotary_base=0.5)


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        (("llama",), {}, "no reference model 'llama'. Did you mean 'llama-3-8b'"),
        (("resnet50", "decode"), {}, "resnet50 has no mode 'decode'. .*Known: forward, train"),
        (("gpt2", "trian"), {}, "Did you mean 'train'"),
        (("gpt2",), {"tokens": 4096}, "gpt2 with batch 4 and 4096 tokens cannot be; .* 1 to 1024 tokens"),
        (("resnet50",), {"batch": 0}, "give a batch of at least 1"),
        (("resnet50",), {"tokens": 128}, "neither tokens nor layers to scan; only its batch"),
        (("resnet50",), {"scan_layers": True}, "neither tokens nor layers to scan"),
    ],
)
def test_what_there_is_not_is_refused(args, kwargs, message):
    with pytest.raises(ModelError, match=message):
        reference(*args, **kwargs)


def test_decoding_refuses_scanned_layers_and_missing_caches():
    config = GPTConfig(vocab_size=13, d_model=16, n_layers=2, max_tokens=8)
    caches, token = empty_caches(config, 1, 8), jnp.zeros((1, 1), jnp.int32)
    with pytest.raises(ModelError, match="scan_layers=False"):
        GPT(config.replace(scan_layers=True)).decode(token, caches, jnp.int32(0))
    with pytest.raises(ModelError, match="1 caches for 2 layers; make them with empty_caches"):
        GPT(config).decode(token, caches[:1], jnp.int32(0))


def test_the_train_step_is_adamw():
    from trn_jax.models.reference import _adamw

    params = {"w": jax.random.normal(jax.random.key(0), (5, 4)), "b": jnp.ones(4)}
    optimizer = optax.adamw(3e-4, b1=0.9, b2=0.95, eps=1e-8, weight_decay=0.1)
    zeros = jax.tree.map(jnp.zeros_like, params)
    ours, state, theirs, moments = params, {"first": zeros, "second": zeros, "step": jnp.int32(0)}, params, optimizer.init(params)
    for seed in range(3):
        gradient = jax.tree.map(lambda leaf, seed=seed: jax.random.normal(jax.random.key(seed), leaf.shape), params)
        ours, state = _adamw(ours, gradient, state)
        updates, moments = optimizer.update(gradient, moments, theirs)
        theirs = optax.apply_updates(theirs, updates)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-6), ours, theirs)


def _spread(workload):
    function, args = workload
    return function, *args
