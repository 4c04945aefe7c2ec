"""Chip files of one's own: what is accepted, and what each mistake is told."""

import os
import pathlib
import re
import string
from importlib import resources

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trn_jax.chips import describe_chip, leaf_paths, list_chips, load_chip
from trn_jax.chips.fields import RANGES
from trn_jax.errors import ChipError

OWN = """
name = "wide"
base = "trainium2"
[tensor]
rows = { value = 256, basis = "assumed", source = "our design study", note = "twice as deep", low = 128, high = 512 }
"""


def write(folder, text, name="wide.toml"):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_a_file_with_a_base_gives_only_what_differs(tmp_path):
    path = write(tmp_path, OWN)
    chip, base = load_chip(path), load_chip("trainium2")
    assert (chip.name, chip.core, chip.tensor.rows) == ("wide", "NeuronCore-v3", 256.0)
    assert chip == base.replace({"name": "wide", "tensor.rows": 256.0})
    assert load_chip(str(path)) == chip
    row = next(row for row in describe_chip(path) if row.key == "tensor.rows")
    assert row[1:] == (256.0, "", "assumed", "our design study", "twice as deep", 128.0, 512.0)


def test_the_name_defaults_to_the_file_s_and_the_rest_to_the_base_s(tmp_path):
    chip = load_chip(write(tmp_path, 'base = "ideal"', "narrow.toml"))
    assert (chip.name, chip.rounds) == ("narrow", False)


def test_a_complete_file_needs_no_base(tmp_path):
    text = resources.files("trn_jax.chips").joinpath("trainium1.toml").read_text(encoding="utf-8")
    assert load_chip(write(tmp_path, text)) == load_chip("trainium1")


def test_a_file_is_read_again_when_it_changes(tmp_path):
    assert load_chip(write(tmp_path, OWN)).tensor.rows == 256.0
    assert load_chip(write(tmp_path, OWN.replace("256", "384"))).tensor.rows == 384.0


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("rows", "rws", r"wide.toml: unknown key 'rws' in \[tensor\]. Did you mean 'rows'\? Known: chip_peak_flop_per_s, clock_hz, cols, "),
        ("rows", "clock", r"wide.toml: tensor.clock has no unit in its key; write tensor.clock_hz."),
        ("[tensor]", "[tensr]", r"wide.toml: unknown key 'tensr'. Did you mean 'tensor'\?"),
        ("[tensor]", "tensor = 3\n[vector]", r"wide.toml: tensor = 3 must be a table: start it with \[tensor\]"),
        ("source", "sorce", r"wide.toml: tensor.rows has an unknown part 'sorce'. Did you mean 'source'\?"),
        (
            ', source = "our design study"',
            "",
            r"wide.toml: tensor.rows has no source. Every value needs value, basis \(one of documented, ",
        ),
        (', basis = "assumed"', "", r"wide.toml: tensor.rows has no basis"),
        ("value = 256, ", "", r"wide.toml: tensor.rows has no value"),
        ("assumed", "assummed", r"wide.toml: tensor.rows has basis = 'assummed'. Did you mean 'assumed'\?"),
        ("our design study", " ", r"wide.toml: tensor.rows has source = ' '; give a text that is not empty"),
        ('"our design study"', "7", r"wide.toml: tensor.rows has source = 7; give a text"),
        ("value = 256", 'value = "256"', r"wide.toml: tensor.rows = '256' is a str, not a number. Allowed: a number from 1 to 65536"),
        ("value = 256", "value = true", r"wide.toml: tensor.rows = True is a bool, not a number"),
        ("value = 256", "value = 0", r"wide.toml: tensor.rows = 0 is out of range. Allowed: a finite number from 1 to 65536"),
        ("value = 256", "value = nan", r"wide.toml: tensor.rows = nan is out of range"),
        ("value = 256", "value = -inf", r"wide.toml: tensor.rows = -inf is out of range"),
        ("low = 128", "low = 300", r"wide.toml: tensor.rows = 256 lies outside its own low = 300.0 and high = 512.0"),
        ("high = 512", "high = 200", r"wide.toml: tensor.rows = 256 lies outside its own low = 128.0 and high = 200.0"),
        ("low = 128, ", "", r"wide.toml: tensor.rows has only one of low and high"),
        ("low = 128", "low = 0", r"wide.toml \(low\): tensor.rows = 0 is out of range"),
        (
            "{ value = 256, ",
            "256 # ",
            r"wide.toml: tensor.rows = 256 has no basis and no source. Write \{ value = 256, basis = \"assumed\"",
        ),
        ('base = "trainium2"', "", r"wide.toml: 63 values are missing: formats, cores, tensor.cols, .*write base = \"trainium2\""),
        ("trainium2", "trainum2", r"wide.toml: base = 'trainum2' is not a chip that comes with trn_jax. Did you mean 'trainium2'\?"),
        ('"trainium2"', '["trainium2"]', r"wide.toml: base = \['trainium2'\] is not a chip"),
        ('name = "wide"', "name = 3", r"wide.toml: name = 3 must be a text"),
        ('name = "wide"', "rounds = 0", r"wide.toml: rounds = 0 must be true or false"),
        ("[tensor]", "[tensor", r"wide.toml: not valid TOML: .*line 4"),
        ("[tensor]", 'formats = ["bf16"]\n[tensor]', r"wide.toml: formats = \['bf16'\] has no basis and no source"),
        (
            "[tensor]",
            FORMATS := 'formats = { value = ["bf17"], basis = "assumed", source = "-" }\n[tensor]',
            r"formats contains 'bf17'. Did you mean",
        ),
        ("[tensor]", FORMATS.replace('["bf17"]', "[]"), r"wide.toml: formats = \[\] must be a list of number formats. Known: "),
    ],
)
def test_a_mistake_is_named_with_file_key_and_what_is_allowed(tmp_path, old, new, message):
    assert old in OWN
    path = write(tmp_path, OWN.replace(old, new))
    with pytest.raises(ChipError, match=message) as caught:
        load_chip(path)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("trainium4", r"No chip is called 'trainium4'. Did you mean 'trainium3'\? Known: ideal, .*the path of a .toml file"),
        ("", r"No chip is called ''"),
        ("Trainium2", r"No chip is called 'Trainium2'. Did you mean 'trainium2'\?"),
        ("nowhere/chip.toml", r"there is no such chip file. Give a path that exists, or one of: ideal, "),
        (pathlib.Path("nowhere"), r"nowhere: there is no such chip file"),
        (3, r"load_chip: got 3; give a chip's name or the path of a TOML file"),
        (None, r"load_chip: got None"),
    ],
)
def test_an_unknown_chip_lists_the_known_ones(name, message):
    with pytest.raises(ChipError, match=message):
        load_chip(name)


