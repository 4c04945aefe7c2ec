"""Cross entropy of next-token logits, in float32, over the targets that are real tokens.

`loss = sum_valid(log sum_v exp(logit_v) - logit_target) / max(number valid, 1)`
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

IGNORED_TARGET = -1


def cross_entropy(logits_BTV: Float[Array, "*batch V"], targets_BT: Int[Array, "*batch"]) -> Float[Array, ""]:
    """Mean negative log-likelihood in nats.

    Args:
        logits_BTV: Unnormalised log-probabilities, any floating dtype; read in float32.
        targets_BT: Token to predict at each place. A target outside [0, V), such as `IGNORED_TARGET`, counts for nothing.

    Returns:
        A float32 scalar; 0 when no target is valid. Gradient: exact, 0 at ignored places.
    """
    with jax.named_scope("loss"):
        logits = logits_BTV.astype(jnp.float32)
        vocab = logits.shape[-1]
        valid = (targets_BT >= 0) & (targets_BT < vocab)
        shifted = logits - jax.lax.stop_gradient(jnp.max(logits, axis=-1, keepdims=True))
        log_total = jnp.log(jnp.sum(jnp.exp(shifted), axis=-1))
        # A comparison with an iota picks the target's logit on the vector lanes; a gather would need a scatter in the backward pass.
        is_target = jnp.arange(vocab).reshape((1,) * targets_BT.ndim + (vocab,)) == targets_BT[..., None]
        log_likelihood = jnp.sum(jnp.where(is_target, shifted, 0.0), axis=-1) - log_total
        return -jnp.sum(jnp.where(valid, log_likelihood, 0.0)) / jnp.maximum(jnp.sum(valid.astype(jnp.float32)), 1.0)
