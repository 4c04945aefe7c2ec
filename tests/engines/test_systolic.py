"""The systolic array: values bit for bit a sum down the column, cycles of the serial schedule, work where the wavefront is."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from product_bounds import normals, sequential_reference

import trn_jax as trn
from trn_jax.engines.systolic import DATAFLOWS
from trn_jax.engines.tensor import scalesim_cycles, systolic, wavefront

# M, K, N, rows, cols: exact fits, tails in every dimension, one element, a wide and a tall array
CASES = [(4, 4, 4, 4, 4), (5, 7, 3, 4, 4), (1, 1, 1, 3, 2), (9, 5, 8, 3, 5), (3, 10, 6, 8, 2)]


@pytest.mark.parametrize("dataflow", DATAFLOWS)
@pytest.mark.parametrize(("m", "k", "n", "rows", "cols"), CASES)
def test_values_are_sums_in_pe_order_bit_for_bit(m, k, n, rows, cols, dataflow):
    a, b = normals(0, (m, k)), normals(1, (k, n))
    run = systolic(a, b, rows, cols, dataflow)
    depth = k if dataflow == "os" else rows  # with outputs held, PSUM has nothing to add
    np.testing.assert_array_equal(run.output, sequential_reference(a, b, depth))


@pytest.mark.parametrize("dataflow", DATAFLOWS)
def test_the_full_array_with_tails_in_every_dimension(dataflow):
    a, b = normals(0, (127, 129)), normals(1, (129, 513))
    run = systolic(a, b, dataflow=dataflow)
    np.testing.assert_array_equal(run.output, sequential_reference(a, b, 129 if dataflow == "os" else 128))


@pytest.mark.parametrize("dataflow", DATAFLOWS)
@pytest.mark.parametrize(("m", "k", "n", "rows", "cols"), CASES)
def test_one_scan_step_is_one_clock_cycle(m, k, n, rows, cols, dataflow):
    a, b = jnp.ones((m, k)), jnp.ones((k, n))
    steps = clock_steps(jax.make_jaxpr(lambda a, b: systolic(a, b, rows, cols, dataflow).output)(a, b).jaxpr)
    run = systolic(a, b, rows, cols, dataflow)
    assert run.cycles == steps - 1 == scalesim_cycles(m, k, n, rows, cols, dataflow)
    assert run.activity.shape == (steps,)
    assert run.activity.sum() == m * k * n
    assert run.utilisation == pytest.approx(run.activity.mean() / (rows * cols))


def clock_steps(jaxpr):
    """Iterations of the innermost scans of a jaxpr."""
    total = 0
    for eqn in jaxpr.eqns:
        inner = sum(clock_steps(body) for body in jax.extend.core.jaxprs_in_params(eqn.params))
        total += eqn.params["length"] * max(inner, 1) if eqn.primitive.name == "scan" else inner
    return total


@pytest.mark.parametrize(
    ("sizes", "dataflow", "cycles"),
    [
        ((128, 128, 512), "ws", 2_039),
        ((512, 512, 512), "ws", 14_303),
        ((1024, 1024, 1024), "ws", 89_983),
        ((4096, 4096, 4096), "ws", 4_585_471),
        ((512, 512, 512), "os", 16 * (128 + 128 + 512 - 2) - 1),
        ((128, 128, 512), "is", 2 * 128 + 128 + 512 - 2 - 1),
    ],
)
def test_cycles_are_those_of_scale_sim(sizes, dataflow, cycles):
    assert scalesim_cycles(*sizes, 128, 128, dataflow) == cycles


def test_the_wavefront_crosses_the_array_diagonally():
    one_row = np.stack([wavefront(3, 4, 1, cycle) for cycle in range(6)])
    for cycle in range(6):
        expected = np.fromfunction(lambda row, col, cycle=cycle: row + col == cycle, (3, 4))
        np.testing.assert_array_equal(one_row[cycle], expected)
    run = systolic(np.ones((5, 3), np.float32), np.ones((3, 4), np.float32), 3, 4)
    streaming = [wavefront(3, 4, 5, cycle).sum() for cycle in range(5 + 3 + 4 - 2)]
    np.testing.assert_array_equal(run.activity, [0] * 3 + streaming)


def test_output_is_differentiable_and_the_record_passes_through_jit():
    a, b = jnp.asarray(normals(0, (5, 6))), jnp.asarray(normals(1, (6, 3)))
    run = jax.jit(lambda a, b: systolic(a, b, 4, 4))(a, b)
    assert run.cycles == scalesim_cycles(5, 6, 3, 4, 4, "ws")
    gradient = jax.grad(lambda a: (systolic(a, b, 4, 4).output ** 2).sum())(a)
    np.testing.assert_allclose(gradient, jax.grad(lambda a: ((a @ b) ** 2).sum())(a), rtol=1e-5)


def test_errors_say_what_is_wrong_and_what_to_do():
    a = np.ones((3, 4), np.float32)
    with pytest.raises(ValueError, match=r"a is \(3, 4\) and b is \(3, 4\); K must be the same"):
        systolic(a, a)
    with pytest.raises(ValueError, match="at least one element and one PE"):
        systolic(a, a.T, rows=0)
    with pytest.raises(trn.UnsupportedError, match="Did you mean 'ws'"):
        systolic(a, a.T, dataflow="wss")
    with pytest.raises(trn.UnsupportedError, match=r"simulate 11 clock cycles .*limit is 10.*fidelity='tiled'"):
        systolic(a, a.T, 4, 3, max_cycles=10)
