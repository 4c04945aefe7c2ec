"""The Tensor Engine's arithmetic: operands rounded to a format, fp32 sums K tile by K tile, the same function in three fidelities."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from product_bounds import normals, order_bound, tiled_reference, whole_numbers

import trn_jax as trn
from trn_jax.engines.kind import Execution
from trn_jax.engines.layout import DotLayout
from trn_jax.engines.tensor import compute_matmul, matmul
from trn_jax.graph.instruction import Instruction
from trn_jax.numerics import FORMATS, round_to, start_stream

FIDELITIES = ("fused", "tiled", "systolic")
CHIP = trn.load_chip("trainium2")
SMALL = CHIP.replace({"tensor.rows": 4.0, "tensor.cols": 4.0})
MATRICES = (((1,), (0,)), ((), ()))


def nc_matmul(lhs, rhs, *, fidelity="tiled", formats=("", ""), numbers=MATRICES, rounding="nearest", seed=None):
    """The instruction on a 4 x 4 array."""
    instruction = Instruction(engine="tensor", kind="nc_matmul", operand_formats=formats, layout=DotLayout(numbers))
    function = lambda lhs, rhs: [jax.lax.dot_general(lhs, rhs, numbers, preferred_element_type=jnp.float32)]
    execution = Execution(fidelity=fidelity, rounding=rounding, rows=4, cols=4)
    return compute_matmul(instruction, function, (lhs, rhs), execution, None if seed is None else start_stream(seed))[0]


def uneven_tiles(k, rows):
    """Operands whose products are exact within a tile, while the sum over tiles rounds: its order can be seen in the bits."""
    scale = np.repeat(2.0 ** (9 * (np.arange(-(-k // rows)) * 5 % 4)), rows)[:k].astype(np.float32)
    return whole_numbers(2, (127, k)) * scale, whole_numbers(3, (k, 20))


@pytest.mark.parametrize("fidelity", FIDELITIES)
@pytest.mark.parametrize(("fmt", "expected"), [("fp32", 257.0), ("bf16", 256.0), ("tf32", 257.0), ("fp16", 257.0)])
def test_the_operand_format_decides_what_is_lost(fidelity, fmt, expected):
    """1 + 2^-8 needs 8 mantissa bits, of which bf16 has 7."""
    product = matmul(jnp.asarray([[1 + 2.0**-8]]), jnp.asarray([[256.0]]), SMALL, fmt, fidelity)
    assert product.dtype == jnp.float32
    assert product[0, 0] == expected


@pytest.mark.parametrize("fidelity", ["fused", "tiled"])
def test_a_long_bf16_sum_does_not_stall(fidelity):
    ones = jnp.ones((70_000,), jnp.bfloat16)
    total = matmul(ones[None], ones[:, None], CHIP, "bf16", fidelity)[0, 0]
    assert total == 70_000
    assert round_to(total, "bf16") == 70_144


def test_sizes_that_fill_no_tile_equal_the_sum_in_psum_order_bit_for_bit():
    lhs_MK, rhs_KN = uneven_tiles(519, 128)
    expected = tiled_reference(lhs_MK, rhs_KN, 128)
    np.testing.assert_array_equal(matmul(lhs_MK, rhs_KN, CHIP, "fp32", "tiled"), expected)
    backwards = tiled_reference(lhs_MK[:, ::-1], rhs_KN[::-1], 128)
    assert (expected != backwards).any()  # the data can tell one order from another


@pytest.mark.parametrize("fidelity", FIDELITIES)
def test_every_fidelity_is_within_the_bound_of_a_sum_in_any_order(fidelity):
    lhs_MK, rhs_KN = normals(0, (17, 30)), normals(1, (30, 9))
    exact = lhs_MK.astype(np.float64) @ rhs_KN.astype(np.float64)
    product = np.asarray(matmul(lhs_MK, rhs_KN, SMALL, "fp32", fidelity))
    assert (np.abs(product - exact) <= order_bound(lhs_MK, rhs_KN)).all()


@pytest.mark.parametrize("fidelity", FIDELITIES)
def test_fidelities_agree_exactly_where_sums_are_exact(fidelity):
    lhs_MK, rhs_KN = whole_numbers(0, (7, 9)), whole_numbers(1, (9, 5))
    np.testing.assert_array_equal(matmul(lhs_MK, rhs_KN, SMALL, "bf16", fidelity), lhs_MK @ rhs_KN)


@pytest.mark.parametrize("fmt", FORMATS)
def test_operands_are_rounded_once_to_any_format(fmt):
    lhs_MK, rhs_KN = jnp.asarray(normals(0, (3, 4))), jnp.asarray(normals(1, (4, 2)))
    expected = round_to(lhs_MK, fmt) @ round_to(rhs_KN, fmt)
    np.testing.assert_array_equal(nc_matmul(lhs_MK, rhs_KN, formats=(fmt, fmt)), expected)


def test_each_operand_has_its_own_format_and_an_empty_one_leaves_it():
    lhs_MK, rhs_KN = jnp.asarray([[1 + 2.0**-8]]), jnp.asarray([[1 + 2.0**-8]])
    assert nc_matmul(lhs_MK, rhs_KN, formats=("bf16", ""))[0, 0] == 1 + 2.0**-8
    assert nc_matmul(lhs_MK, rhs_KN, formats=("", "bf16"))[0, 0] == 1 + 2.0**-8


@pytest.mark.parametrize("fidelity", FIDELITIES)
def test_narrow_and_mixed_dtypes_accumulate_in_fp32(fidelity):
    lhs_MK = jnp.asarray(whole_numbers(0, (3, 9), 100), jnp.bfloat16)
    rhs_KN = jnp.asarray(whole_numbers(1, (9, 2), 100), jnp.bfloat16)
    expected = np.asarray(lhs_MK, np.float32) @ np.asarray(rhs_KN, np.float32)
    np.testing.assert_array_equal(nc_matmul(lhs_MK, rhs_KN, fidelity=fidelity), expected)
    if fidelity != "fused":  # where the dot is the caller's
        np.testing.assert_array_equal(nc_matmul(lhs_MK, rhs_KN.astype(jnp.float32), fidelity=fidelity), expected)


def test_stochastic_rounding_uses_the_seed_and_one_stream_per_operand():
    x = jnp.full((4, 4), 1 + 2.0**-8)
    identity = jnp.eye(4)
    rounded = lambda seed: nc_matmul(x, identity, formats=("bf16", "bf16"), rounding="stochastic", seed=jnp.uint32(seed))
    other_side = nc_matmul(identity, x, formats=("bf16", "bf16"), rounding="stochastic", seed=jnp.uint32(1))
    assert set(np.unique(rounded(1))) == {1.0, 1 + 2.0**-7}
    np.testing.assert_array_equal(rounded(1), rounded(1))
    assert (rounded(1) != rounded(2)).any()
    assert (rounded(1) != other_side).any()


def test_integers_are_multiplied_as_they_are():
    lhs_MK, rhs_KN = jnp.full((2, 9), 2**24 + 1, jnp.int32), jnp.ones((9, 2), jnp.int32)
    instruction = Instruction(engine="tensor", kind="nc_matmul", operand_formats=("", ""), layout=DotLayout(MATRICES))
    (product,) = compute_matmul(instruction, lambda a, b: [a @ b], (lhs_MK, rhs_KN), Execution(rows=4), None)
    np.testing.assert_array_equal(product, np.full((2, 2), 9 * (2**24 + 1)))


def test_infinities_stay_in_their_rows_and_columns():
    """Zeros that fill up a tile, or idle PEs, must not meet an infinity."""
    lhs_MK = jnp.ones((3, 6)).at[1, 2].set(jnp.inf)
    for fidelity in FIDELITIES:
        product = np.asarray(nc_matmul(lhs_MK, jnp.ones((6, 5)), fidelity=fidelity))
        np.testing.assert_array_equal(product, np.where(np.arange(3)[:, None] == 1, np.inf, np.full((3, 5), 6.0)))


def test_tiles_ask_for_products_in_full_fp32():
    """A GPU or TPU would otherwise take fp32 operands in a narrower format."""
    text = str(jax.make_jaxpr(nc_matmul)(jnp.ones((3, 12)), jnp.ones((12, 3))))
    assert "scan" in text
    assert text.count("Precision.HIGHEST") >= 2 * text.count("dot_general")


def test_the_ideal_chip_rounds_nothing():
    product = matmul(jnp.asarray([[1 + 2.0**-8]]), jnp.asarray([[256.0]]), trn.load_chip("ideal"), "bf16", "tiled")
    assert product[0, 0] == 257


def test_errors_say_what_does_not_fit():
    x = jnp.ones((2, 3))
    with pytest.raises(ValueError, match=r"lhs is \[2, 3\] and rhs is \[2, 3\]; K must be the same"):
        matmul(x, x, CHIP)
    with pytest.raises(trn.FormatError, match="Did you mean 'bf16'"):
        matmul(x, x.T, CHIP, "bf61")
    with pytest.raises(trn.FormatError, match=r"trainium2 has no fp8_e4m3fn operands; it takes .*bf16"):
        matmul(x, x.T, CHIP, "fp8_e4m3fn")
    with pytest.raises(trn.FormatError, match="Did you mean 'tiled'"):
        matmul(x, x.T, CHIP, fidelity="tilde")
    with pytest.raises(trn.FormatError, match="seed="):
        matmul(x, x.T, CHIP, rounding="stochastic")
    with pytest.raises(trn.UnsupportedError, match=r"4,585,471 clock cycles .*fidelity='tiled'"):
        jax.eval_shape(lambda x: matmul(x, x, CHIP), jax.ShapeDtypeStruct((4096, 4096), jnp.float32))
