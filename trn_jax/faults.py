"""Faults of a chip, for `emulate(f, chip, faults=[...])`: small records of what is broken, or breaks at random.

    trn_jax.emulate(f, chip, faults=[trn_jax.faults.StuckPE(3, 17, bit=30, value=1)])
    trn_jax.emulate(f, chip, faults=[trn_jax.faults.BitFlip("sbuf", rate=1e-6)], seed=step)

A product's contraction index k lies on row k mod rows of the array, its output column n on column n mod cols.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from trn_jax.errors import FaultError, did_you_mean
from trn_jax.graph.instruction import ENGINES, Instruction

__all__ = ["BitFlip", "DeadColumn", "Fault", "RemappedColumns", "SilentCorruption", "StuckPE", "checked"]

# memory -> engines whose results are written to it; "hbm" holds the arguments of the program
MEMORIES: dict[str, tuple[str, ...]] = {"sbuf": ("vector", "scalar", "gpsimd"), "psum": ("tensor",), "hbm": ()}


class Fault:
    """Base of all faults."""

    in_array: ClassVar[bool] = False  # whether it changes how the Tensor Engine multiplies
    rate: float = 0.0

    def hits(self, instruction: Instruction) -> bool:
        """Whether results of an instruction may be corrupted at random."""
        return False


@dataclass(frozen=True, slots=True)
class StuckPE(Fault):
    """One bit of the fp32 partial sum that leaves a PE is stuck.

    Attributes:
        row: Row of the PE: contraction indices equal to it modulo the array's rows.
        col: Column of the PE: output columns equal to it modulo the array's columns.
        bit: 0 (lowest of the mantissa) to 31 (sign).
        value: 0 or 1.
    """

    row: int
    col: int
    bit: int
    value: int
    in_array: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_position(self, "row", self.row)
        _check_position(self, "col", self.col)
        if self.bit not in range(32) or self.value not in (0, 1):
            raise FaultError(f"{self} is not possible: bit is 0 (lowest) to 31 (sign) of the fp32 partial sum, value 0 or 1.")


@dataclass(frozen=True, slots=True)
class DeadColumn(Fault):
    """A column of PEs gives zeros."""

    col: int
    in_array: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_position(self, "col", self.col)


@dataclass(frozen=True, slots=True)
class RemappedColumns(Fault):
    """These columns of PEs are left out: output columns are placed on the others, in order. Tiles then are that much narrower.

    Attributes:
        cols: Columns that hold nothing.
    """

    cols: tuple[int, ...]
    in_array: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "cols", _several(self, "cols", self.cols))
        for col in self.cols:
            _check_position(self, "cols", col)


@dataclass(frozen=True, slots=True)
class BitFlip(Fault):
    """Every floating point value that lies in a memory has one bit flipped with this probability, each time it is written there.

    Attributes:
        memory: "sbuf" (results of Vector, Scalar and GpSimd instructions), "psum" (products, before they are evacuated) or "hbm"
            (arguments of the program, once per call).
        rate: Probability per element and write.
        bits: Bits one of which flips, 0 the lowest of the value's dtype; those that a dtype does not have are left out. None for all.
    """

    memory: str
    rate: float
    bits: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "bits", None if self.bits is None else _several(self, "bits", self.bits))
        if self.memory not in list(MEMORIES):  # of any type, hashable or not
            raise FaultError(f"BitFlip memory {self.memory!r} is not known. {did_you_mean(str(self.memory), MEMORIES)}")
        _check_rate(self)
        if self.bits is not None and not (self.bits and all(bit in range(32) for bit in self.bits)):
            raise FaultError(f"{self} is not possible: bits are numbers from 0 (lowest) to 31, at least one.")

    def hits(self, instruction: Instruction) -> bool:
        """Whether an instruction writes to the memory."""
        return instruction.engine in MEMORIES[self.memory]


@dataclass(frozen=True, slots=True)
class SilentCorruption(Fault):
    """Every floating point result of an engine is wrong with this probability: all its bits are exclusive-ored with random ones.

    Attributes:
        engine: "tensor", "vector", "scalar", "gpsimd", "dma" or "collective".
        rate: Probability per element of a result.
    """

    engine: str
    rate: float

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise FaultError(f"SilentCorruption engine {self.engine!r} is not known. {did_you_mean(str(self.engine), ENGINES)}")
        _check_rate(self)

    def hits(self, instruction: Instruction) -> bool:
        """Whether an instruction runs on the engine."""
        return instruction.engine == self.engine


def checked(faults: Sequence[Fault] | None, rows: int, cols: int) -> tuple[Fault, ...]:
    """The faults that can happen, if an array of this size can have them; those of rate 0 are left out.

    Raises:
        FaultError: A position outside the array, or no column left.
        TypeError: Something that is no fault.
    """
    if isinstance(faults, Fault):
        raise TypeError(f"faults takes a sequence of trn_jax.faults records, but got {faults!r} alone. Write [{faults!r}].")
    for fault in faults or ():
        if not isinstance(fault, Fault):
            raise TypeError(
                f"faults takes a sequence of trn_jax.faults records, but it holds {fault!r}. Give e.g. faults.StuckPE(0, 0, 30, 1)."
            )
        columns = fault.cols if isinstance(fault, RemappedColumns) else (getattr(fault, "col", 0),)
        if getattr(fault, "row", 0) >= rows or any(col >= cols for col in columns):
            raise FaultError(f"{fault} lies outside the array of {rows} x {cols} PEs. Rows are 0 to {rows - 1}, columns 0 to {cols - 1}.")
    if not live_columns(tuple(faults or ()), cols):
        raise FaultError(f"RemappedColumns leaves none of the {cols} columns. Keep at least one.")
    return tuple(fault for fault in faults or () if fault.in_array or fault.rate > 0)


def live_columns(faults: Sequence[Fault], cols: int) -> tuple[int, ...]:
    """Columns of the array that output columns are placed on, in order."""
    left_out = {col for fault in faults if isinstance(fault, RemappedColumns) for col in fault.cols}
    return tuple(col for col in range(cols) if col not in left_out)


def _several(fault: Any, name: str, values: Any) -> tuple[Any, ...]:
    if not isinstance(values, Iterable):
        raise FaultError(f"{type(fault).__name__} {name} {values!r} is no sequence. Write {name}=({values!r},).")
    return tuple(values)


def _check_position(fault: Any, name: str, position: Any) -> None:
    if isinstance(position, bool) or not isinstance(position, int) or position < 0:
        raise FaultError(f"{type(fault).__name__} {name} {position!r} is no position of a PE. Give a whole number from 0.")


def _check_rate(fault: Any) -> None:
    if isinstance(fault.rate, bool) or not isinstance(fault.rate, (int, float)) or not 0 <= fault.rate <= 1:
        raise FaultError(f"{type(fault).__name__} rate {fault.rate!r} is no probability. Give a Python number from 0 to 1.")
