"""The Stream: the instructions of a program in order, over numbered data, before any memory traffic is added.

Graph -> flatten -> Stream -> live -> passes -> Stream -> memory -> rows of a Program

A Stream has no calls, views or branches any more, only steps and the loops that are too long to unroll. Passes rewrite it
without seeing a value, so they cannot change one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from trn_jax.graph.instruction import Instruction

# These read operands that lie in HBM where they are, and write program outputs there: DMA, indirect DMA, collectives.
IN_PLACE_KINDS = frozenset({"dma_copy", "dma_transpose", "gather", "scatter"})


class Datum(NamedTuple):
    """One array of the stream.

    Attributes:
        size_bytes: Bytes in memory.
        row_bytes: Contiguous bytes in one partition, as a good kernel moves them.
        place: "hbm" (program inputs and captured arrays), "sbuf", "psum" (a product not yet
            evacuated), "tiles" (an operand that comes from HBM tile by tile as its product needs it), or "slice" (what one iteration
            of a loop takes from a scanned array).
    """

    size_bytes: float
    row_bytes: float
    place: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One instruction.

    Attributes:
        instruction: What runs.
        reads: Data it reads, by number, each once.
        writes: Data it makes, or changes in place.
        after: Data it waits for without reading it: the outcome of a condition.
        chain: Element-wise chain it belongs to (see `graph.chains`), -1 outside any.
        elementwise: Whether it is one element-wise operation on its own.
        tensors: How many operands vary along the innermost axis; the others are constants or one number per row.
        equal_rows: Whether an operand is the same in all rows, such as a bias or the gain of a norm.
        rows: Rows of the largest array it reads or makes: everything but the innermost axis.
        streamable: Of a product: the operand whose rows it could work through tile by tile, the other one staying in SBUF; else -1.
        streamed: The same where it does so, in the loop that makes those rows.
        columns: Of a product: whether it sums over the innermost axis of its first and of its second operand.
        locality: How it can share a loop over tiles of rows with its neighbours (see `groups`): "head" starts one, "rows" works
            row by row, "sink" reads row by row but its result is complete only after the last row, "" needs whole arrays.
        pinned: It has an effect, so it stays even if nobody reads what it writes.
        functions: What it does, one name per operation fused into it.
        sources: User's lines, one per operation fused into it.
        scopes: Their jax.named_scope paths.
    """

    instruction: Instruction
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    after: tuple[int, ...] = ()
    chain: int = -1
    elementwise: bool = False
    tensors: int = 1
    equal_rows: bool = False
    rows: float
    streamable: int = -1
    streamed: int = -1
    columns: tuple[bool, bool] = (False, False)
    locality: str = ""
    pinned: bool = False
    functions: tuple[str, ...]
    sources: tuple[str, ...]
    scopes: tuple[str, ...]

    @property
    def in_place(self) -> bool:
        """Whether it reads operands that are in HBM without a load."""
        return self.instruction.kind in IN_PLACE_KINDS or self.instruction.engine == "collective"


class Carry(NamedTuple):
    """One carried value of a loop: data before the loop, inside an iteration, for the next one, and after the loop."""

    before: tuple[int, ...]
    inside: int
    following: tuple[int, ...]
    after: int


class Sliced(NamedTuple):
    """A scanned array and the part of it that one iteration takes."""

    whole: tuple[int, ...]
    part: int


