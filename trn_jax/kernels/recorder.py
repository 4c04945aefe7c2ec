"""Recorder: builds a Recording while a kernel's Python function runs once, and checks what it says."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from trn_jax.engines import KINDS
from trn_jax.errors import ProgramError, ShapeError, did_you_mean
from trn_jax.graph.instruction import Instruction, Work
from trn_jax.kernels.affine import Affine
from trn_jax.kernels.limits import PARTITIONS, check_partitions, is_narrow
from trn_jax.kernels.record import Allocate, Item, Loop, Operation, walk
from trn_jax.kernels.tile import Buffer, Tile
from trn_jax.numerics import format_of

MOST_OPERATIONS = 20_000  # recorded one by one: Python loops longer than that belong into affine_range
QUEUE_OWNERS = ("sync", "scalar", "vector", "gpsimd", "tensor")
MEMORIES = ("sbuf", "psum", "hbm")


class Recorder:
    """The state of one recording: the loops that are open, and what was recorded so far."""

    def __init__(self, buffers: int):
        self.items: list[Item] = []
        self.buffers = buffers
        self.open: list[Loop] = []
        self.operations = 0
        self.names: dict[str, int] = {}

    @property
    def block(self) -> list[Item]:
        """Where the next item goes."""
        return self.open[-1].items if self.open else self.items

    def name(self, stem: str) -> str:
        """The stem, numbered from the second time on."""
        self.names[stem] = self.names.get(stem, 0) + 1
        return stem if self.names[stem] == 1 else f"{stem}_{self.names[stem]}"

    def loop(self, trips: int, carries: bool) -> Iterator[Affine]:
        """The index of a loop, once; the body is recorded in between."""
        what = "sequential_range" if carries else "affine_range"
        if isinstance(trips, bool) or not isinstance(trips, (int, np.integer)) or trips < 0:
            raise ProgramError(f"{what}({trips!r}): give the number of iterations, an int that is known when the kernel is traced.")
        if trips == 0:
            return
        loop = Loop(name=self.name("i"), trips=int(trips), carries=carries, source=user_line())
        self.block.append(loop)
        self.open.append(loop)
        yield Affine(((loop, 1),))
        if self.open[-1] is not loop:
            raise self.unfinished(self.open[-1])
        self.open.pop()
        if not carries:
            self.check_independent(loop)

    def finish(self) -> None:
        """Raises ProgramError if a loop was left by break or return."""
        if self.open:
            raise self.unfinished(self.open[-1])

    def unfinished(self, loop: Loop) -> ProgramError:
        """The error for a loop that was left early."""
        return ProgramError(
            f"The loop at {loop.source} was left by break, return or an exception: its body is recorded once for all {loop.trips} "
            "iterations. Use Python's range() for loops that end early."
        )

    def check_independent(self, loop: Loop) -> None:
        """Raises ProgramError if an iteration of an affine_range reads what an earlier one wrote; sums in PSUM are fine."""
        inside = {item.buffer for item in walk(loop.items) if isinstance(item, Allocate)}
        first_read: dict[Buffer, Tile] = {}
        written: set[Buffer] = set()
        for item in walk(loop.items):
            if not isinstance(item, Operation):
                continue
            for tile in item.reads:
                if tile.buffer.storage not in written:
                    first_read.setdefault(tile.buffer.storage, tile)
            for tile in item.writes:
                buffer = tile.buffer.storage
                written.add(buffer)
                if item.accumulates or buffer in inside or buffer not in first_read:
                    continue
                if not any(term is loop for start in tile.starts for term, _ in start.terms):
                    raise ProgramError(
                        f"Every iteration of the affine_range at {loop.source} changes {tile} and reads what the one before left there "
                        f"({item.source}). Use nc.sequential_range, or write to a part that depends on the index."
                    )

    def allocate(self, shape: Sequence[int], dtype: Any, memory: str, name: str, buffers: int | None) -> Tile:
        """A new buffer, checked."""
        if memory not in MEMORIES:
            raise ProgramError(f"buffer={memory!r} is not known. {did_you_mean(str(memory), MEMORIES)}")
        if buffers is not None and (isinstance(buffers, bool) or not isinstance(buffers, int) or buffers < 1):
            raise ProgramError(f"buffers={buffers!r} is not accepted; give how many copies rotate, 1 or more.")
        sizes = tuple(int(size) for size in shape)
        if memory != "hbm":
            check_partitions(f"{name} in {memory.upper()}", sizes)
        elif self.open:
            raise ProgramError(f"An array in HBM is allocated in the loop at {self.open[-1].source}. Allocate it before all loops.")
        buffer = Buffer(
            shape=sizes,
            dtype=np.dtype(dtype),
            memory=memory,
            name=self.name(name),
            buffers=buffers or self.buffers,
            loop=self.open[-1] if self.open else None,
        )
        self.block.append(Allocate(buffer))
        return buffer.whole

    def issue(
        self,
        engine: str,
        kind: str,
        function: str,
        mathematics: Callable[..., Any],
        reads: Sequence[Tile],
        writes: Sequence[Tile],
        work: Work,
        *,
        operand_formats: tuple[str, ...] = (),
        layout: object | None = None,
        accumulates: bool = False,
        parameters: Sequence[Affine] = (),
        queue: str | None = None,
    ) -> None:
        """Records one instruction, checked."""
        if engine not in KINDS or kind not in KINDS[engine]:
            engines = [name for name, kinds in KINDS.items() if kind in kinds]
            raise ProgramError(f"The {engine} engine has no {kind}. Engines that have it: {', '.join(engines) or 'none'}.")
        for tile in reads:
            self.check_open(kind, tile)
            if not (tile.buffer.storage.written or tile.buffer.is_input):
                raise ProgramError(f"{kind} reads {tile}, but nothing was written to it yet.")
        for tile in writes:
            self.check_open(kind, tile)
            if tile.buffer.is_input:
                raise ProgramError(
                    f"{kind} writes to {tile}, an argument of the kernel. Write to nc.ndarray(..., buffer='hbm') and return it."
                )
        self.check_indices(kind, parameters)
        if engine not in ("dma", "tensor"):
            self.check_on_chip(engine, kind, (*reads, *writes))
        self.operations += 1
        if self.operations > MOST_OPERATIONS:
            raise ProgramError(
                f"The kernel issues more than {MOST_OPERATIONS} instructions written out one by one. Use nc.affine_range or "
                "nc.sequential_range instead of Python's range() for the outer loops: their body is recorded once."
            )
        tiles = (*reads, *writes)
        from_psum = engine in ("vector", "scalar") and any(tile.memory == "psum" for tile in reads)
        if from_psum:
            function = "evacuate" if function == "copy" else f"evacuate+{function}"
        on_chip = all(tile.memory == "sbuf" for tile in tiles) or (kind == "tensor_copy" and from_psum)
        fast = engine not in ("dma", "tensor") and on_chip and all(is_narrow(tile.dtype) for tile in tiles)
        formats = ("",) if engine == "dma" else tuple(_written(tile) for tile in writes)
        instruction = Instruction(
            engine=engine,
            kind=kind,
            function=function,
            work=work,
            operand_formats=operand_formats,
            write_formats=() if engine == "tensor" else formats,
            narrow=fast,
            layout=layout,
        )
        self.block.append(
            Operation(
                instruction=instruction,
                function=lambda *operands: _listed(mathematics(*operands)),
                reads=tuple(reads),
                writes=tuple(writes),
                accumulates=accumulates,
                parameters=tuple(parameters),
                lane=engine if queue is None else f"dma {checked_queue(queue)}",
                source=user_line(),
            )
        )
        for tile in writes:
            tile.buffer.storage.written = True

    def check_open(self, kind: str, tile: Any) -> None:
        """Raises ProgramError unless it is a tile that exists here."""
        if not isinstance(tile, Tile):
            raise ProgramError(f"{kind} takes tiles, but got {type(tile).__name__}. Load arrays from HBM with nc.load first.")
        if tile.buffer.loop is not None and tile.buffer.loop not in self.open:
            raise ProgramError(
                f"{kind} uses {tile} outside the loop at {tile.buffer.loop.source}, in which it was allocated. Allocate it before the loop "
                "(nc.ndarray) and pass it as dst=."
            )
        self.check_indices(kind, tile.starts)

    def check_indices(self, kind: str, numbers: Sequence[Affine]) -> None:
        """Raises ProgramError if a number needs the index of a loop that has ended."""
        for number in numbers:
            for loop, _ in number.terms:
                if loop not in self.open:
                    raise ProgramError(f"{kind} uses the index of the loop at {loop.source} after that loop has ended.")

    def check_on_chip(self, engine: str, kind: str, tiles: Sequence[Tile]) -> None:
        """Raises ShapeError unless a compute engine can reach all tiles."""
        for tile in tiles:
            if tile.memory == "hbm":
                raise ShapeError(f"{kind} reads and writes SBUF and PSUM, but got {tile}. Use nc.load and nc.store.")
            if tile.memory == "psum" and engine == "gpsimd":
                raise ShapeError(f"GpSimd cannot reach PSUM, but {kind} got {tile}. Use the vector engine, or copy it to SBUF first.")
            check_partitions(str(tile), tile.shape)


def columns(tile: Tile, operands: float = 1.0) -> Work:
    """Work of an engine that streams a tile: it takes as long whether all partitions hold data or not."""
    return Work(elements=float(PARTITIONS * tile.free_size), operands=operands, rows=float(tile.partitions))


def checked_queue(queue: str) -> str:
    """A queue's name: who triggers its transfers, and a number if it is not the first of them, as "sync:1".

    Raises:
        ProgramError: Anything else.
    """
    owner, _, number = str(queue).partition(":")
    if owner not in QUEUE_OWNERS or not (number.isdigit() or not number):
        known = did_you_mean(owner, QUEUE_OWNERS)
        raise ProgramError(f"queue={queue!r} is not known; give who triggers it, and a number for further queues: 'sync:1'. {known}")
    return f"{owner}:{int(number or 0)}"


def user_line() -> str:
    """The line outside this package that called, as "file.py:12 (kernel)"."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("trn_jax.kernels"):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno} ({frame.f_code.co_name})"


def _written(tile: Tile) -> str:
    """The format that a result is rounded to; fp32 results are not."""
    fmt = format_of(tile.dtype) if jnp.issubdtype(tile.dtype, jnp.floating) else None
    return "" if fmt in (None, "fp32") else str(fmt)


def _listed(result: Any) -> list[Any]:
    return list(result) if isinstance(result, (list, tuple)) else [result]
