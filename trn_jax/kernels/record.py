"""What a kernel does, recorded once: instructions on tiles and loops around them. `run` gives it values, `lower` gives it time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from trn_jax.graph.instruction import Instruction
from trn_jax.kernels.affine import Affine
from trn_jax.kernels.tile import Buffer, Tile


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Operation:
    """One instruction.

    Attributes:
        instruction: What the engine's table computes and prices.
        function: Its mathematics: operands to a list of results.
        reads: Operands.
        writes: Results.
        accumulates: Whether it adds to what is in PSUM.
        parameters: Numbers that depend on loop indices; the function gets them behind its operands.
        lane: The engine, or the DMA queue, whose instructions run in order.
        source: User's line.
    """

    instruction: Instruction
    function: Callable[..., list[Any]]
    reads: tuple[Tile, ...]
    writes: tuple[Tile, ...]
    accumulates: bool
    parameters: tuple[Affine, ...]
    lane: str
    source: str


@dataclass(frozen=True, slots=True, eq=False)
class Allocate:
    """A buffer begins: a new one outside loops, the next of its copies inside."""

    buffer: Buffer


@dataclass(slots=True, eq=False, kw_only=True)
class Loop:
    """A loop recorded once.

    Attributes:
        name: Of its index, for messages.
        trips: Iterations.
        carries: Whether an iteration may use what an earlier one left.
        items: Its body.
        source: User's line.
    """

    name: str
    trips: int
    carries: bool
    source: str
    items: list[Item] = field(default_factory=list)


Item = Operation | Allocate | Loop


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Recording:
    """A kernel at some shapes.

    Attributes:
        name: Of the kernel.
        items: What it does.
        inputs: Buffers of its array arguments.
        outputs: Tree of the tiles that it returns.
        results: Their buffers.
        sbuf_partition_bytes: Most bytes of SBUF in use at one time in each partition.
        psum_banks: Most PSUM banks in use at one time.
    """

    name: str
    items: list[Item]
    inputs: tuple[Buffer, ...]
    outputs: Any
    results: tuple[Buffer, ...]
    sbuf_partition_bytes: int
    psum_banks: int


def walk(items: list[Item]) -> Iterator[Item]:
    """All items, those inside loops once, behind their loop."""
    for item in items:
        yield item
        if isinstance(item, Loop):
            yield from walk(item.items)
