"""Weights of a GPT between its two layouts: a list of blocks, and one block whose weights carry a leading layer axis."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from trn_jax.models.functional import Params


def stack_blocks(params: Params) -> Params:
    """Weights of an unscanned GPT in the layout of the scanned one; values are equal bit for bit."""
    blocks = [params["blocks"][index] for index in sorted(params["blocks"])]
    return {**params, "blocks": jax.tree.map(lambda *leaves: jnp.stack(leaves), *blocks)}


def unstack_blocks(params: Params) -> Params:
    """Weights of a scanned GPT in the layout of the unscanned one: the inverse of `stack_blocks`."""
    layers = jax.tree.leaves(params["blocks"])[0].shape[0]

    def one(index: int) -> Params:
        return jax.tree.map(lambda leaf: leaf[index], params["blocks"])

    return {**params, "blocks": {index: one(index) for index in range(layers)}}
