"""emulate: any JAX function, run with the arithmetic of a Trainium NeuronCore."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax

from trn_jax._compat import call_labelled, describing, trace_values
from trn_jax.chips.schema import Chip
from trn_jax.errors import FormatError
from trn_jax.faults import Fault
from trn_jax.graph.numerics import AutoCast, numerics_for
from trn_jax.graph.run import Walker, constant_seed_in_training, is_staged, run_program
from trn_jax.numerics.activation_table import ActivationTable
from trn_jax.numerics.seed import as_seed


class ConstantSeedWarning(UserWarning):
    """A jitted update loop rounds stochastically with a seed that never changes."""


def emulate(
    fn: Callable[..., Any],
    chip: Chip,
    *,
    autocast: AutoCast | None = None,
    rounding: Literal["nearest", "stochastic"] = "nearest",
    seed: Any = None,
    fidelity: Literal["fused", "tiled", "systolic"] = "tiled",
    writes: Literal["value", "instruction"] = "value",
    overflow: Literal["inf", "nan", "saturate"] | None = None,
    activation: Literal["exact", "table"] | Sequence[ActivationTable] = "exact",
    integer: Literal["exact", "fp32"] = "exact",
    psum: Literal["fp32", "bf16"] = "fp32",
    faults: Sequence[Fault] | None = None,
) -> Callable[..., Any]:
    """`fn` computed as the chip would: a pure function with the same signature.

    It composes with jit, grad, vmap, scan, remat and shard_map, inside and outside. `emulate(jax.grad(f), chip)` runs the
    backward pass on the chip too (the way to train); `jax.grad(emulate(f, chip))` is straight-through: every rounding has
    the identity as its derivative, so cotangents are rounded only to the dtype of the value they belong to. Custom
    derivative rules of `fn` stay in force and are emulated themselves.

    Arithmetic: the Tensor Engine rounds operands to their format and accumulates in fp32, K tile by K tile; the other
    engines compute in fp32 and round once when they write. Integers, booleans and PRNG keys are never rounded.

    Args:
        fn: A pure JAX function of any pytrees. Leaves with a shape and dtype are traced; other leaves are static.
        chip: From `trn_jax.load_chip`; concrete, with whole `tensor.rows` and `tensor.cols`. "ideal" rounds nothing.
        autocast: `AutoCast("matmult", "bf16")` and the like; None casts nothing, as the Neuron compiler since 2.27.
        rounding: "nearest" (ties to even) or "stochastic", at every rounding point.
        seed: For "stochastic": an int or a uint32 scalar, traced or not; training loops pass the step. Under vmap an
            unmapped seed gives every lane the same random bits.
        fidelity: "fused" (one dot per matmul, fast), "tiled" (K tiles in PSUM order), "systolic" (clock by clock).
        writes: "value" rounds every value to its dtype; "instruction" keeps fp32 inside one chain of element-wise operations.
        overflow: What rounding does beyond the largest finite value; None is each format's own (see `round_to`).
        activation: "exact" (fp32 functions); "table": exp, log, tanh, logistic, erf, sin, atan, sqrt and rsqrt as piecewise cubics, as
            on the Scalar Engine, with its input ranges (sin beyond pi is wrong); or a list of your own `ActivationTable`s. Functions
            without a table, and derivatives, stay exact.
        integer: "exact" (two's complement), or "fp32": 32-bit additions, products, extrema, comparisons and reductions go through
            fp32 as on the Vector Engine, exact to 2^24. Bitwise operations, copies, and jax.random are exact in both.
        psum: Format in which products accumulate from K tile to K tile: "fp32", or "bf16" on chips whose PSUM has it (Trainium3),
            rounded as `rounding` says at every tile.
        faults: What is broken, as records of `trn_jax.faults`; those that happen at random need `seed`: the same seed, the same faults.
            Gradients pass through them as through a rounding.

    Returns:
        A callable with `fn`'s signature; `.function`, `.chip` and `.numerics` say what it runs and how.

    Raises:
        FormatError: Unknown option, no seed for stochastic rounding, or a format that the chip's Tensor Engine or PSUM lacks.
        FaultError: A fault that the chip cannot have.
        TypeError: `chip` is traced, or its array size is not whole.
        NoRuleError, UnsupportedError: When called, for a primitive without a rule or one refused for a stated reason.

    Units: none. Basis: documented (formats, fp32 accumulation and compute), see docs/numerics.md for what is not.
    """
    if not callable(fn):
        raise TypeError(f"emulate takes a function and a chip, but its first argument is {fn!r}. Give the function itself, not its result.")
    numerics = numerics_for(
        chip,
        autocast=autocast,
        rounding=rounding,
        fidelity=fidelity,
        writes=writes,
        overflow=overflow,
        activation=activation,
        integer=integer,
        psum=psum,
        faults=faults,
    )
    stochastic = rounding == "stochastic" and numerics.rounds
    if numerics.needs_seed and seed is None:
        what = "rounding='stochastic' needs" if stochastic else "Faults that happen at random need"
        raise FormatError(f"{what} seed=: an int or a uint32 that changes every step, e.g. seed=step.")

    @functools.wraps(fn)
    def emulated(*args: Any, **kwargs: Any) -> Any:
        if describing():
            return call_labelled(numerics.label, fn, *args, **kwargs)
        traced = trace_values(fn, *args, **kwargs)
        if stochastic and constant_seed_in_training(seed, traced.graph, traced.operands):
            warnings.warn(
                f"emulate(..., seed={seed}) is constant inside a jitted function that updates narrow arrays: the same random bits "
                "every step freeze most small updates. Pass the step: seed=jnp.uint32(step).",
                ConstantSeedWarning,
                stacklevel=2,
            )
        start = as_seed(seed=seed) if numerics.needs_seed else None
        outputs = run_program(Walker(numerics, is_staged()), traced.graph, traced.operands, start)
        return jax.tree.unflatten(traced.out_tree, outputs)

    emulated.function = fn  # pyright: ignore[reportAttributeAccessIssue]
    emulated.chip = chip  # pyright: ignore[reportAttributeAccessIssue]
    emulated.numerics = numerics  # pyright: ignore[reportAttributeAccessIssue]
    return emulated
