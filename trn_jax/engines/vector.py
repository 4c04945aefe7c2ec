"""Vector Engine (DVE): two-tensor arithmetic, reductions, scans, copies and casts, computed in fp32.

cycles = c N + overhead per instruction; c = 1 with one operand in SBUF, 2 with two, 8 for reciprocal, less for 16-bit data
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from trn_jax.chips.schema import Chip, Vector
from trn_jax.engines.kind import Cost, Execution, Kind, Static, compute_fp32
from trn_jax.engines.stream import PSUM_COLUMNS, SBUF_COLUMNS, streaming_cost
from trn_jax.errors import FormatError
from trn_jax.graph.instruction import Instruction
from trn_jax.graph.numerics import check_chip
from trn_jax.numerics import format_of

FAST_ARITHMETIC = frozenset({"add", "subtract", "multiply"})  # 16-bit tensor_tensor that NeuronCore-v2 does at one column per cycle
HALVED_REDUCTIONS = frozenset({"add", "maximum"})  # 16-bit reductions that read two elements per lane and cycle
RNG_CYCLES = 8.0  # integer operations of one XORWOW step, per word drawn. Basis: assumed

Columns = Callable[[Any, Vector, Static], Any]


def _kind(
    cycles_per_column: float | Columns, basis: str, columns: int = SBUF_COLUMNS, functions: Iterable[str] = (), reads_out: bool = False
) -> Kind:
    """A kind that streams its operands with c cycles per column, out of PSUM where its function begins with "evacuate".

    If it `reads_out` a reduction as well, that is a second, shortest instruction.
    """

    def cost(work: Any, chip: Chip, smoothing: Any, static: Static) -> Cost:
        c = cycles_per_column(work, chip.vector, static) if callable(cycles_per_column) else cycles_per_column
        widest = PSUM_COLUMNS if static.function == "evacuate" else columns
        shortest = chip.vector.min_cycles
        extra = shortest if reads_out else 0.0
        return streaming_cost(work.elements, chip.vector, smoothing, c, columns=widest, min_cycles=shortest, extra_cycles=extra)

    return Kind(cost=cost, compute=compute_fp32, basis=basis, functions=frozenset(["evacuate", *functions]))


def _two_tensors(work: Any, vector: Vector, static: Static) -> Any:
    operands = jnp.maximum(work.operands, 1.0)
    fast = vector.tensor_tensor_speedup_16bit if static.function in FAST_ARITHMETIC else vector.tensor_tensor_speedup_other
    return operands / fast if static.narrow else operands


def _one_tensor(work: Any, vector: Vector, static: Static) -> Any:
    """One column per cycle; faster for 16-bit data between SBUF and SBUF, half as fast as that with one side in PSUM."""
    if not static.narrow:
        return 1.0
    speedup = vector.copy_speedup_16bit
    return 1 / jnp.maximum(speedup / 2, 1.0) if static.function == "evacuate" else 1 / speedup


def _predicated(work: Any, vector: Vector, static: Static) -> Any:
    """Two streams from SBUF; one where data and predicate come from both memories."""
    return 1.0 if static.function == "evacuate" else 2.0


def _reduction(work: Any, vector: Vector, static: Static) -> Any:
    return 0.5 if static.narrow and static.function in HALVED_REDUCTIONS else 1.0


def _memset(work: Any, vector: Vector, static: Static) -> Any:
    return 0.5 if static.narrow and static.function == "zero" else 1.0


_TABLE = "documented: NKI instruction reference, SDK 2.26, "

KINDS = {
    "tensor_tensor": _kind(
        _two_tensors,
        _TABLE + "tensor_tensor: 2 N, N for 16-bit add, subtract, multiply; Trainium2 guide, performance modes",
        functions=FAST_ARITHMETIC,
    ),
    "tensor_scalar": _kind(_one_tensor, _TABLE + "tensor_scalar: N; Trainium2 guide, performance modes"),
    "tensor_scalar_reduce": _kind(1.0, _TABLE + "tensor_scalar_reduce: max(64, N) + 64", reads_out=True),
    "tensor_copy": _kind(
        _one_tensor,
        _TABLE + "tensor_copy: N; Trainium2 guide, performance modes; PSUM is read 512 columns at a time",
    ),
    "tensor_reduce": _kind(_reduction, _TABLE + "tensor_reduce: N, N/2 for 16-bit add and max", functions=HALVED_REDUCTIONS),
    "tensor_tensor_scan": _kind(2.0, _TABLE + "tensor_tensor_scan: 2 N"),
    "select": _kind(_predicated, _TABLE + "tensor_copy_predicated: 2 N with both operands in SBUF, N with one in PSUM"),
    "reciprocal": _kind(8.0, _TABLE + "reciprocal: 8 N"),
    "bn_stats": _kind(1.0, _TABLE + "bn_stats: N, at most 512 columns", columns=512),
    "max8": _kind(1.0, _TABLE + "max8, nc_find_index8: N"),
    "memset": _kind(_memset, _TABLE + "memset: N, N/2 for zeros in 16-bit floats", functions=["zero"]),
    "quantize_mx": replace(
        _kind(0.25, "derived: NKI guide, Trainium3 architecture: four elements per partition and cycle"), compute=None
    ),  # nc_matmul rounds its operands' values
    "rng": _kind(RNG_CYCLES, "assumed: one XORWOW step per word; no figure is published for this engine before Trainium3"),
}


def softmax(x: Float[Array, "*batch n"], chip: Chip) -> Float[Array, "*batch n"]:
    """Softmax over the last axis, in the instructions the chip runs, each computed in fp32.

        m = tensor_reduce(max, x);  e = activation(exp, x - m);  s = tensor_reduce(add, e);  y = tensor_scalar(e * reciprocal(s))

    Args:
        x: Scores, float32 or narrower.
        chip: An `ideal` chip, which rounds nothing, gives plain fp32 values in x.dtype.

    Returns:
        Probabilities in x.dtype; intermediate values are written in fp32, so a narrow result is rounded once.

    Raises:
        FormatError: x is not of floating point numbers.
        TypeError: chip is no Chip.

    Gradient: that of softmax at the values computed; straight through the rounding.
    Basis: documented (NKI: subtraction is the activation's free bias; Vector and Scalar compute in fp32 and round on write).
    """
    from trn_jax.engines import KINDS as ALL

    check_chip(chip)
    if not jnp.issubdtype(jnp.result_type(x), jnp.floating):
        raise FormatError(f"softmax takes floating point values, but got {jnp.result_type(x)}. Cast them with .astype.")

    def issue(engine: str, kind: str, function: str, mathematics: Callable[..., Any], *operands: Any, fmt: str = "fp32") -> Any:
        instruction = Instruction(engine=engine, kind=kind, function=function, write_formats=(fmt if chip.rounds else "",))
        compute = ALL[engine][kind].compute
        assert compute is not None
        return compute(instruction, lambda *values: [mathematics(*values)], operands, Execution(), None)[0]

    peak = issue("vector", "tensor_reduce", "maximum", lambda x: jnp.max(x, axis=-1, keepdims=True), x)
    powers = issue("scalar", "activation", "exp", lambda x, peak: jnp.exp(x - peak), x, peak)
    total = issue("vector", "tensor_reduce", "add", lambda e: jnp.sum(e, axis=-1, keepdims=True), powers)
    inverse = issue("vector", "reciprocal", "reciprocal", lambda s: 1 / s, total)
    fmt = format_of(x.dtype) or "fp32"
    return issue("vector", "tensor_scalar", "multiply", lambda e, r: e * r, powers, inverse, fmt=fmt).astype(x.dtype)
