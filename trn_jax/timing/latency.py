"""latency: how long a Program takes on a chip, as a function of the chip that JAX can differentiate, batch and compile.

time of every row (engines' tables)  ->  schedule  ->  seconds
"""

from __future__ import annotations

from typing import Any

from jaxtyping import Array, Float

from trn_jax.chips import Chip
from trn_jax.timing.program import Program
from trn_jax.timing.schedule import evaluate, total


def latency(program: Program, chip: Chip, *, smoothing: Any = 0.0, overlap: Any = None, dtype: Any = "float64") -> Float[Array, "*batch"]:
    """Seconds that a good schedule of a program takes on a chip, at calibrated rates.

    Args:
        program: From `trn_jax.trace`. Table columns of shape [programs, rows] make a batch.
        chip: Leaves are floats; leaves with a shape make a batch, broadcast as NumPy does. `jax.vmap` gives the same numbers
            about as fast.
        smoothing: 0 is exact. Above 0 every ceiling, maximum and choice is rounded off, so that array sizes, SBUF and engines
            that are not the bottleneck matter too. The time grows with it: |t(s) - t(0)| <= c s t(0) for s up to 0.1, with c = 8 in
            the tests, 2 to 5 as a rule (the ceilings of the Tensor Engine weigh most). Data that SBUF still holds count in
            proportion to their bytes, so a program that does nothing but read such data again is outside that bound.
        overlap: None treats the program as one kernel (0.8; 1 for a `trn_jax.kernel`, whose schedule is given); "compiled" as today's
            compiled graphs (0, collectives exposed); a number sets everything; {"engines": a, "collectives": b} sets each.
        dtype: "float64", computed in a local x64 context, or "float32" for sweeps of many chips.

    Returns:
        Seconds, in JAX's default float dtype, with the shape of the batch.

    Raises:
        ProgramError: Not a Program, an unknown overlap or dtype, a row without a cost.
        ChipError: Not a Chip, or a leaf that is no number.
        FormatError: The program multiplies operands in a format that the chip's Tensor Engine does not have.

    Units: seconds. Gradient: exact in chip, smoothing, overlap and table, in reverse mode of any order (`jax.jacrev(jax.grad(...))`,
    not `jax.hessian` or `jvp`, which JAX refuses); at ties of smoothing 0 it is shared by the sides.
    Basis: costs as each engine's table says; order and overlap assumed (calibrated 0.8).
    """
    return evaluate(total, program, chip, smoothing, overlap, dtype)