class Stacked(NamedTuple):
    """What one iteration makes, and the array these are stacked to."""

    part: tuple[int, ...]
    whole: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A loop that is not unrolled: one iteration, and how often it runs."""

    items: tuple[Step | Block, ...]
    trips: int
    carries: tuple[Carry, ...]
    sliced: tuple[Sliced, ...]
    stacked: tuple[Stacked, ...]
    condition: tuple[int, ...]  # data that decides whether another iteration runs; empty for a scan
    source: str
    scope: str

    @property
    def results(self) -> tuple[int, ...]:
        """Data the loop makes for the stream around it."""
        return (*(carry.after for carry in self.carries), *(stack.whole for stack in self.stacked))


Items = tuple[Step | Block, ...]


def rough_work(item: Step | Block) -> float:
    """Rough size of an item, only to compare branches: cycles of an array of 128 by 128 and lanes of 128."""
    if isinstance(item, Block):
        return item.trips * sum(map(rough_work, item.items))
    work = item.instruction.work
    return 64.0 + work.batch * work.m * work.k * work.n / 128**2 + work.elements * work.operands / 128 + work.bytes / 128


def each_step(items: Items, change: Callable[[Step], Step]) -> Items:
    """The items with every step changed, those of loops included."""
    return tuple(replace(item, items=each_step(item.items, change)) if isinstance(item, Block) else change(item) for item in items)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """A program before memory traffic.

    Attributes:
        items: Steps and loops in program order.
        data: All arrays; their position is their number.
        regions: For data that is a static slice of other data, that other data.
        outputs: Data that has to be in HBM at the end, with its bytes.
        copied_bytes: Bytes of outputs that no instruction makes (constants).
    """

    items: Items
    data: Sequence[Datum]
    regions: dict[int, int]
    outputs: dict[int, float]
    copied_bytes: float

    def origin(self, datum: int) -> int:
        """The data that a region was cut from (and that its instruction makes); itself for whole data."""
        while datum in self.regions:
            datum = self.regions[datum]
        return datum

    def readers(self) -> Counter[int]:
        """How many places read each piece of data; a region's readers read its origin too."""
        counts: Counter[int] = Counter()
        for datum in (*self.outputs, *(d for item in walk(self.items) for d in reads_of(item))):
            counts[datum] += 1
            origin = self.origin(datum)
            if origin != datum:
                counts[origin] += 1
        return counts

    def only_read_by(self, reads: Callable[[Step | Block], tuple[int, ...]]) -> set[int]:
        """Whole data, no outputs, that only items for which `reads` gives them read."""
        wanted = {datum for item in walk(self.items) for datum in reads(item)}
        others = {datum for item in walk(self.items) for datum in reads_of(item) if not reads(item)}
        return wanted - others - set(self.outputs) - set(map(self.origin, self.regions))


def reads_of(item: Step | Block) -> tuple[int, ...]:
    """What an item itself reads: not what the items inside a loop read, but what the loop hands over."""
    if isinstance(item, Step):
        return (*item.reads, *item.after)
    before = [datum for carry in item.carries for datum in carry.before]
    following = [datum for carry in item.carries for datum in carry.following]
    whole = [datum for cut in item.sliced for datum in cut.whole]
    part = [datum for stack in item.stacked for datum in stack.part]
    return (*before, *following, *whole, *part, *item.condition)


def writes_of(item: Step | Block) -> tuple[int, ...]:
    """What an item makes or changes in place: for a loop its results, and outer data that its steps change."""
    if isinstance(item, Step):
        return item.writes
    changed = [datum for inner in walk(item.items) if isinstance(inner, Step) for datum in inner.writes if datum in inner.reads]
    return tuple(dict.fromkeys((*item.results, *changed)))


def renamed(items: Items, names: dict[int, int]) -> Items:
    """The items with some data under other numbers."""

    def new(data: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(dict.fromkeys(names.get(datum, datum) for datum in data))

    result: list[Step | Block] = []
    for item in items:
        if isinstance(item, Step):
            result.append(replace(item, reads=new(item.reads), writes=new(item.writes), after=new(item.after)))
        else:
            result.append(
                replace(
                    item,
                    items=renamed(item.items, names),
                    carries=tuple(Carry(new(c.before), c.inside, new(c.following), c.after) for c in item.carries),
                    sliced=tuple(Sliced(new(cut.whole), cut.part) for cut in item.sliced),
                    stacked=tuple(Stacked(new(stack.part), stack.whole) for stack in item.stacked),
                    condition=new(item.condition),
                )
            )
    return tuple(result)


def walk(items: Sequence[Step | Block]) -> Iterator[Step | Block]:
    """All items, those inside loops too, in order."""
    for item in items:
        yield item
        if isinstance(item, Block):
            yield from walk(item.items)
