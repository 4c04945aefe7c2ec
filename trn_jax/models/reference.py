"""Reference models at their published sizes, as functions of shapes: nothing is allocated, so any of them traces on a laptop.

function, args = reference("llama-3-8b", "train")
program = trn_jax.trace(function, *args)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from trn_jax.errors import ModelError, did_you_mean
from trn_jax.models.config import GPTConfig
from trn_jax.models.functional import split_model
from trn_jax.models.gpt import GPT, empty_caches
from trn_jax.models.loss import cross_entropy
from trn_jax.models.resnet import resnet50, weights

MODES = ("forward", "train", "decode")
IMAGE_SIDE = 224
_FIRST_DECAY, _SECOND_DECAY, _EPSILON, _WEIGHT_DECAY, _LEARNING_RATE = 0.9, 0.95, 1e-8, 0.1, 3e-4  # AdamW of the Llama papers


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Reference:
    """A model and the sizes it is used at unless others are given.

    Attributes:
        config: Of a language model; None for ResNet-50.
        batch: Sequences or images.
        tokens: Of a sequence; for decoding, the length of the cache.
        source: Where the sizes come from.
    """

    config: GPTConfig | None
    batch: int
    tokens: int
    source: str

    @property
    def modes(self) -> tuple[str, ...]:
        """What it can do, of `MODES`."""
        return MODES if self.config is not None else ("forward", "train")


REFERENCES = {
    "gpt2": Reference(
        config=GPTConfig(
            vocab_size=50257,
            d_model=768,
            n_layers=12,
            n_heads=12,
            max_tokens=1024,
            positions="learned",
            activation="gelu",
            norm="layer",
            tied_embeddings=True,
            bias=True,
        ),
        batch=4,
        tokens=1024,
        source="Radford et al. 2019 and the published checkpoint of 124M weights",
    ),
    "llama-3-8b": Reference(
        config=GPTConfig(
            vocab_size=128256,
            d_model=4096,
            n_layers=32,
            n_heads=32,
            n_kv_heads=8,
            d_ff=14336,
            max_tokens=8192,
            positions="rotary",
            rotary_base=500_000.0,
            activation="swiglu",
            norm="rms",
        ),
        batch=1,
        tokens=2048,
        source="The Llama 3 Herd of Models (arXiv 2407.21783), table 3",
    ),
    "llama-3.1-405b": Reference(
        config=GPTConfig(
            vocab_size=128256,
            d_model=16384,
            n_layers=126,
            n_heads=128,
            n_kv_heads=8,
            d_ff=53248,
            max_tokens=131072,
            positions="rotary",
            rotary_base=500_000.0,
            activation="swiglu",
            norm="rms",
        ),
        batch=1,
        tokens=8192,
        source="The Llama 3 Herd of Models (arXiv 2407.21783), table 3",
    ),
    "resnet50": Reference(config=None, batch=16, tokens=0, source="He et al. 2015; 224 by 224 images"),
}


def reference(
    name: str, mode: str = "forward", *, batch: int | None = None, tokens: int | None = None, scan_layers: bool = False
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A reference model as a function and the shapes of its arguments.

    Weights and activations are bf16; a train step is AdamW with its moments in float32.

    Args:
        name: One of `REFERENCES`.
        mode: "forward" gives logits, "train" a whole step with its new weights and moments, "decode" the logits of one more token
            with a full cache of keys and values.
        batch: Sequences or images; None takes the reference's own.
        tokens: Of a sequence, or of the cache of a decode step.
        scan_layers: Layers as one `lax.scan` instead of written out.

    Returns:
        The function and its arguments, trees of `jax.ShapeDtypeStruct`.

    Raises:
        ModelError: Unknown name or mode, a mode the model does not have, or sizes it cannot take.
    """
    if name not in REFERENCES:
        raise ModelError(f"There is no reference model {name!r}. {did_you_mean(name, REFERENCES)}")
    model = REFERENCES[name]
    if mode not in model.modes:
        raise ModelError(f"{name} has no mode {mode!r}. {did_you_mean(mode, model.modes)}")
    if model.config is None and (tokens is not None or scan_layers):
        raise ModelError(f"{name} has neither tokens nor layers to scan; only its batch can be changed.")
    batch = model.batch if batch is None else batch
    tokens = model.tokens if tokens is None else tokens
    if batch < 1 or (model.config is not None and not 1 <= tokens <= model.config.max_tokens):
        limit = "" if model.config is None else f" and 1 to {model.config.max_tokens} tokens"
        raise ModelError(f"{name} with batch {batch} and {tokens} tokens cannot be; give a batch of at least 1{limit}.")
    if model.config is None:
        return _images(mode, batch)
    config = model.config.replace(param_dtype="bfloat16", compute_dtype="bfloat16", scan_layers=scan_layers)
    return _language(config, mode, batch, tokens)


