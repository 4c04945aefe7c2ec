"""Attention rows: which of its many published spellings of sizes is which, causal or not, forward or backward.

operations, not causal: forward 4 B H S T D (2 products), backward 10 (5 products, scores once more), both 14; causal: half of them
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import partial
from typing import Any

from trn_jax.validation import functions as f
from trn_jax.validation.flash import attention_backward, causal_attention_backward
from trn_jax.validation.measurement import Measurement
from trn_jax.validation.sizes import Missing, Sizes, numbers_of
from trn_jax.validation.workload import Workload, made

BATCH = ("batch", "batch_size", "bs", "B", "b", "global_batch")
HEADS = ("heads", "n_heads", "num_heads", "nheads", "q_heads", "num_q_heads", "QH", "H", "h")
KV_HEADS = ("kv_heads", "n_kv_heads", "num_kv_heads", "nheads_k", "KH", "kvh")
TOKENS = ("seq_len", "sequence", "sequence_length", "seq", "seqlen", "seqlen_q", "seq_q", "q_len", "tokens", "S", "s", "N", "M")
KV_TOKENS = ("seqlen_k", "seqlen_kv", "seq_k", "seq_kv", "kv_len", "k_len", "context")
DEPTH = ("head_dim", "headdim", "d_head", "dim", "D", "d")
CAUSAL = ("causal", "is_causal", "use_causal_mask", "causal_mask")
_NOT_CAUSAL = re.compile(r"(non|not|no|without)[- _]?(a )?causal|causal\w*['\"]?\s*[:=]\s*['\"]?(false|no|0)\b")
_BOTH = re.compile(r"(fwd|forward)\W*(and)?[\W_]*(bwd|backward)")
FORWARD, BACKWARD, BOTH = "", "_backward", "_forward_backward"
OPERATIONS = {FORWARD: 4.0, BACKWARD: 10.0, BOTH: 14.0}


def attention_of(row: Measurement, s: Sizes) -> Workload:
    """Named sizes, or bare ones in the order (batch, heads, tokens, depth), from the right; of the last two the smaller is the depth.

    Raises:
        Missing: A size that is not there, or heads that do not fit each other.
    """
    batch, heads, kv_heads, tokens, kv_tokens, depth = _sizes(row, s)
    if heads % kv_heads:
        raise Missing(f"a meaning of {heads} heads over {kv_heads} of keys and values")
    causal, passes = _is_causal(row), _passes(row)
    if causal and kv_tokens < tokens:
        raise Missing(f"a meaning of a causal mask over {tokens} queries and {kv_tokens} keys")
    q, kv = (batch * heads, tokens, depth), (batch * kv_heads, kv_tokens, depth)
    arguments = (q, kv, kv) if passes == FORWARD else (q, kv, kv, q, q, (*q[:2], 1))
    operations = OPERATIONS[passes] * batch * heads * tokens * kv_tokens * depth / (2 if causal else 1)
    return made(row, ("causal_attention" if causal else "attention") + passes, FUNCTIONS[causal, passes], *arguments, operations=operations)


def _forward_backward(forward: Callable[..., Any], backward: Callable[..., Any], *args: Any) -> Any:
    """Two kernels; the scores are computed in both."""
    return forward(*args[:3]), backward(*args)


FUNCTIONS = {
    (False, FORWARD): f.attention,
    (True, FORWARD): f.causal_attention,
    (False, BACKWARD): attention_backward,
    (True, BACKWARD): causal_attention_backward,
    (False, BOTH): partial(_forward_backward, f.attention, attention_backward),
    (True, BOTH): partial(_forward_backward, f.causal_attention, causal_attention_backward),
}


def _sizes(row: Measurement, s: Sizes) -> tuple[int, ...]:
    """Batch, heads, heads of keys, tokens, tokens of keys, depth."""
    heads, bare = s.either(HEADS, 1), numbers_of(row)
    depth = s.either(DEPTH, 0) or (s["hidden"] // heads if "hidden" in s else 0)
    if not depth and len(bare) in (2, 3, 4) and not any(name in s for name in TOKENS):
        *leading, tokens, depth = bare
        heads = math.prod(leading)
        return 1, heads, heads, max(tokens, depth), max(tokens, depth), min(tokens, depth)
    depth = depth or s.first(*DEPTH)
    tokens = s.first(*TOKENS)
    return s.either(BATCH, 1), heads, s.either(KV_HEADS, heads), tokens, s.either(KV_TOKENS, tokens), depth


def _is_causal(row: Measurement) -> bool:
    given = [f"{column}={row.text(column)}" for column in CAUSAL if row.text(column)]
    text = " ".join([row.workload, row.text("shape"), *given]).lower()
    return "causal" in text and not _NOT_CAUSAL.search(text)


def _passes(row: Measurement) -> str:
    text = f"{row.workload} {row.text('shape')} {row.text('metric')}".lower()
    if _BOTH.search(text):
        return BOTH
    return BACKWARD if re.search(r"backward|bwd", text) else FORWARD
