import json
import subprocess
import sys

import pytest

from trn_jax.cli import main


def exit_code(*arguments):
    with pytest.raises(SystemExit) as caught:
        main(list(arguments))
    return caught.value.code


@pytest.fixture
def tiny_run(speck, text_file, tmp_path):
    """Flags of a very small run."""
    return ["train", "--preset", speck, "--text", str(text_file), "--out", str(tmp_path / "run"), "--no-plot", "--sample-bytes", "8"]


def test_the_last_line_of_json_output_is_the_result(tiny_run, capsys):
    main([*tiny_run, "--steps", "2", "--precision", "fp32", "--json"])
    out, err = capsys.readouterr()
    (line,) = out.splitlines()
    result = json.loads(line)
    assert {"loss_first", "loss_last", "steps", "tokens_per_s", "predicted_step_s", "validation_loss", "bigram_entropy"} <= set(result)
    assert result["steps"] == 2
    assert "on one core of trainium2" in err


def test_our_errors_are_one_line_on_stderr_and_exit_code_two(tiny_run, tmp_path, capsys):
    assert exit_code(*tiny_run, "--chip", "trainium9") == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("trn-jax: ")
    assert err.count("\n") == 1
    assert "trainium2" in err
    (tmp_path / "empty").write_text("")
    assert exit_code(*tiny_run, "--text", str(tmp_path / "empty")) == 2
    assert "is empty; training on sequences of 8 tokens needs at least 36 bytes" in capsys.readouterr().err
    assert exit_code("train", "--steps", "0") == 2
    assert "--steps is 0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--precision", "bf17"], "bf16-master"),
        (["train", "--stpes", "3"], "--steps"),
        (["train", "--steps", "many"], "many"),
        (["train", "--fidelity", "systolic"], "tiled"),
        (["trian"], "train"),
        ([], "train"),
    ],
)
def test_bad_flags_end_with_an_explanation(arguments, message, capsys):
    assert exit_code(*arguments) == 2
    assert message in capsys.readouterr().err


def test_every_command_has_help(capsys):
    for arguments in (["--help"], ["train", "--help"], ["chips", "--help"]):
        assert exit_code(*arguments) == 0
        assert len(capsys.readouterr().out) > 200


def test_version_names_trn_jax_and_jax(capsys):
    main(["--version"])
    assert capsys.readouterr().out.split()[::2] == ["trn_jax", "jax"]


def test_chips_prints_a_list_or_one_chip_as_text_or_json(capsys):
    main(["chips"])
    assert "trainium2" in capsys.readouterr().out
    main(["chips", "trainium1"])
    assert "tensor" in capsys.readouterr().out
    main(["chips", "--json"])
    assert {"trainium1", "trainium2", "trainium3", "inferentia2", "ideal"} <= set(json.loads(capsys.readouterr().out))
    main(["chips", "trainium2", "--json"])
    assert json.loads(capsys.readouterr().out)["name"] == "trainium2"
    assert exit_code("chips", "nochip") == 2


def test_a_missing_extra_is_named_before_any_work(monkeypatch, tiny_run, capsys):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "optax" else object())
    assert exit_code(*tiny_run) == 2
    assert "Training needs optax, which is not installed: pip install 'trn_jax[train]'" in capsys.readouterr().err


@pytest.mark.slow
def test_the_module_runs_as_a_program_and_starts_without_the_training_libraries():
    code = "import sys, trn_jax.cli; print([m for m in ('flax', 'optax', 'orbax', 'matplotlib') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    done = subprocess.run([sys.executable, "-m", "trn_jax", "chips"], capture_output=True, text=True, check=True)
    assert "trainium2" in done.stdout
