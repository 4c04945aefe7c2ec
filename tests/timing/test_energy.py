"""Energy: by hand for single rows, linear in the chip's energies, with a gradient, and between its low and high ends."""

import jax
import numpy as np
import pytest
from hand_programs import all_reduce, dma, matmul, program, vector

import trn_jax
from trn_jax.chips import leaf_paths
from trn_jax.timing.energy import energy_by_engine, with_ends

CHIP = trn_jax.load_chip("trainium2")
LAYER = program([(dma(2e6), ()), (matmul(512.0, 512.0, 2048.0), (0,)), (vector(512.0 * 2048.0), (1,)), (dma(4e6), (2,))])


def test_parts_by_hand():
    parts, e = energy_by_engine(LAYER, CHIP), CHIP.energy
    assert LAYER.structure.operand_formats[1] == ("bf16", "bf16")
    products = 512 * 512 * 2048 * e.mac_16bit_j
    reads = 2 * (512 * 512 + 4 * 512 * 2048) * e.sbuf_j_per_byte
    sums = 4 * 512 * 2048 * 7 * e.psum_j_per_byte
    np.testing.assert_allclose(parts["tensor"], (products + reads + sums) / e.supply_share, rtol=1e-6)
    np.testing.assert_allclose(parts["dma"], 6e6 * (e.hbm_j_per_byte + e.sbuf_j_per_byte) / e.supply_share, rtol=1e-6)
    latency_s = float(trn_jax.latency(LAYER, CHIP))
    np.testing.assert_allclose(parts["static"], latency_s * e.static_w / 8 / e.supply_share, rtol=1e-6)
    assert parts["scalar"] == parts["gpsimd"] == parts["collective"] == 0
    np.testing.assert_allclose(trn_jax.energy(LAYER, CHIP), sum(parts.values()), rtol=1e-6)


def test_a_collective_takes_energy_per_byte_sent():
    alone = program([(all_reduce(8e6), ())])
    ranks = float(alone.table["ranks"][0])
    sent_bytes = 2 * (ranks - 1) / ranks * 8e6
    e = CHIP.energy
    np.testing.assert_allclose(
        energy_by_engine(alone, CHIP)["collective"], sent_bytes * (e.link_j_per_byte + 2 * e.hbm_j_per_byte) / e.supply_share, rtol=1e-6
    )


def test_energy_is_linear_in_the_energies_so_they_and_the_supply_balance():
    """Euler: sum of e dE/de over energies and power is E; the supply's elasticity is -1."""
    with jax.enable_x64(True):
        value, gradient = jax.value_and_grad(lambda chip: trn_jax.energy(LAYER, chip))(CHIP)
    elasticity = {path: float(gradient.get(path)) * CHIP.get(path) / float(value) for path in leaf_paths() if path.startswith("energy.")}
    assert elasticity.pop("energy.supply_share") == pytest.approx(-1)
    assert sum(elasticity.values()) == pytest.approx(1)
    assert elasticity["energy.static_w"] > 0
    assert elasticity["energy.hbm_j_per_byte"] > 0


def test_a_loop_counts_every_iteration():
    body = [(dma(1e6), ()), (matmul(128.0, 128.0, 512.0), (0,)), (None, (1,)), (vector(1e5), (2,))]
    looped = program(body, [(1, 2, [((1,), 1)])], trips={2: 40})
    once = program([body[0], body[1], (vector(1e5), (1,))])
    assert energy_by_engine(looped, CHIP)["tensor"] == pytest.approx(40 * float(energy_by_engine(once, CHIP)["tensor"]), rel=1e-6)


def test_more_sbuf_moves_less_and_takes_less():
    reused = program([(dma(4e6), ()), (dma(4e6), (0,)), (vector(1e6), (1,))], reuse_bytes={1: 30e6})
    small, large = (energy_by_engine(reused, CHIP.replace({"sbuf.size_bytes": size}))["dma"] for size in (8e6, 64e6))
    assert float(small) == pytest.approx(2 * float(large))


def test_low_and_high_ends_surround_the_middle():
    low, middle, high = trn_jax.energy(LAYER, with_ends(CHIP))
    assert middle == pytest.approx(float(trn_jax.energy(LAYER, CHIP)), rel=1e-6)
    assert low < middle < high < 10 * low
    assert {path for path, _, _ in CHIP.uncertainty} == {path for path in leaf_paths() if path.startswith("energy.")}


def test_many_chips_at_once():
    prices = np.array([1e-11, 3e-11, 6e-11])
    batch = trn_jax.energy(LAYER, CHIP.replace({"energy.hbm_j_per_byte": prices}))
    alone = [float(trn_jax.energy(LAYER, CHIP.replace({"energy.hbm_j_per_byte": price}))) for price in prices]
    np.testing.assert_allclose(batch, alone, rtol=1e-6)


def test_wrong_input_is_said_so():
    with pytest.raises(trn_jax.ProgramError, match="Make one with trn_jax.trace"):
        trn_jax.energy(lambda x: x, CHIP)
    with pytest.raises(trn_jax.ChipError, match="load_chip"):
        trn_jax.energy(LAYER, "trainium2")