def test_unreadable_files_are_chip_errors(tmp_path):
    with pytest.raises(ChipError, match=f"{re.escape(str(tmp_path))}: cannot be read as a chip file: "):
        load_chip(tmp_path)
    path = tmp_path / "latin.toml"
    path.write_bytes(b'name = "\xff"')
    with pytest.raises(ChipError, match=r"latin.toml: not UTF-8 text \(invalid start byte at byte 8\)"):
        load_chip(path)
    path.write_bytes(b"")
    with pytest.raises(ChipError, match=r"latin.toml: 64 values are missing"):
        load_chip(path)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root reads every file")
def test_a_file_without_permission_is_a_chip_error(tmp_path):
    path = write(tmp_path, OWN)
    path.chmod(0)
    with pytest.raises(ChipError, match="cannot be read as a chip file: Permission denied"):
        load_chip(path)


@pytest.mark.parametrize("path", leaf_paths())
def test_both_ends_of_every_range_are_held(path):
    chip, allowed = load_chip("ideal"), RANGES[path]
    assert chip.replace({path: allowed.high}).get(path) == allowed.high
    for outside in (allowed.high * 1.01, -1.0, allowed.low if allowed.above else allowed.low - 0.5):
        with pytest.raises(ChipError, match=rf"{path} = .* is out of range. Allowed: a finite number "):
            chip.replace({path: outside})


@settings(deadline=None, max_examples=50)
@given(text=st.text(alphabet=string.printable, max_size=80))
def test_no_text_escapes_as_another_exception(tmp_path_factory, text):
    path = write(tmp_path_factory.getbasetemp(), text, "any.toml")
    with pytest.raises(ChipError, match=r"any.toml: "):
        load_chip(path)


def test_a_byte_order_mark_is_no_mistake(tmp_path):
    assert load_chip(write(tmp_path, "\ufeff" + OWN)).tensor.rows == 256.0


def test_chip_names_do_not_depend_on_the_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "not a chip", "trainium2")
    assert load_chip("trainium2").name == "trainium2"
    assert "trainium2" in list_chips()
