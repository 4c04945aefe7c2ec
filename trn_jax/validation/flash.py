"""The backward pass of flash attention (Dao et al. 2022, algorithm 4), block by block of keys and of queries.

p = exp(scale q k^T - lse)    delta = rowsum(out_bar out)    ds = p (out_bar v^T - delta)
v_bar += p^T out_bar          q_bar += scale ds k            k_bar += scale ds^T q
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax.numpy as jnp
from jax import lax

BLOCK = 1024  # tokens: what a kernel holds of p and ds then fits in SBUF
CAUSAL_PARTS = 8  # of the keys: each is seen by the queries from its beginning on; the mask inside a part is left out


def attention_backward(q_HSD: Any, k_HTD: Any, v_HTD: Any, out_bar_HSD: Any, out_HSD: Any, lse_HS1: Any, *, parts: int = 1) -> Any:
    """Cotangents of q, k and v, head after head of k and v; q may have several heads for each.

    Args:
        q_HSD: Queries.
        k_HTD: Keys.
        v_HTD: Values.
        out_bar_HSD: Cotangent of the result.
        out_HSD: The result of the forward pass.
        lse_HS1: Its logarithms of the sums of exponentials.
        parts: 1 without a mask; more for a causal one, whose last query sees all keys.

    Returns:
        For every head of k and v: parts of q_bar, of k_bar and of v_bar.
    """
    heads = k_HTD.shape[0]
    of_queries = [x.reshape(heads, -1, *x.shape[1:]) for x in (q_HSD, out_bar_HSD, out_HSD, lse_HS1)]
    return lax.map(partial(_one_head, parts=min(parts, k_HTD.shape[1])), (*of_queries, k_HTD, v_HTD))


causal_attention_backward = partial(attention_backward, parts=CAUSAL_PARTS)


def _one_head(args: Any, parts: int) -> Any:
    q_GSD, out_bar_GSD, out_GSD, lse_GS1, k_TD, v_TD = args
    scale, tokens, keys = 1 / math.sqrt(q_GSD.shape[-1]), q_GSD.shape[1], k_TD.shape[0]
    delta_GS1 = jnp.sum(out_bar_GSD * out_GSD, axis=-1, keepdims=True)
    starts = [part * (keys // parts) for part in range(parts)]
    firsts = [max(0, start - (keys - tokens)) for start in starts]  # query that is the first to see the part
    q_bars, kv_bars = [], []
    for first, start, end in zip(firsts, starts, [*starts[1:], keys], strict=True):
        queries = [_blocks(x[:, first:].reshape(-1, x.shape[-1])) for x in (q_GSD, out_bar_GSD, lse_GS1, delta_GS1)]
        blocks = _blocks(k_TD[start:end]), _blocks(v_TD[start:end])
        q_bar_NSD, kv_bar = lax.scan(partial(_of_keys, queries, scale), jnp.zeros_like(queries[0]), blocks)
        q_bars.append(scale * q_bar_NSD.reshape(q_GSD.shape[0], tokens - first, -1))
        kv_bars.append(kv_bar)
    spans = [(first, last) for first, last in zip(firsts, [*firsts[1:], tokens], strict=True) if last > first]
    totals = [sum(bar[:, a - first : b - first] for first, bar in zip(firsts, q_bars, strict=True) if first <= a) for a, b in spans]
    return totals, [scale * k_bar for k_bar, _ in kv_bars], [v_bar for _, v_bar in kv_bars]


def _of_keys(queries: list[Any], scale: float, q_bar_NSD: Any, kv: Any) -> Any:
    """One block of keys against all queries: adds to the cotangents of these, and makes its own."""
    k_TD, v_TD = kv

    def of_queries(bars: Any, block: Any) -> Any:
        q_SD, out_bar_SD, lse_S1, delta_S1 = block
        p_ST = jnp.exp(scale * (q_SD @ k_TD.T) - lse_S1)
        ds_ST = p_ST * (out_bar_SD @ v_TD.T - delta_S1)
        k_bar_TD, v_bar_TD = bars
        return (k_bar_TD + ds_ST.T @ q_SD, v_bar_TD + p_ST.T @ out_bar_SD), ds_ST @ k_TD

    bars, q_bars_NSD = lax.scan(of_queries, (jnp.zeros_like(k_TD), jnp.zeros_like(v_TD)), tuple(queries))
    return q_bar_NSD + q_bars_NSD, bars


def _blocks(x_SD: Any) -> Any:
    """Of the largest number of tokens up to `BLOCK` that divides them; all of them if that would be fewer than a tile of 128."""
    tokens = x_SD.shape[0]
    size = max(n for n in range(1, min(BLOCK, tokens) + 1) if tokens % n == 0)
    size = tokens if size < min(128, tokens) else size
    return x_SD.reshape(tokens // size, size, -1)
