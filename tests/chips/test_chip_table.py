"""Chips as people and scripts read them."""

import json

import pytest

from trn_jax.chips import describe_chip, list_chips, load_chip
from trn_jax.chips.table import chip_json, chip_text, list_json, list_text
from trn_jax.errors import ChipError
from trn_jax.units import GHZ, KIB, MIB, format_quantity, unit_of


def test_the_list_has_one_line_per_chip():
    lines = list_text().splitlines()
    assert [line.split()[0] for line in lines] == list_chips()
    assert lines[3].endswith("8 x NeuronCore-v3, 128x128 at 2.4 GHz, SBUF 28 MiB, HBM 96 GiB at 2.9 TB/s")
    assert lines[0].endswith("rounds nothing")


@pytest.mark.parametrize("name", list_chips())
def test_the_text_shows_every_value_with_unit_basis_and_source(name):
    lines = iter(chip_text(name, width=100_000).splitlines())
    for row in describe_chip(name):  # in the same order, so that equal names in two groups cannot stand in for each other
        line = next(line for line in lines if line.startswith(f"  {row.key.split('.')[-1]} "))
        if row.key == "formats":
            assert line.split()[1:] == list(row.value)
            line = next(lines)
        else:
            assert f" {format_quantity(row.value, unit_of(row.key))} " in line
        assert line.endswith(f"{row.basis:<12}{row.source}")
        if row.low is not None:
            assert next(lines).strip().startswith("range: ")
        if row.note:
            assert next(lines).strip() == f"note: {row.note}"
    assert max(map(len, chip_text(name, width=100).splitlines())) <= 100


def test_the_text_shows_ranges_and_conflicts():
    text = chip_text("trainium2")
    assert "range: 512 GB/s to 640 GB/s" in text
    assert "note: 512 GB/s go to the four neighbours" in text


def test_json_carries_exact_values():
    data = json.loads(json.dumps(chip_json("trainium3")))
    assert (data["name"], data["core"], data["rounds"]) == ("trainium3", "NeuronCore-v4", True)
    assert data["values"]["formats"]["value"] == list(load_chip("trainium3").formats)
    assert {key: entry["value"] for key, entry in data["values"].items() if key != "formats"} == {
        key: load_chip("trainium3").get(key) for key in data["values"] if key != "formats"
    }
    assert data["values"]["dma.latency_s"]["unit"] == "s"
    assert list(json.loads(json.dumps(list_json()))) == list_chips()


def test_a_file_of_one_s_own_prints_too(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('base = "trainium1"', encoding="utf-8")
    assert chip_text(path).startswith("mine: 2 x NeuronCore-v2")
    with pytest.raises(ChipError, match="Did you mean 'trainium1'"):
        chip_text("trainium11")


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (2.4 * GHZ, "Hz", "2.4 GHz"),
        (28 * MIB, "B", "28 MiB"),
        (192 * KIB, "B", "192 KiB"),
        (400.0, "B", "400 B"),
        (1e6, "B", "1e+06 B"),
        (435.2e9, "B/s", "435.2 GB/s"),
        (1e-6, "s", "1 us"),
        (1.3e-6, "s", "1.3 us"),
        (0.1e-6, "s", "100 ns"),
        (0.0, "s", "0 s"),
        (0.861, "", "0.861"),
        (-3e-6, "s", "-3 us"),
        (60.0, "cycles", "60 cycles"),
        (2.001e-12, "J", "2.001 pJ"),
        (4.8e-13, "J/B", "480 fJ/B"),
        (115.0, "W", "115 W"),
    ],
)
def test_quantities_print_in_the_prefix_a_reader_expects(value, unit, text):
    assert format_quantity(value, unit) == text
