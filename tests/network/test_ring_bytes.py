"""What is on the wire: counted from the program, it is what the formula says."""

from functools import partial

import numpy as np
import pytest

from trn_jax.network import bytes_per_rank, ring_all_gather, ring_all_reduce, ring_bytes_per_rank, ring_reduce_scatter
from trn_jax.numerics import get_format

RANKS, SIZE = 4, 24


def sent_bytes(eqns):
    return sum(eqn.invars[0].aval.size * eqn.invars[0].aval.dtype.itemsize for eqn in eqns)


def shifts(eqns):
    return [(eqn.params["perm"][0][1] - eqn.params["perm"][0][0]) % RANKS for eqn in eqns]


@pytest.mark.parametrize("check_vma", [True, False], ids=["vma", "no_vma"])
@pytest.mark.parametrize("two_way", [False, True], ids=["one_way", "two_way"])
@pytest.mark.parametrize(
    ("wire", "reduce"),
    [("fp32", "fp32"), ("tf32", "fp32"), ("bf16", "fp32"), ("bf16", "bf16"), ("fp8_e4m3", "fp32"), ("fp8_e5m2", "fp8_e5m2")],
)
def test_all_reduce_sends_the_bytes_of_the_formula_in_the_wire_dtype(replicated_out, permutes, wire, reduce, two_way, check_vma):
    ring = replicated_out(
        partial(ring_all_reduce, axis_name="r", wire_format=wire, reduce_format=reduce, two_way=two_way), RANKS, check_vma=check_vma
    )
    eqns = permutes(ring, np.ones((RANKS, SIZE), np.float32))
    assert {eqn.invars[0].aval.dtype for eqn in eqns} == {get_format(wire).dtype or np.dtype(np.float32)}
    assert sent_bytes(eqns) == ring_bytes_per_rank(SIZE * get_format(wire).storage_bits // 8, RANKS)
    assert len(eqns) == 2 * (RANKS - 1) * (2 if two_way else 1)


def test_sums_travel_between_neighbours_only(replicated_out, permutes):
    ring = replicated_out(lambda v: ring_all_reduce(v, "r", "bf16", "bf16"), RANKS)
    assert set(shifts(permutes(ring, np.ones((RANKS, SIZE), np.float32)))) == {1}


def test_parts_travel_once_to_every_other_rank(replicated_out, permutes):
    ring = replicated_out(lambda v: ring_all_reduce(v, "r", "bf16", "fp32"), RANKS)
    assert sorted(shifts(permutes(ring, np.ones((RANKS, SIZE), np.float32)))) == [1, 1, 1, 1, 2, 3]


def test_two_way_sends_half_of_the_bytes_each_way(replicated_out, permutes):
    ring = replicated_out(lambda v: ring_all_reduce(v, "r", "fp32", two_way=True), RANKS)
    eqns = permutes(ring, np.ones((RANKS, SIZE), np.float32))
    forward = [eqn for eqn, shift in zip(eqns, shifts(eqns), strict=True) if shift == 1]
    backward = [eqn for eqn, shift in zip(eqns, shifts(eqns), strict=True) if shift == RANKS - 1]
    assert sent_bytes(forward) == sent_bytes(backward) == sent_bytes(eqns) / 2


@pytest.mark.parametrize("kind", ["reduce_scatter", "all_gather"])
def test_each_half_sends_half(kind, on_mesh, permutes):
    half = {"reduce_scatter": ring_reduce_scatter, "all_gather": ring_all_gather}[kind]
    piece = SIZE if kind == "reduce_scatter" else SIZE // RANKS
    eqns = permutes(on_mesh(lambda v: half(v, "r", "bf16"), RANKS), np.ones((RANKS, piece), np.float32))
    assert sent_bytes(eqns) == bytes_per_rank(kind, SIZE * 2, RANKS) == ring_bytes_per_rank(SIZE * 2, RANKS) / 2
