"""The mathematics of published kernels as plain JAX functions, written from the formulas their sources document."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

EPSILON = 1e-5


def matmul(x: Any, w: Any) -> Any:
    """[..., M, K] by [..., K, N]."""
    return x @ w


def matmul_int8(x: Any, w: Any) -> Any:
    """Integers go through floating point: the Tensor Engine has no integer product (NKI reference, data types)."""
    return x.astype(jnp.bfloat16) @ w.astype(jnp.bfloat16)


def transpose_matmul(x_KM: Any, w: Any) -> Any:
    """Left operand given contraction first."""
    return x_KM.T @ w


def rms_norm(x: Any) -> Any:
    """x over its root mean square."""
    return x * lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + EPSILON)


def rmsnorm_matmul(x: Any, w: Any) -> Any:
    """A norm before a product; the norm scales rows, so the product of the plain x is scaled instead, as kernels do."""
    return (x @ w) * lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + EPSILON)


def add_rmsnorm_matmul(x: Any, z: Any, gain: Any, w: Any) -> Any:
    """Residual sum, norm with gain, product."""
    return (rms_norm(x + z) * gain) @ w


def matmul_add_rmsnorm(x: Any, w: Any, z: Any, gain: Any) -> Any:
    """Product, residual sum, norm with gain."""
    return rms_norm(x @ w + z) * gain


def swiglu(x: Any, w_up: Any, w_gate: Any, w_down: Any) -> Any:
    """The gated feed-forward block of Llama."""
    return (jax.nn.silu(x @ w_gate) * (x @ w_up)) @ w_down


def lora(x: Any, w: Any, a: Any, b: Any) -> Any:
    """A product with a low-rank addition to its weights."""
    return x @ w + (x @ a) @ b


def matmul_softmax(x: Any, w: Any) -> Any:
    """Row softmax of a product."""
    return jax.nn.softmax(x @ w, axis=-1)


def attention(q_HSD: Any, k_HTD: Any, v_HTD: Any) -> Any:
    """Softmax attention without a mask; q may have several heads for each of k and v."""
    groups = q_HSD.shape[0] // k_HTD.shape[0]
    q_GHSD = q_HSD.reshape(groups, k_HTD.shape[0], *q_HSD.shape[1:])
    scores = jnp.einsum("ghsd,htd->ghst", q_GHSD, k_HTD) / math.sqrt(q_HSD.shape[-1])
    return jnp.einsum("ghst,htd->ghsd", jax.nn.softmax(scores, axis=-1), v_HTD)


def causal_attention(q_HSD: Any, k_HTD: Any, v_HTD: Any, parts: int = 8) -> Any:
    """Attention of each part of the queries to the keys up to its end; the mask inside the last part of the keys is left out.

    The last query sees all keys.
    """
    return [attention(q_HSD[:, start:end], k_HTD[:, :seen], v_HTD[:, :seen]) for start, end, seen in _parts(q_HSD, k_HTD, parts)]


def _parts(q_HSD: Any, k_HTD: Any, parts: int) -> list[tuple[int, int, int]]:
    """First and last query of each part, and the keys that it sees."""
    queries, keys = q_HSD.shape[1], k_HTD.shape[1]
    parts = min(parts, queries)
    ends = [(part + 1) * (queries // parts) for part in range(parts - 1)] + [queries]
    return [(start, end, keys - queries + end) for start, end in zip([0, *ends[:-1]], ends, strict=True)]


def adamw(weight: Any, gradient: Any, m: Any, v: Any) -> Any:
    """One AdamW step that returns the new weights only."""
    m = 0.9 * m + 0.1 * gradient
    v = 0.999 * v + 0.001 * jnp.square(gradient)
    return (1 - 1e-5) * weight - 0.01 * m / (jnp.sqrt(1000.0 * v) + 1e-8)


def silu(x: Any) -> Any:
    """x times its logistic."""
    return jax.nn.silu(x)


def softmax(x: Any) -> Any:
    """Over the last axis."""
    return jax.nn.softmax(x, axis=-1)


def layer_norm(x: Any, gain: Any, bias: Any) -> Any:
    """Mean and variance over the last axis."""
    mean = jnp.mean(x, axis=-1, keepdims=True)
    centred = x - mean
    return centred * lax.rsqrt(jnp.mean(jnp.square(centred), axis=-1, keepdims=True) + EPSILON) * gain + bias


def rope(x_DS: Any, cos_FS: Any, sin_FS: Any) -> tuple[Any, Any]:
    """Rotary embedding of both halves of the head dimension, which is on partitions."""
    half = x_DS.shape[0] // 2
    a, b = x_DS[:half], x_DS[half:]
    return a * cos_FS - b * sin_FS, a * sin_FS + b * cos_FS


def mamba(delta_BCT: Any, u_BCT: Any, a_BCN: Any, b_NT: Any, c_NT: Any) -> Any:
    """The selective scan: state_t = exp(delta_t a) state_{t-1} + delta_t u_t b_t, out_t = sum over states of c_t state_t.

    B blocks of C channels, one after the other; N states of each channel.
    """

    def one_block(block: Any) -> Any:
        delta_CT, u_CT, a_CN = block
        delta_u_CT = delta_CT * u_CT
        total_CT = jnp.zeros_like(u_CT)
        for n in range(a_CN.shape[1]):
            decay_CT = jnp.exp(delta_CT * a_CN[:, n : n + 1])
            entering_CT = delta_u_CT * b_NT[n : n + 1]
            _, states_TC = lax.scan(_recur, jnp.zeros_like(a_CN[:, 0]), (decay_CT.T, entering_CT.T))
            total_CT = total_CT + states_TC.T * c_NT[n : n + 1]
        return total_CT

    return lax.map(one_block, (delta_BCT, u_BCT, a_BCN))


def _recur(state_C: Any, decay_and_input: Any) -> tuple[Any, Any]:
    decay_C, entering_C = decay_and_input
    state_C = decay_C * state_C + entering_C
    return state_C, state_C


def conv2d(x_NCHW: Any, w_OIHW: Any) -> Any:
    """No padding, stride 1."""
    return lax.conv_general_dilated(x_NCHW, w_OIHW, (1, 1), "VALID")


def conv2d_maxpool(x_NCHW: Any, w_OIHW: Any) -> Any:
    """A convolution and the maximum of every 2 by 2 outputs."""
    out = conv2d(x_NCHW, w_OIHW)
    n, c, h, w = out.shape
    out = out[:, :, : h // 2 * 2, : w // 2 * 2]
    return out.reshape(n, c, h // 2, 2, w // 2, 2).max((3, 5))


def depthwise_conv1d(x_NCW: Any, w_CK: Any) -> Any:
    """Each channel with its own taps, no padding: a shifted multiply and add for each tap."""
    width = x_NCW.shape[-1] - w_CK.shape[-1] + 1
    return sum(x_NCW[..., k : k + width] * w_CK[None, :, k, None] for k in range(w_CK.shape[-1]))


def vector_add(x: Any, y: Any) -> Any:
    """x + y."""
    return x + y


def stream_read(x: Any) -> Any:
    """Reads everything; the maximum is the cheapest thing that needs all of it."""
    return jnp.max(x, axis=-1)


def transformer_block(x: Any, w_qkv: Any, w_o: Any, w_gate: Any, w_up: Any, w_down: Any, heads: int) -> Any:
    """A Llama block without positions: norm, attention, norm, gated feed-forward."""
    hidden = x.shape[-1]
    q, k, v = jnp.split(rms_norm(x) @ w_qkv, 3, axis=-1)
    by_head = lambda t: t.reshape(-1, heads, hidden // heads).swapaxes(0, 1)
    mixed = attention(by_head(q), by_head(k), by_head(v))[0]
    x = x + mixed.swapaxes(0, 1).reshape(x.shape) @ w_o
    return x + swiglu(rms_norm(x), w_up, w_gate, w_down)
