"""Programs with every kind of loop, branch, custom rule and mesh: watched, they give the bits they give unwatched."""

import jax
import numpy as np
import pytest
from corpus import ALL_BF16, SMALL, numbers, quick_jit
from corpus_control import CASES as CONTROL
from corpus_mesh import CASES as MESH

import trn_jax

CASES = {**CONTROL, **MESH}
OPTIONS = {"autocast": ALL_BF16, "fidelity": "fused"}


@pytest.mark.slow
@pytest.mark.parametrize("watch", [trn_jax.find_nonfinite, trn_jax.tap])
@pytest.mark.parametrize("name", CASES)
def test_outputs_are_those_of_emulate(name, watch):
    case = CASES[name]()
    watched = quick_jit(watch(case.fn, SMALL, **OPTIONS))(*case.args)
    plain = quick_jit(trn_jax.emulate(case.fn, SMALL, **OPTIONS))(*case.args)
    assert jax.tree.structure(watched.outputs) == jax.tree.structure(plain)
    for a, b in zip(numbers(watched.outputs), numbers(plain), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_roundings_are_measured_where_they_are_listed(name):
    case = CASES[name]()
    report = quick_jit(trn_jax.cast_report(case.fn, SMALL, **OPTIONS))(*case.args)
    for cast in report:
        assert np.isfinite(cast.max_abs_error)
        assert 0 <= cast.max_rel_error <= 1
