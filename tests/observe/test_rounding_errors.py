"""The cast report of arrays measures every rounding, against NumPy and ml_dtypes."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import trn_jax
from trn_jax.observe.rounding_errors import MEASURES, rounding_errors

TRN2 = trn_jax.load_chip("trainium2")
MATMULT, ALL = trn_jax.AutoCast("matmult", "bf16"), trn_jax.AutoCast("all", "bf16")


def bf16(x):
    return np.asarray(x, np.float32).astype(ml_dtypes.bfloat16).astype(np.float32)


def normal(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
def test_operands_of_a_product(jit):
    x, w = normal(0, 5, 7), normal(1, 7, 3)
    measure = trn_jax.cast_report(jnp.matmul, TRN2, autocast=MATMULT)
    report = (jax.jit(measure) if jit else measure)(x, w)
    assert [cast.role for cast in report] == ["lhs", "rhs"]
    for cast, value in zip(report, (x, w), strict=True):
        assert cast.max_abs_error == np.abs(bf16(value) - value).max()
        np.testing.assert_allclose(cast.max_rel_error, np.abs((bf16(value) - value) / value).max(), rtol=1e-6)
        assert cast.overflows == cast.underflows == 0
    assert "max_rel_error" in report.to_table()


def test_shapes_alone_are_not_measured():
    report = trn_jax.cast_report(jnp.matmul, TRN2, autocast=MATMULT)(*[jax.ShapeDtypeStruct((3, 3), jnp.float32)] * 2)
    assert report.measured is None
    assert report[0].max_abs_error is None
    assert "max_rel_error" not in report.to_table()


def test_the_worst_of_all_iterations_of_scan_and_while():
    x = normal(2, 4)
    scanned = lambda x: jax.lax.scan(lambda c, _: (c * 1.01, None), x, None, length=6)[0]
    looped = lambda x: jax.lax.while_loop(lambda s: s[0] < 6, lambda s: (s[0] + 1, s[1] * 1.01), (0, x))[1]
    worst, c = 0, x
    for _ in range(6):
        exact = c * np.float32(1.01)
        worst, c = max(worst, np.abs(bf16(exact) - exact).max()), bf16(exact)
    for f in (scanned, looped):
        (cast,) = jax.jit(trn_jax.cast_report(f, TRN2, autocast=ALL))(x)
        assert cast.max_abs_error == worst


def test_conditions_of_while_loops_are_measured_to_the_last():
    f = lambda x: jax.lax.while_loop(lambda c: c * 1.001 < 3, lambda c: c + 1, x)  # add is exact, the product is not
    casts = {cast.primitive: cast for cast in trn_jax.cast_report(f, TRN2, autocast=ALL)(jnp.float32(1))}
    exact = np.float32([1, 2, 3]) * np.float32(1.001)
    assert casts["mul"].max_abs_error == np.abs(bf16(exact) - exact).max()


def test_only_the_branch_that_ran_has_errors():
    f = lambda p, x: jax.lax.cond(p, lambda x: x * 1.01, lambda x: jnp.sin(x), x)
    casts = {cast.primitive: cast for cast in trn_jax.cast_report(f, TRN2, autocast=ALL)(jnp.bool_(False), normal(3, 8))}
    assert casts["sin"].max_abs_error > 0
    assert casts["mul"].max_abs_error == 0


@pytest.mark.parametrize(("overflow", "fmt"), [("nan", "fp8_e4m3"), ("saturate", "fp8_e4m3"), (None, "fp8_e5m2")])
def test_overflow_and_underflow_are_counted(overflow, fmt):
    largest = float(trn_jax.numerics.get_format(fmt).max_finite)
    x = jnp.array([1.0, 4 * largest, -5 * largest, 1e-12, 0.0, jnp.inf, jnp.nan, largest])
    f = lambda x, w: x[None] @ w
    report = trn_jax.cast_report(f, TRN2, autocast=trn_jax.AutoCast("matmult", fmt), overflow=overflow)(x, jnp.ones((8, 1)))
    assert report[0].overflows == 2
    assert report[0].underflows == 1
    assert report[0].max_rel_error == 1
    assert report[0].max_abs_error == np.float32(1e-12)
    assert report[1].overflows == report[1].underflows == 0


def test_round_to_is_measured():
    x = normal(4, 6)
    (cast,) = trn_jax.cast_report(lambda x: trn_jax.round_to(x, "bf16"), TRN2)(x)
    assert cast.max_abs_error == np.abs(bf16(x) - x).max()


def test_a_function_emulated_inside_is_measured_with_its_own_formats():
    inner = trn_jax.emulate(jnp.matmul, TRN2, autocast=MATMULT, rounding="stochastic", seed=3)
    report = trn_jax.cast_report(lambda x: jnp.tanh(inner(x, x)), TRN2)(normal(5, 3, 3))
    assert len(report) == 2
    assert 0 < report[0].max_rel_error < 2**-7


def test_ranks_count_together():
    mesh = jax.make_mesh((4,), ("ring",), axis_types=(jax.sharding.AxisType.Auto,))
    f = jax.shard_map(lambda x: x * 1.0078125, mesh=mesh, in_specs=jax.P("ring"), out_specs=jax.P("ring"))
    x = normal(6, 8)
    # The newest JAX converts the constant on its own first: the last cast is that of the product.
    *_, cast = jax.jit(trn_jax.cast_report(f, TRN2, autocast=ALL))(x)
    exact = x * np.float32(1.0078125)
    assert cast.max_abs_error == np.abs(bf16(exact) - exact).max()
    *_, cast = trn_jax.cast_report(f, TRN2, autocast=trn_jax.AutoCast("all", "fp8_e4m3"))(jnp.full(8, 1e4))
    assert cast.overflows == 8


def test_batches_have_a_measurement_each():
    x = normal(7, 3, 4)
    report = jax.vmap(trn_jax.cast_report(lambda x: x * 1.01, TRN2, autocast=ALL))(x)
    exact = x * np.float32(1.01)
    np.testing.assert_array_equal(report[0].max_abs_error, np.abs(bf16(exact) - exact).max(1))


def test_an_empty_array_has_no_error():
    assert [float(rounding_errors("bf16", jnp.zeros(0), jnp.zeros(0))[name]) for name in MEASURES] == [0, 0, 0, 0]
