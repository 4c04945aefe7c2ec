"""Text written by a model, one byte after the other, the same for the same weights and seed.

`p(next) = softmax(logits / temperature)` over the `top_k` largest logits; the draw inverts the cumulative sum of p at a uniform number
that depends on (seed, position) alone.
"""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, UInt32

from trn_jax.errors import TrainingError

Logits = Callable[[Int[Array, "1 T"], UInt32[Array, ""]], Float[Array, "1 T V"]]


def pick(logits_V: Float[np.ndarray, " V"], *, temperature: float, top_k: int | None, seed: int, position: int) -> int:
    """Draws one token.

    Args:
        logits_V: Logits of the next token.
        temperature: Above 1 flatter, below 1 sharper; 0 takes the largest logit.
        top_k: Only the k largest logits can be drawn; None allows all.
        seed: Seed of the whole sample.
        position: Place in the sample; another place draws another number.

    Raises:
        TrainingError: Temperature is negative or `top_k` below one.
    """
    if not temperature >= 0.0:
        raise TrainingError(f"temperature is {temperature!r}; it must be at least 0 (0 always takes the most likely byte).")
    if top_k is not None and top_k < 1:
        raise TrainingError(f"top_k is {top_k!r}; it must be at least 1, or None for all bytes.")
    logits = np.asarray(logits_V, np.float64)
    if temperature == 0.0:
        return int(np.argmax(logits))
    order = np.argsort(-logits, kind="stable")[:top_k]
    weights = np.exp((logits[order] - logits[order[0]]) / temperature)
    uniform = float(np.random.Philox(key=np.asarray([seed, position], np.uint64)).random_raw() >> 11) * 2.0**-53
    cumulative = np.cumsum(weights)
    return int(order[np.searchsorted(cumulative, uniform * cumulative[-1], side="right")])


def sample(
    logits: Logits, *, max_tokens: int, count: int, prompt: bytes = b"\n", temperature: float = 0.8, top_k: int | None = 40, seed: int = 0
) -> bytes:
    """Continues a prompt.

    Args:
        logits: Logits of a (1, max_tokens) batch, and the position as a seed for stochastic rounding; jitted by the caller.
        max_tokens: Length of the window that the model sees; earlier bytes fall out of it.
        count: Bytes to write.
        prompt: Bytes to begin with, at least one.
        temperature: See `pick`.
        top_k: See `pick`.
        seed: Same seed, same text.

    Returns:
        The new bytes, without the prompt.
    """
    written = bytearray(prompt)
    for position in range(count):
        window = np.frombuffer(bytes(written[-max_tokens:]), np.uint8)
        # Padding comes after the last byte, where a causal model cannot see it.
        tokens_1T = np.zeros((1, max_tokens), np.int32)
        tokens_1T[0, : window.size] = window
        logits_1TV = np.asarray(logits(jnp.asarray(tokens_1T), jnp.uint32(position)))
        written.append(pick(logits_1TV[0, window.size - 1], temperature=temperature, top_k=top_k, seed=seed, position=position))
    return bytes(written[len(prompt) :])
