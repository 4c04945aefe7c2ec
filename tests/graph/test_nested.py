"""emulate and round_to inside a function that is traced for its time or its casts, and values no engine has."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import trn_jax

from programs import arrays, mlp_arguments, mlp_loss  # isort: skip

IDEAL, TRN2 = trn_jax.load_chip("ideal"), trn_jax.load_chip("trainium2")
BF16 = trn_jax.AutoCast("matmult", "bf16")


def updated(params, gradient):
    return jax.tree.map(lambda w, g: w - 0.1 * g, params, gradient)


def plain_step(params, x):
    return updated(params, jax.grad(mlp_loss)(params, x))


def steps():
    emulated = lambda f: trn_jax.emulate(f, TRN2, autocast=BF16, rounding="stochastic", seed=jnp.uint32(1))
    return {
        "emulated gradient": lambda params, x: updated(params, emulated(jax.grad(mlp_loss))(params, x)),
        "gradient of the emulation": lambda params, x: updated(params, jax.grad(emulated(mlp_loss))(params, x)),
        "jitted": jax.jit(lambda params, x: updated(params, jax.jit(emulated(jax.grad(mlp_loss)))(params, x))),
        "with a static option": lambda params, x: updated(
            params, emulated(lambda p, x, mode: jax.grad(mlp_loss)(p, x))(params, x, mode="train")
        ),
    }


@pytest.mark.parametrize("name", steps())
def test_a_step_that_emulates_inside_is_timed_as_the_chip_runs_it(name):
    params, x = mlp_arguments()
    expected, got = trn_jax.trace(plain_step, params, x, autocast=BF16), trn_jax.trace(steps()[name], params, x)
    record = lambda program: [(i.engine, i.kind, i.function, i.operand_formats) for i in program.instructions]
    assert record(got) == record(expected)
    assert ("tensor", "nc_matmul", "dot_general", ("bf16", "bf16")) in record(got)


def test_what_is_timed_and_what_is_run_do_not_share_a_cache():
    params, x = mlp_arguments()
    step = steps()["jitted"]
    trn_jax.trace(step, params, x)
    rounded = step(params, x)
    assert not np.array_equal(rounded[0], plain_step(params, x)[0])
    assert len(trn_jax.trace(step, params, x)) == len(trn_jax.trace(plain_step, params, x, autocast=BF16))


def test_the_casts_of_a_part_that_is_emulated_are_its_own():
    a, b = arrays((4, 8), (8, 3))
    part = lambda a, b: (trn_jax.emulate(jnp.matmul, TRN2, autocast=trn_jax.AutoCast("matmult", "fp8_e5m2"))(a, b), a @ b)
    report = trn_jax.cast_report(part, TRN2, autocast=BF16)(a, b)
    assert [cast.to_format for cast in report] == ["fp8_e5m2", "fp8_e5m2", "bf16", "bf16"]


@pytest.mark.parametrize("options", [{}, {"rounding": "stochastic", "seed": 3}])
def test_round_to_is_one_cast(options):
    f = lambda x: trn_jax.round_to(jnp.sin(x), "fp8_e5m2", **options) * 2.0
    (x,) = arrays((4, 128))
    rows = [(i.kind, i.function) for i in trn_jax.trace(f, x, passes=()).instructions if i.engine != "dma" and i.work.elements > 1]
    assert rows == [("activation", "sin"), ("tensor_copy", "cast"), ("tensor_scalar", "multiply")]
    (cast,) = trn_jax.cast_report(f, TRN2)(x)
    assert (cast.primitive, cast.to_format, cast.elements) == ("round_to", "fp8_e5m2", x.size)
    assert "test_nested.py" in cast.source
    for chip in (IDEAL, TRN2):
        np.testing.assert_array_equal(jax.jit(trn_jax.emulate(f, chip))(x), jax.jit(f)(x))
    assert jax.grad(lambda x: trn_jax.emulate(f, TRN2)(x).sum())(x).shape == x.shape


def test_64_bit_floats_are_refused_where_the_chip_rounds():
    f = lambda x: x * 2
    with jax.enable_x64(True):
        x = jnp.ones(3, jnp.float64)
        with pytest.raises(trn_jax.FormatError, match=r"'mul' at .*test_nested\.py.*float64\[3\].*no 64-bit floats.*dtype=jnp\.float32"):
            trn_jax.emulate(f, TRN2)(x)
        with pytest.raises(trn_jax.FormatError, match="no 64-bit floats"):
            trn_jax.trace(f, x)
        assert trn_jax.emulate(f, IDEAL)(x).dtype == jnp.float64
        narrow = trn_jax.emulate(lambda x: x[jnp.arange(2)] * 2, TRN2)(jnp.ones(3, jnp.float32))  # indices are 64 bits wide
        assert narrow.dtype == jnp.float32
