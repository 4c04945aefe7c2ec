import pytest

from trn_jax import load_chip, load_software
from trn_jax.errors import ProgramError
from trn_jax.software.loader import _blocks

BLOCKS = _blocks()
CHIPS = ("trainium1", "trainium2", "trainium3", "inferentia2")


def test_a_block_by_name_and_by_every_release_it_holds_for():
    for name, block in BLOCKS.items():
        assert load_software(name) == block
        for release in (block.first, block.last, f"{block.first}.1", f"v{block.last}"):
            assert load_software(release) == block
            assert not load_software(release).note
    assert load_software().name == "neuron"
    assert load_software("2.26").release == "2.20 to 2.26"
    assert load_software("2.18").release == "2.18"


@pytest.mark.parametrize(("release", "used"), [("2.27", "neuron"), ("2.32.0", "neuron"), ("2.19", "neuron-2.18"), ("2.12", "neuron-2.11")])
def test_a_release_without_figures_gets_those_before_it_and_a_note(release, used):
    found = load_software(release)
    assert found.name == used
    assert found.note == f"no figures of release {release} are known: these are of {BLOCKS[used].release}"
    assert found.overheads == BLOCKS[used].overheads


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (
            "2.9",
            r"SDK 2\.9 are known.*Known: 2\.10, 2\.11, 2\.13 to 2\.14, 2\.18, 2\.20 to 2\.26.*closest is 2\.10\.",
        ),
        ("1.19", r"closest is 2\.10\."),
        ("3.0", r"closest is 2\.20 to 2\.26\."),
        ("neurn", r"no software block 'neurn'\. Did you mean 'neuron'\?.*Or give a release: 2\.10"),
        ("2", r"no software block '2'"),
        ("2.x", r"no software block '2\.x'.*Or give a release"),
        ("", r"no software block ''"),
        (2.2, r"no software block 2\.2, a float"),
    ],
)
def test_what_is_no_block_and_no_release_is_refused_with_those_that_are(asked, message):
    with pytest.raises(ProgramError, match=message):
        load_software(asked)


def test_blocks_do_not_share_a_release_and_say_where_their_figures_are_from():
    spans = [tuple(tuple(map(int, release.split("."))) for release in (block.first, block.last)) for block in BLOCKS.values()]
    assert spans == sorted(spans)
    assert all(before[1] < after[0] for before, after in zip(spans, spans[1:], strict=False))
    for block in BLOCKS.values():
        for name, entries in block.overheads.items():
            assert name.endswith("_s")
            for overhead in entries.values():
                assert 0 < overhead.low_s <= overhead.value_s <= overhead.high_s < 1e-3
                assert overhead.basis in ("calibrated", "assumed")
                assert len(overhead.source) > 20


def test_overheads_are_those_of_the_core():
    newest = load_software()
    cores = {name: newest.on(load_chip(name).core) for name in CHIPS}
    assert all("launch_s" in found for found in cores.values())
    assert cores["trainium1"] == cores["inferentia2"]
    assert cores["trainium2"]["decode_layer_s"].value_s > cores["trainium1"]["decode_layer_s"].value_s
    assert "decode_layer_s" not in cores["trainium3"]
    decode_s = [block.on("NeuronCore-v2")["decode_layer_s"].value_s for block in BLOCKS.values()]
    assert decode_s == sorted(decode_s, reverse=True)  # releases became faster
