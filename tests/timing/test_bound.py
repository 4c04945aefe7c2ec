"""The datasheet bound: what it counts, and that nothing beats it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hand_programs import MIB, all_reduce, dma, matmul, program, vector

from trn_jax import ProgramError, load_chip
from trn_jax.timing.bound import bound
from trn_jax.timing.latency import latency

CHIP = load_chip("trainium2")


def test_products_run_at_the_full_array():
    hand = program([(matmul(512, 1024, 256), ()), (matmul(512, 1024, 256, "fp32"), ())])
    expected = 512 * 1024 * 256 * (1 + 4) / (128 * 128 * 2.4e9)
    np.testing.assert_allclose(bound(hand, CHIP), expected, rtol=1e-6)


def test_bytes_that_must_move_move_once_at_the_datasheet_rate():
    hand = program([(dma(64 * MIB), ()), (dma(64 * MIB), (0,))], reuse_bytes={1: 100 * MIB})
    np.testing.assert_allclose(bound(hand, CHIP), 64 * MIB / 435.2e9, rtol=1e-6)


def test_collectives_send_over_all_links():
    hand = program([(all_reduce(64 * MIB, ranks=4.0), ())])
    np.testing.assert_allclose(bound(hand, CHIP), 2 * 3 / 4 * 64 * MIB / 640e9, rtol=1e-6)
    alone = program([(all_reduce(64 * MIB, ranks=1.0), ())])
    assert bound(alone, CHIP) == 0.0


def test_iterations_count_and_other_engines_do_not():
    rows = [(matmul(512, 512, 512), ()), (vector(1e9), (0,)), (None, (1,))]
    hand = program(rows, [(0, 2, [])], trips={2: 10})
    np.testing.assert_allclose(bound(hand, CHIP), 10 * 512**3 / (128 * 128 * 2.4e9), rtol=1e-6)


@pytest.mark.parametrize("name", ["trainium1", "trainium2", "trainium3", "inferentia2"])
def test_no_latency_beats_it(name):
    chip = load_chip(name)
    rows = [(matmul(512, 512, 4096), ()), (dma(64 * MIB, 65536.0), ()), (all_reduce(64 * MIB), ())]
    for row in rows:
        hand = program([row])
        assert bound(hand, chip) <= latency(hand, chip, overlap=1.0)


def test_it_is_a_function_of_the_chip_like_any_other():
    hand = program([(matmul(512, 512, 512), ())])
    slope = jax.grad(lambda clock_ghz: bound(hand, CHIP.replace({"tensor.clock_hz": clock_ghz * 1e9})))(2.4)
    np.testing.assert_allclose(slope, -bound(hand, CHIP) / 2.4, rtol=1e-5)
    assert bound(hand, CHIP.replace({"tensor.clock_hz": jnp.array([1e9, 2e9])})).shape == (2,)
    with pytest.raises(ProgramError, match="a function where a Program"):
        bound(lambda x: x, CHIP)
