"""What a matrix product reads from HBM a second time, because SBUF cannot hold an operand: pieces of a curve over SBUF size.

With a and b operand bytes, S bytes of SBUF of which a kernel keeps the share c for one block:

    one operand's block of rows resident      a b / (c S) - max(a, b)                 nothing once min(a, b) <= c S
    a square block of the result resident     a (n / B - 1) + b (m / B - 1)           B = sqrt(c S / 4) fp32 sums per side

The smaller of the two is cut into straight pieces, min(bytes, slope max(0, reuse - S)), which is what a DMA row can say.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from trn_jax.graph.instruction import Work
from trn_jax.timing.residency import Room
from trn_jax.units import MIB

BLOCK_SHARE = 0.28  # of SBUF in one block. Basis: measured (published kernels keep 22 to 33 %)
KNOTS_BYTES = (4 * MIB, 12 * MIB, 24 * MIB, 32 * MIB, 128 * MIB)  # SBUF sizes where the pieces meet
ACCUMULATOR_BYTES = 4


class Piece(NamedTuple):
    """Bytes that are read again where SBUF is smaller than `room`."""

    size_bytes: float
    room: Room


def reread_bytes(work: Work, lhs_bytes: float, rhs_bytes: float, sbuf_bytes: float) -> float:
    """Bytes of both operands read more than once by a blocked product with this much SBUF."""
    a, b, block = lhs_bytes / work.batch, rhs_bytes / work.batch, BLOCK_SHARE * sbuf_bytes
    if min(a, b) <= block:
        return 0.0
    side = math.sqrt(block / ACCUMULATOR_BYTES)
    rows = a * b / block - max(a, b)
    square = a * max(0.0, work.n / side - 1) + b * max(0.0, work.m / side - 1)
    return work.batch * min(rows, square)


def reread_pieces(work: Work, lhs_bytes: float, rhs_bytes: float, resident_bytes: float) -> list[Piece]:
    """The curve of `reread_bytes` in straight pieces, exact at the knots and at 0 from `resident_bytes` on.

    Args:
        work: Sizes of the product.
        lhs_bytes: Bytes of the left operand, the whole batch.
        rhs_bytes: Bytes of the right operand.
        resident_bytes: SBUF from which an operand is on chip anyway; infinite if both come from HBM.

    Returns:
        At most one piece per knot, from small SBUF to large; none if the smaller operand fits into the smallest block, or is empty.
    """
    if not work.batch:
        return []
    end = min(min(lhs_bytes, rhs_bytes) / work.batch / BLOCK_SHARE, resident_bytes)
    knots = [knot for knot in KNOTS_BYTES if knot < end]
    if not knots:
        return []
    values = [reread_bytes(work, lhs_bytes, rhs_bytes, knot) for knot in knots] + [0.0]
    knots.append(end)
    return [
        Piece(drop, Room(knots[i + 1], drop / (knots[i + 1] - knots[i])))
        for i in range(len(knots) - 1)
        if (drop := values[i] - values[i + 1]) > 0
    ]
