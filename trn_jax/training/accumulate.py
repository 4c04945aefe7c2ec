"""Gradient accumulation: a batch in equal parts, one after the other, with the memory of one part.

gradient = (g_0 + g_1 + ... + g_{N-1}) / N        g_i: gradient of the mean loss of part i
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from trn_jax.errors import TrainingError

Sums = TypeVar("Sums")


def accumulate(
    function: Callable[[Int[Array, "b T1"], Int[Array, ""]], Sums], batch_BT1: Int[Array, "B T1"], parts: int, *, dtype: str = "float32"
) -> Sums:
    """Mean over the parts of a batch of `function(part, index)`.

    Args:
        function: Loss and gradients of a part; its index may seed dropout.
        batch_BT1: Sequences.
        parts: How many parts; B is a multiple of it.
        dtype: Of the sums. In bf16 a sum of equal terms stops growing at 256 of them: float32 unless that is what is to be seen.

    Returns:
        Arrays like those of `function`, in `dtype`.

    Raises:
        TrainingError: The batch does not divide.
    """
    size, tokens = batch_BT1.shape
    if parts < 1 or size % parts:
        raise TrainingError(f"A batch of {size} sequences does not divide into {parts} parts; make the batch size a multiple of it.")
    pieces = batch_BT1.reshape(parts, size // parts, tokens)
    # Made of the batch: under shard_map the sums must count as different on every rank, as the batch does.
    nothing = (batch_BT1[0, 0] * 0).astype(dtype)
    shapes = jax.eval_shape(function, pieces[0], jnp.int32(0))
    start = jax.tree.map(lambda like: jnp.broadcast_to(nothing, like.shape), shapes)

    def add(sums: Sums, each: tuple[Array, Array]) -> tuple[Sums, None]:
        terms = function(*each)
        with jax.named_scope("accumulation"):
            return jax.tree.map(lambda total, term: total + term.astype(dtype), sums, terms), None

    sums, _ = jax.lax.scan(add, start, (pieces, jnp.arange(parts)))
    with jax.named_scope("accumulation"):
        return jax.tree.map(lambda total: total / jnp.asarray(parts, dtype), sums)
