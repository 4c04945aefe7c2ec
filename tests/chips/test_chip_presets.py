"""The chips that come with trn_jax: complete, sourced, and consistent with the figures AWS prints."""

import dataclasses

import jax
import pytest

from trn_jax.chips import describe_chip, leaf_paths, list_chips, load_chip
from trn_jax.chips.fields import BASES, RANGES
from trn_jax.numerics import BLOCK_FORMATS, FORMATS

ALL_CHIPS = list_chips()


def test_the_five_chips_are_listed():
    assert ALL_CHIPS == ["ideal", "inferentia2", "trainium1", "trainium2", "trainium3"]


@pytest.mark.parametrize("name", ALL_CHIPS)
def test_every_value_has_a_unit_a_basis_and_a_source(name):
    rows = describe_chip(name)
    assert [row.key for row in rows] == ["formats", *leaf_paths()]
    for row in rows:
        assert row.basis in BASES, row
        assert len(row.source) > 5, row
        if row.low is not None and row.high is not None:
            assert row.low <= row.value <= row.high, row
        if row.value not in (1.0, 0.5, 2.0, 4.0) and isinstance(row.value, float) and row.value % 1:
            assert row.unit or row.key.endswith(("rate", "share")), f"{row.key} needs a unit"


@pytest.mark.parametrize("name", ALL_CHIPS)
def test_leaves_are_python_floats_in_the_order_of_the_paths(name):
    chip = load_chip(name)
    leaves = jax.tree.leaves(chip)
    assert [type(leaf) for leaf in leaves] == [float] * len(RANGES)
    assert [chip.get(path) for path in leaf_paths(chip)] == leaves
    assert chip.name == name
    assert set(chip.formats) <= {*FORMATS, *BLOCK_FORMATS}


def test_every_field_of_the_record_has_an_allowed_range_and_the_other_way_round():
    chip = load_chip("trainium2")
    paths = []
    for field in dataclasses.fields(chip):
        value = getattr(chip, field.name)
        if dataclasses.is_dataclass(value):
            paths += [f"{field.name}.{inner.name}" for inner in dataclasses.fields(value)]
        elif not field.metadata.get("static"):
            paths.append(field.name)
    assert paths == list(RANGES)


@pytest.mark.parametrize(
    ("name", "core_tflops", "printed_per_chip"),
    [("trainium1", 91.75, 190.0), ("inferentia2", 91.75, 190.0), ("trainium2", 78.64, 667.0), ("trainium3", 78.64, 671.0)],
)
def test_peak_is_the_cores_own_and_at_most_the_chip_page_s(name, core_tflops, printed_per_chip):
    chip = load_chip(name)
    peak = 2 * chip.tensor.rows * chip.tensor.cols * chip.tensor.clock_hz
    assert peak == pytest.approx(core_tflops * 1e12, rel=1e-3)
    assert 0.93 < chip.cores * peak / (printed_per_chip * 1e12) < 1.0


def test_trainium2_peaks_by_level():
    chip = load_chip("trainium2")
    core = 2 * chip.tensor.rows * chip.tensor.cols * chip.tensor.clock_hz
    assert core == 78.6432e12
    assert 2 * core == pytest.approx(157.3e12, rel=1e-3)
    assert chip.cores * core == pytest.approx(629.1e12, rel=1e-3)
    assert core / chip.tensor.passes_fp8 == pytest.approx(158e12, rel=1e-2)
    assert core / chip.tensor.passes_fp32 == pytest.approx(20e12, rel=2e-2)


@pytest.mark.parametrize(
    ("name", "dma_gb_per_s", "hbm_share_gb_per_s", "sbuf_kib_per_partition"),
    [
        ("trainium1", 272.0, 410.0, 192),
        ("inferentia2", 272.0, 410.0, 192),
        ("trainium2", 368.0, 362.5, 224),
        ("trainium3", 528.0, 612.5, 256),
    ],
)
def test_memory_figures_multiply_out(name, dma_gb_per_s, hbm_share_gb_per_s, sbuf_kib_per_partition):
    chip = load_chip(name)
    assert chip.dma.bandwidth_bytes_per_s * chip.dma.rate == pytest.approx(dma_gb_per_s * 1e9, rel=1e-12)
    assert chip.hbm.bandwidth_bytes_per_s / chip.hbm.stacks / chip.hbm.active_cores == pytest.approx(hbm_share_gb_per_s * 1e9)
    assert chip.hbm.stacks * chip.hbm.active_cores == chip.cores
    assert chip.sbuf.size_bytes / chip.tensor.rows == sbuf_kib_per_partition * 1024
    assert chip.psum.size_bytes / chip.psum.banks / chip.tensor.cols == 4 * chip.tensor.max_moving_columns


def test_ideal_is_trainium2_without_rounding():
    ideal, trainium2 = load_chip("ideal"), load_chip("trainium2")
    assert jax.tree.leaves(ideal) == jax.tree.leaves(trainium2)
    assert trainium2.rounds
    assert not ideal.rounds
