"""What every program of the corpus must do; programs are listed in corpus_*.py."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import trn_jax

IDEAL, TRN2 = trn_jax.load_chip("ideal"), trn_jax.load_chip("trainium2")
SMALL = TRN2.replace({"tensor.rows": 4.0, "tensor.cols": 4.0})  # several tiles in every product, and a short wavefront
BF16, ALL_BF16 = trn_jax.AutoCast("matmult", "bf16"), trn_jax.AutoCast("all", "bf16")

# Compile time is most of the test; these leave out what only makes code faster.
quick_jit = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True})


@dataclass(frozen=True, kw_only=True)
class Case:
    """A program with its arguments.

    Attributes:
        fn: The program.
        args: Its arguments.
        wrt: Positions it is differentiated at; None where it has no derivative.
        error: Largest relative error in norm, of values and gradients together, with bf16 arithmetic; None where a rounding may
            change a choice (a sort, a sample), so that only shapes and dtypes are compared.
        maps: Whether it may run under vmap and scan (collectives, callbacks in order and shape-changing keys may not).
        trips: Iterations of its while loops, for time.
    """

    fn: Any
    args: tuple[Any, ...]
    wrt: tuple[int, ...] | None = (0,)
    error: float | None = 0.1
    maps: bool = True
    trips: int = 3


def arrays(*shapes, seed=0, dtype=jnp.float32):
    """Normal numbers."""
    rng = np.random.default_rng(seed)
    return tuple(jnp.asarray(rng.standard_normal(shape), dtype) for shape in shapes)


def initial(module, *args, **call):
    """What a module of linen starts from."""
    return quick_jit(partial(module.init, **call))(*args)


def is_differentiable(x):
    return jnp.issubdtype(x.dtype, jnp.inexact)


def numbers(tree):
    """Every leaf as a NumPy array, keys as their words."""
    leaves = (jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x for x in jax.tree.leaves(tree))
    return [np.asarray(x) for x in leaves if x.dtype != jax.dtypes.float0]


def total(case):
    """One number that depends on all that the program computes, with weights that cancel nothing."""

    def loss(*args):
        parts = [jnp.float32(0)]
        for x in jax.tree.leaves(case.fn(*args)):
            if is_differentiable(x):
                flat = (jnp.abs(x) if jnp.iscomplexobj(x) else x).astype(jnp.float32).reshape(-1)
                parts.append(jnp.sum(flat * np.cos(np.arange(flat.size) + 0.3).astype(np.float32)))
        return sum(parts)

    return loss


def assert_close(got, expected, error):
    """Equal shapes and dtypes, finite where expected, and the relative error in norm over all leaves."""
    got, expected = numbers(got), numbers(expected)
    assert [(x.shape, x.dtype) for x in got] == [(x.shape, x.dtype) for x in expected]
    if error is None:
        return
    difference, norm = 0.0, 1e-12
    for x, y in zip(got, expected, strict=True):
        x, y = x.astype(np.complex128), y.astype(np.complex128)
        finite = np.isfinite(y)
        assert np.isfinite(x[finite]).all()
        difference += np.sum(np.abs(x - y)[finite] ** 2)
        norm += np.sum(np.abs(y[finite]) ** 2)
    assert np.sqrt(difference) <= error * np.sqrt(norm)


def assert_same_program(got, expected, args):
    """Two functions are one program for the compiler, or give the same bits."""
    assert jax.eval_shape(got, *args) == jax.eval_shape(expected, *args)
    if jax.jit(got).lower(*args).as_text() != jax.jit(expected).lower(*args).as_text():
        pairs = zip(numbers(quick_jit(got)(*args)), numbers(quick_jit(expected)(*args)), strict=True)
        assert all(x.tobytes() == y.tobytes() for x, y in pairs)


def twice(args):
    return jax.tree.map(lambda x: jnp.stack([x, x]), args)


def check_ideal(case):
    """Plain JAX bit for bit: forward, gradient, mapped."""
    fn, args = case.fn, case.args
    ideal = partial(trn_jax.emulate, chip=IDEAL, fidelity="fused")
    assert_same_program(ideal(fn), fn, args)
    if case.wrt is not None:
        gradient = jax.grad(total(case), case.wrt, allow_int=True)
        assert_same_program(ideal(gradient), gradient, args)
    if case.maps:
        assert_same_program(ideal(jax.vmap(fn)), jax.vmap(fn), twice(args))


def check_forward(case):
    """Values on chips that round: tiled, clock by clock, everything in bf16 with one rounding per chain; under vmap in scan."""
    fn, args, plain = case.fn, case.args, quick_jit(case.fn)(*case.args)
    seed = jnp.uint32(3)
    stochastic = trn_jax.emulate(fn, TRN2, autocast=ALL_BF16, rounding="stochastic", seed=seed, writes="instruction")
    assert_close(quick_jit(stochastic)(*args), plain, case.error)
    assert_close(quick_jit(trn_jax.emulate(fn, SMALL, autocast=BF16, fidelity="systolic"))(*args), plain, case.error)
    if case.maps:
        mapped = jax.vmap(trn_jax.emulate(fn, SMALL, autocast=BF16))
        scanned = lambda *args: jax.lax.scan(lambda _, slices: (None, mapped(*slices)), None, args)[1]
        assert_close(quick_jit(scanned)(*twice(twice(args))), twice(twice(plain)), case.error)


def check_gradients(case):
    """Both numeric gradients, one of them recomputed."""
    if case.wrt is None:
        return
    loss, error = total(case), case.error and 2 * case.error
    gradient = partial(jax.grad, argnums=case.wrt, allow_int=True)
    plain = quick_jit(gradient(loss))(*case.args)
    assert_close(quick_jit(trn_jax.emulate(gradient(loss), SMALL, autocast=BF16))(*case.args), plain, error)
    outside = gradient(jax.checkpoint(trn_jax.emulate(loss, SMALL, autocast=ALL_BF16)))
    assert_close(quick_jit(outside)(*case.args), plain, error)


def check_time(case):
    """A program of instructions with a time above zero, and a cast report that traces (test_corpus_watched.py runs some)."""
    program = trn_jax.trace(case.fn, *case.args, trip_count=case.trips, autocast=BF16)
    assert float(trn_jax.latency(program, TRN2)) > 0
    jax.eval_shape(trn_jax.cast_report(case.fn, TRN2, autocast=ALL_BF16), *case.args)


def check(make):
    """All of them."""
    with jax.numpy_rank_promotion("allow"):
        case = make()
        check_ideal(case)
        check_forward(case)
        check_gradients(case)
        check_time(case)