def _language(config: GPTConfig, mode: str, batch: int, tokens: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    model = nnx.eval_shape(lambda: GPT(config))
    apply, params = split_model(model)
    if mode == "forward":

        def forward(params: Any, inputs: Any) -> Any:
            return apply(params, inputs)

        return forward, (params, jax.ShapeDtypeStruct((batch, tokens), jnp.int32))
    if mode == "decode":
        decode, _ = split_model(model, "decode")
        caches = jax.eval_shape(lambda: empty_caches(config, batch, tokens))
        token, position = jax.ShapeDtypeStruct((batch, 1), jnp.int32), jax.ShapeDtypeStruct((), jnp.int32)

        def decode_step(params: Any, token: Any, kv_cache: Any, position: Any) -> Any:
            return decode(params, token, kv_cache, position)

        return decode_step, (params, token, caches, position)

    def loss(params: Any, inputs: Any, targets: Any) -> Any:
        return cross_entropy(apply(params, inputs), targets)

    sequence = jax.ShapeDtypeStruct((batch, tokens), jnp.int32)
    return _train_step(loss, params, sequence, sequence)


def _images(mode: str, batch: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    params = jax.eval_shape(lambda: weights("bfloat16"))
    images = jax.ShapeDtypeStruct((batch, IMAGE_SIDE, IMAGE_SIDE, 3), jnp.bfloat16)
    if mode == "forward":
        return resnet50, (params, images)

    def loss(params: Any, images: Any, labels: Any) -> Any:
        return cross_entropy(resnet50(params, images), labels)

    return _train_step(loss, params, images, jax.ShapeDtypeStruct((batch,), jnp.int32))


def _train_step(loss: Callable[..., Any], params: Any, inputs: Any, targets: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    moments = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.float32), params)
    state = {"first": moments, "second": moments, "step": jax.ShapeDtypeStruct((), jnp.int32)}

    def train_step(params: Any, optimizer_state: Any, inputs: Any, targets: Any) -> Any:
        value, gradient = jax.value_and_grad(loss)(params, inputs, targets)
        with jax.named_scope("optimizer"):
            params, optimizer_state = _adamw(params, gradient, optimizer_state)
        return params, optimizer_state, value

    return train_step, (params, state, inputs, targets)


def _adamw(params: Any, gradient: Any, state: Any) -> tuple[Any, Any]:
    """One step of AdamW, weight by weight from beginning to end, so that no tree of intermediate results is ever held."""
    step = state["step"] + 1
    first_share, second_share = (1.0 - decay ** step.astype(jnp.float32) for decay in (_FIRST_DECAY, _SECOND_DECAY))

    def updated(weight: Any, slope: Any, first: Any, second: Any) -> tuple[Any, Any, Any]:
        wide, slope = weight.astype(jnp.float32), slope.astype(jnp.float32)
        first = _FIRST_DECAY * first + (1.0 - _FIRST_DECAY) * slope
        second = _SECOND_DECAY * second + (1.0 - _SECOND_DECAY) * jnp.square(slope)
        change = first / first_share / (jnp.sqrt(second / second_share) + _EPSILON) + _WEIGHT_DECAY * wide
        return (wide - _LEARNING_RATE * change).astype(weight.dtype), first, second

    leaves, tree = jax.tree.flatten(params)
    results = [updated(*each) for each in zip(leaves, *map(jax.tree.leaves, (gradient, state["first"], state["second"])), strict=True)]
    updated_params, first, second = (jax.tree.unflatten(tree, column) for column in zip(*results, strict=True))
    return updated_params, {"first": first, "second": second, "step": step}
