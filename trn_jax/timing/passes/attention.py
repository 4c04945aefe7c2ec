"""Streamed attention: a product joins the loop over rows that makes its operand, if the other operand can stay in SBUF meanwhile.

Q K^T -> row maximum -> exp and row sum -> transpose -> P V      one pass over the rows of Q; scores and probabilities are never whole

Only operands that lie with their rows on partitions, as a softmax leaves them, are streamed (see `timing.row_bound`).

Basis: documented (published attention kernels work through one tile of queries after the other).
"""

from __future__ import annotations

from dataclasses import replace

from trn_jax.timing.stream import Step, Stream, each_step


def stream_products(stream: Stream) -> Stream:
    """Lets every product that can work through an operand's rows do so in the loop that makes them."""
    return replace(stream, items=each_step(stream.items, _streaming))


def _streaming(step: Step) -> Step:
    return step if step.streamable < 0 else replace(step, streamed=step.streamable)
