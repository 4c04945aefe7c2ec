"""`trn-jax profile` from the words of a command line to its output."""

import json
import re
import sys

import jax
import jax.numpy as jnp
import pytest

import trn_jax
from trn_jax.cli import main

SMALL = "matmul:256x256x512:bf16"


def profile(capsys, *words):
    main(["profile", *words])
    return capsys.readouterr().out


def as_json(capsys, *words):
    return json.loads(profile(capsys, *words, "--json"))


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "my_layers.py").write_text("import jax\n\ndef layer(x, w):\n    return jax.nn.relu(x @ w)\n\nWIDTH = 8\n")
    (tmp_path / "my_broken.py").write_text("raise RuntimeError('no data')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(sys.path))
    return tmp_path


def test_a_product_is_timed_as_in_python(capsys):
    record = as_json(capsys, SMALL)
    a, b = jax.ShapeDtypeStruct((256, 256), jnp.bfloat16), jax.ShapeDtypeStruct((256, 512), jnp.bfloat16)
    program = trn_jax.trace(jnp.matmul, a, b)
    assert record["latency_s"] == pytest.approx(float(trn_jax.latency(program, trn_jax.load_chip("trainium2"))), rel=1e-6)
    assert (record["workload"], record["chip"], record["flops"]) == (SMALL, "trainium2", 2 * 256 * 256 * 512)


def test_a_function_of_one_s_own(capsys, module):
    text = profile(capsys, "my_layers:layer", "128x256:bf16", "256x128:bf16", "--chip", "trainium1", "--explain")
    assert text.startswith("my_layers:layer\n")
    assert "on one core of trainium1" in text
    assert "HBM footprint x 65.54 kB + w 65.54 kB + results 32.77 kB = 163.8 kB of" in text
    assert "critical path of" in text
    assert "without a pass the latency would be longer by" in text


def test_a_chip_of_one_s_own_and_overlap(capsys, module):
    (module / "fast.toml").write_text(
        'base = "trainium2"\n[tensor]\nclock_hz = { value = 4.8e9, basis = "assumed", source = "twice the clock" }\n'
    )
    slow, fast = (as_json(capsys, SMALL, "--chip", chip, "--overlap", "compiled") for chip in ("trainium2", "fast.toml"))
    assert fast["chip"] == "fast"
    assert fast["latency_s"] < slow["latency_s"] == slow["serial_s"]


def test_two_chips_side_by_side(capsys):
    text = profile(capsys, SMALL, "--compare", "trainium1", "trainium2")
    head = text.splitlines()[1].split()
    assert head == ["trainium1", "trainium2", "ratio"]
    assert text.count("limited by") == 2
    first, second = as_json(capsys, SMALL, "--compare", "trainium1", "trainium2")["reports"]
    ratio = second["latency_s"] / first["latency_s"]
    assert text.splitlines()[2].split()[-1] == f"{ratio:.3g}"


def test_files_are_written(capsys, tmp_path):
    paths = [tmp_path / name for name in ("trace.json", "timeline.png", "roofline.png")]
    profile(capsys, SMALL, "--trace", str(paths[0]), "--timeline", str(paths[1]), "--roofline", str(paths[2]))
    assert json.loads(paths[0].read_text())["traceEvents"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths[1:])


def test_software_adds_its_overheads(capsys):
    record = as_json(capsys, SMALL, "--software", "neuron")
    assert record["software"]["latency_with_launch_s"] == record["latency_s"] + record["software"]["launch_s"] > record["latency_s"]
    assert "to launch" in profile(capsys, SMALL, "--software", "neuron")


@pytest.mark.slow
def test_software_of_a_release_has_overheads_of_every_layer(capsys):
    words = ("gpt2", "--batch", "1", "--tokens", "64", "--chip", "trainium1")
    decode = as_json(capsys, *words, "--mode", "decode", "--software", "2.18")
    found = decode["software"]
    assert (found["release"], found["layers"], found["note"]) == ("2.18", 12, "")
    assert set(found["overheads"]) == {"launch_s", "decode_layer_s"}
    added_s = decode["engines"]["dma"]["busy_s"] + 12 * found["overheads"]["decode_layer_s"]["value_s"]
    assert found["latency_with_overheads_s"] == pytest.approx(found["launch_s"] + max(decode["latency_s"], added_s))
    forward = as_json(capsys, *words, "--software", "2.99")
    found = forward["software"]
    assert found["note"] == "no figures of release 2.99 are known: these are of 2.20 to 2.26"
    per_layer_s = found["overheads"]["forward_layer_s"]["value_s"]
    assert found["latency_with_overheads_s"] == pytest.approx(forward["latency_s"] + found["launch_s"] + 12 * per_layer_s)
    text = profile(capsys, *words, "--software", "2.16")
    assert "note: no figures of release 2.16 are known: these are of 2.13 to 2.14; no overhead of a layer of a forward step" in text


def test_a_reference_model(capsys):
    record = as_json(capsys, "gpt2", "--mode", "decode", "--batch", "2", "--tokens", "128")
    assert record["workload"] == "gpt2 decode"
    assert record["footprint"]["arguments_bytes"]["params"] == 124_439_808 * 2
    assert record["footprint"]["arguments_bytes"]["kv_cache"] == 2 * 12 * 2 * 128 * 768 * 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["lama-3-8b"], "There is no workload 'lama-3-8b'. Did you mean 'llama-3-8b'?"),
        (["no_module:f"], "there is no module 'no_module'. Give a module that can be imported from here"),
        (["my_broken:f"], "importing my_broken failed with RuntimeError: no data"),
        (["my_layers:leyer", "4x4"], "my_layers has no 'leyer'. Did you mean 'layer'?"),
        (["my_layers:WIDTH"], "'my_layers:WIDTH' is a int, not a function"),
        (["my_layers:layer", "4x4"], "takes x w, and 1 shapes were given"),
        (["my_layers:layer", "4x4", "5x5"], "cannot be traced with .*TypeError"),
        (["my_layers:layer", "4x4", "4*4"], r"'4\*4' is no shape"),
        (["my_layers:layer", "4x4", "4x4", "--mode", "train"], "--mode is for the reference models"),
        (["matmul:4x4"], "is no product. Write M, K and N and a dtype: matmul:4096x4096x4096:bf16"),
        (["matmul"], "'matmul' is no product"),
        (["gpt2", "4x4"], "gpt2 has its own shapes, but 4x4 was given"),
        (["gpt2", "--batch", "0"], "give a batch of at least 1"),
        (["resnet50", "--mode", "decode"], "resnet50 has no mode 'decode'"),
        ([SMALL, "--overlap", "full"], "overlap = 'full'. Give None"),
        ([SMALL, "--overlap", "2"], "2 is not between 0 and 1"),
        ([SMALL, "--chip", "trainum2"], "Did you mean 'trainium2'"),
        ([SMALL, "--software", "nuron"], "There is no software block 'nuron'. Did you mean 'neuron'.* Or give a release: 2.10, 2.11"),
        ([SMALL, "--software", "2.9"], "No overheads of Neuron SDK 2.9 are known.* Known: 2.10, 2.11, .*The closest is 2.10"),
        ([SMALL, "--compare", "trainium1", "trainium2", "--chip", "trainium3"], "Leave one or the other out"),
        ([SMALL, "--trace", "nowhere/trace.json"], "nowhere/trace.json cannot be written: No such file"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_one_line_that_says_what_to_do(capsys, module, words, message):
    with pytest.raises(SystemExit) as exit:
        main(["profile", *words])
    assert exit.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("trn-jax: ")
    assert error.count("\n") == 1
    assert re.search(message, error)
