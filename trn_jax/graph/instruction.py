"""The instruction record that both readings consume: running asks its engine what it computes, timing what it costs.

Names are NKI's (`nc_matmul`, `activation`, `tensor_tensor`, `tensor_reduce`, `dma_copy` ...). One record stands for all the
hardware instructions of one operation: a 16000 x 16000 x 16000 matmul is one record with its sizes, not 500,000 of them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

ENGINES = ("tensor", "vector", "scalar", "gpsimd", "dma", "collective")


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The sizes an engine's cost depends on; numbers only, so that workloads of one structure form a batch.

    A matmul is `batch` products of [m, k] by [k, n]. Everything else streams `elements` from each of `operands` tensors, laid
    out as `rows` partition rows. DMA and collectives move `bytes` in contiguous pieces of `row_bytes`, among `ranks`.
    """

    batch: float = 1.0
    m: float = 0.0
    k: float = 0.0
    n: float = 0.0
    elements: float = 0.0
    operands: float = 1.0
    rows: float = 1.0
    bytes: float = 0.0
    row_bytes: float = 4096.0
    ranks: float = 1.0


WORK_FIELDS = tuple(f.name for f in fields(Work))


PARTITIONS = 128  # of SBUF and PSUM in all generations. Documented: NKI guide, Trainium/Inferentia2 architecture


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """One instruction of one engine.

    An op lowers to a sequence of them: each computes its values from those of the one before (the first from the op's
    operands), and the last one writes the op's outputs.

    Attributes:
        engine: One of `ENGINES`.
        kind: NKI name of the instruction; an entry of its engine's KINDS table.
        function: ALU operation, activation function or collective, e.g. "add", "exp", "psum".
        work: Sizes.
        operand_formats: Formats that `nc_matmul` rounds its operands to, one per operand; "" leaves an operand as it is.
        scaling: How `nc_matmul` scales operands that it rounds: "" not at all, "tensor" or "block" (see `AutoCast`).
        cotangent_format: Format that the cotangent of an `nc_matmul` is rounded to where JAX differentiates it; "" for none.
        table: `ActivationTable` that stands for an activation's function, else None.
        integers_in_fp32: Whether 32-bit integers are converted to fp32, computed and converted back, exact to 2^24 only.
        write_formats: Format each output is rounded to when written, one per output; "" leaves it as computed.
        narrow: Whether all operands and outputs are 16 bits wide or less (fast modes).
        depth_axes: Of a product in groups (`ragged_dot`), which has no layout: the axes that are contracted in tiles of K.
        layout: How the operands of a contraction become [batch, m, k] and [batch, k, n] (see `engines.layout`), else None.
    """

    engine: str
    kind: str
    function: str = ""
    work: Work = Work()
    operand_formats: tuple[str, ...] = ()
    scaling: str = ""
    cotangent_format: str = ""
    table: object | None = None
    integers_in_fp32: bool = False
    write_formats: tuple[str, ...] = ()
    narrow: bool = False
    layout: object | None = None
    depth_axes: tuple[int, int] | None = None
