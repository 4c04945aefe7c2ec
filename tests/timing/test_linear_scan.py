"""A scan that is a linear recurrence is one instruction; any other keeps its loop."""

import jax
import jax.numpy as jnp
import pytest
from traced_programs import compute

from trn_jax import load_chip
from trn_jax.timing.schedule import schedule
from trn_jax.timing.trace import trace


def shape(*sizes):
    return jax.ShapeDtypeStruct(sizes, jnp.float32)


def recur(state, x):
    state = x[0] * state + x[1]
    return state, state


def along_rows(a_CT, b_CT):
    _, states_TC = jax.lax.scan(recur, jnp.zeros_like(a_CT[:, 0]), (jnp.exp(a_CT).T, jnp.tanh(b_CT).T))
    return states_TC.T + 1.0


def test_a_linear_recurrence_is_one_instruction_and_its_transposes_are_layout():
    program = trace(along_rows, shape(128, 512), shape(128, 512))
    kinds = [kind for _, kind, _ in compute(program)]
    assert kinds == ["activation", "activation", "tensor_tensor_scan", "tensor_scalar"]
    (scan,) = [row for row in program.to_table() if row["kind"] == "tensor_tensor_scan"]
    assert scan["elements"] == 128 * 512
    assert program.compulsory_bytes == 3 * 128 * 512 * 4
    assert program.structure.loops == ()


OTHERS = {
    "not linear": lambda state, x: (jnp.tanh(x[0] * state + x[1]),) * 2,
    "multiplied by itself": lambda state, x: (state * state + x[1],) * 2,
    "added to itself": lambda state, x: (x[0] * state + state,) * 2,
    "other outputs": lambda state, x: (x[0] * state + x[1], state),
}


@pytest.mark.parametrize("name", OTHERS)
def test_any_other_scan_stays_a_loop(name):
    def f(a, b):
        return jax.lax.scan(OTHERS[name], jnp.zeros_like(a[0]), (a, b))

    assert len(trace(f, shape(64, 128), shape(64, 128)).structure.loops) == 1


def test_a_short_recurrence_is_unrolled_like_any_loop():
    kinds = [row["kind"] for row in trace(along_rows, shape(128, 4), shape(128, 4)).to_table()]
    assert "tensor_tensor_scan" not in kinds


def test_the_recurrence_takes_two_cycles_a_column():
    program = trace(along_rows, shape(128, 8192), shape(128, 8192))
    (row,) = [row["row"] for row in program.to_table() if row["kind"] == "tensor_tensor_scan"]
    occupancy_s = float(schedule(program, load_chip("trainium1")).occupancy_s[row])
    assert occupancy_s * 1.12e9 == pytest.approx(2 * 8192, rel=0.02)
