"""ResNet-50 (He et al. 2015, with the stride in the 3x3 convolution), as a pure function of a dictionary of weights.

    stem 7x7/2, max pool 3x3/2        bottleneck: 1x1, 3x3, 1x1 and a shortcut, [3, 4, 6, 3] times        mean, linear

Arrays are NHWC, filters HWIO. Norms use the statistics of the batch, as training does.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from trn_jax.models.functional import Params

STAGES = ((3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2))  # blocks, width of the 3x3, stride of the first block
EXPANSION = 4  # width of a block's result over that of its 3x3
STEM_WIDTH = 64
_EPS = 1e-5


def weights(dtype: Any = "float32", *, classes: int = 1000, seed: int = 0) -> Params:
    """Initial weights: convolutions He normal, norms the identity, the classifier 0. Under `jax.eval_shape` only their shapes."""
    keys = iter(jax.random.split(jax.random.key(seed), 1 + 4 * sum(blocks for blocks, _, _ in STAGES)))

    def conv(size: int, inputs: int, outputs: int) -> Params:
        filters = jax.random.normal(next(keys), (size, size, inputs, outputs)) * (2 / (size * size * inputs)) ** 0.5
        return {"filters": filters.astype(dtype), "scale": jnp.ones(outputs, dtype), "bias": jnp.zeros(outputs, dtype)}

    params: Params = {"stem": conv(7, 3, STEM_WIDTH)}
    inputs = STEM_WIDTH
    for stage, (blocks, width, _) in enumerate(STAGES):
        for block in range(blocks):
            outputs = width * EXPANSION
            layers = {"reduce": conv(1, inputs, width), "spatial": conv(3, width, width), "expand": conv(1, width, outputs)}
            if block == 0:
                layers["shortcut"] = conv(1, inputs, outputs)
            params[f"stage{stage}_block{block}"] = layers
            inputs = outputs
    params["head"] = {"kernel": jnp.zeros((inputs, classes), dtype), "bias": jnp.zeros(classes, dtype)}
    return params


def resnet50(params: Params, images_BHWC: Float[Array, "B H W 3"]) -> Float[Array, "B classes"]:
    """Float32 logits of a batch of images, computed in their dtype.

    Args:
        params: From `weights`.
        images_BHWC: Usually 224 by 224.
    """
    with jax.named_scope("stem"):
        x = jax.nn.relu(_conv(images_BHWC, params["stem"], 2))
        x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), ((0, 0), (1, 1), (1, 1), (0, 0)))
    for stage, (blocks, _, stride) in enumerate(STAGES):
        for block in range(blocks):
            name = f"stage{stage}_block{block}"
            with jax.named_scope(name):
                x = _bottleneck(x, params[name], stride if block == 0 else 1)
    with jax.named_scope("head"):
        mean_BC = jnp.mean(x.astype(jnp.float32), axis=(1, 2)).astype(x.dtype)
        logits = jnp.dot(mean_BC, params["head"]["kernel"].astype(x.dtype)) + params["head"]["bias"].astype(x.dtype)[None]
        return logits.astype(jnp.float32)


def _bottleneck(x: Array, layers: Params, stride: int) -> Array:
    y = jax.nn.relu(_conv(x, layers["reduce"], 1))
    y = jax.nn.relu(_conv(y, layers["spatial"], stride))
    shortcut = _conv(x, layers["shortcut"], stride) if "shortcut" in layers else x
    return jax.nn.relu(_conv(y, layers["expand"], 1) + shortcut)


def _conv(x: Array, layer: Params, stride: int) -> Array:
    """Convolution and batch norm, padded so that stride 1 keeps the size."""
    filters = layer["filters"].astype(x.dtype)
    pad = (filters.shape[0] - 1) // 2
    y = lax.conv_general_dilated(x, filters, (stride, stride), ((pad, pad), (pad, pad)), dimension_numbers=("NHWC", "HWIO", "NHWC"))
    wide = y.astype(jnp.float32)
    scale_111C, bias_111C = (layer[name].astype(jnp.float32)[None, None, None] for name in ("scale", "bias"))
    mean_111C = jnp.mean(wide, axis=(0, 1, 2), keepdims=True)
    variance_111C = jnp.mean(jnp.square(wide), axis=(0, 1, 2), keepdims=True) - jnp.square(mean_111C)
    gain_111C = lax.rsqrt(variance_111C + _EPS) * scale_111C
    return (wide * gain_111C + (bias_111C - mean_111C * gain_111C)).astype(x.dtype)
