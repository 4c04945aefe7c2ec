import dataclasses
import errno
import json

import jax
import pytest

from trn_jax.errors import ChipError, TrainingError
from trn_jax.training.history import History, read_history
from trn_jax.training.options import TrainOptions
from trn_jax.training.presets import PRESETS, get_preset
from trn_jax.training.run import train
from trn_jax.training.setup import set_up


def run(options, said=None):
    return train(options, say=(said if said is not None else []).append, progress=False)


def without_times(result):
    return {k: v for k, v in dataclasses.asdict(result).items() if k not in ("tokens_per_s", "compile_s", "out", "plot")}


@pytest.mark.parametrize("precision", ["bf16", pytest.param("bf16-sr", marks=pytest.mark.slow)])
def test_a_run_that_goes_on_equals_one_that_was_never_stopped(options, tmp_path, precision):
    make = lambda **changes: options(precision=precision, checkpoint_every=2, validate_every=3, **changes)
    whole = run(make(steps=5, out=tmp_path / "whole", sample_bytes=12))
    run(make(steps=2, out=tmp_path / "parts"))
    said = []
    parts = run(make(steps=5, out=tmp_path / "parts", resume=True, sample_bytes=12), said)
    assert "Going on from step 2." in said
    assert without_times(parts) == without_times(whole)
    assert read_history(tmp_path / "parts" / "history.jsonl") == read_history(tmp_path / "whole" / "history.jsonl")
    assert len(read_history(tmp_path / "whole" / "history.jsonl")) == 5


def test_a_run_ends_with_its_record_picture_sample_and_predicted_time(options, tmp_path):
    said = []
    result = run(options(steps=4, plot=True, sample_bytes=20, validate_every=2), said)
    out = tmp_path / "run"
    assert (out / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((out / "result.json").read_text()) == dataclasses.asdict(result)
    history = read_history(out / "history.jsonl")
    assert [row["step"] for row in history] == [0, 1, 2, 3]
    assert ["validation_loss" in row for row in history] == [False, True, False, True]
    assert (result.loss_first, result.loss_last) == (history[0]["loss"], history[3]["loss"])
    assert result.validation_loss == history[3]["validation_loss"]
    assert result.tokens_per_s > 0
    assert 0 < result.predicted_step_overlapped_s <= result.predicted_step_s
    assert len(result.sample) > 0
    assert any("bigram entropy" in line for line in said)


def test_resume_before_the_first_checkpoint_starts_anew(options, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "history.jsonl").write_text('{"step": 0, "loss": 9.5}\n')
    said = []
    result = run(options(steps=1, resume=True), said)
    assert "There is no complete checkpoint yet: starting from step 0." in said
    assert result.loss_first != 9.5


def test_a_run_is_not_overwritten_shortened_or_continued_as_another(options):
    run(options(steps=2))
    with pytest.raises(TrainingError, match=r"already holds a run at step 2. Go on with --resume, or choose another --out"):
        run(options(steps=2))
    with pytest.raises(TrainingError, match=r"at step 2 already, beyond --steps 1"):
        run(options(steps=1, resume=True))
    with pytest.raises(TrainingError, match=r"precision: bf16 there, fp32 here"):
        run(options(steps=4, resume=True, precision="fp32"))
    with pytest.raises(TrainingError, match=r"chip: trainium2 there, trainium1 here"):
        run(options(steps=4, resume=True, chip="trainium1"))
    with pytest.raises(TrainingError, match=r"text.size_bytes: 980 there, .* optimizer.learning_rate: 0.01 there, 0.02 here"):
        run(options(steps=4, resume=True, text=None, learning_rate=0.02))


def test_a_diverging_run_stops_and_says_where(options):
    with pytest.raises(
        TrainingError, match=r"At step \d+ the (loss|gradient norm) is (nan|inf): the run has diverged. Try a lower --learning-rate"
    ):
        run(options(steps=6, learning_rate=1e30))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 0}, r"--steps is 0; it must be at least 1"),
        ({"checkpoint_every": 0}, r"--checkpoint-every is 0"),
        ({"batch_size": -1}, r"--batch-size is -1"),
        ({"seed": 2**32}, r"--seed is 4294967296; it must be below 2\^32"),
        ({"temperature": float("nan")}, r"--temperature is nan"),
        ({"resume": True}, r"--resume needs --out DIR"),
    ],
)
def test_flags_out_of_range_are_refused(changes, message):
    with pytest.raises(TrainingError, match=message):
        TrainOptions(**changes)


def test_paths_may_be_strings(tmp_path):
    options = TrainOptions(out=str(tmp_path / "run"), text=str(tmp_path / "text"))
    assert (options.out, options.text) == (tmp_path / "run", tmp_path / "text")


def test_unknown_presets_and_chips_are_refused(options):
    with pytest.raises(TrainingError, match=r"No preset is called 'smal'. Did you mean 'small'"):
        run(options(preset="smal"))
    with pytest.raises(ChipError, match=r"trainium2"):
        run(options(chip="trainum2"))


def test_a_directory_that_cannot_be_made_is_reported(options, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(TrainingError, match=r"Cannot make the directory .*file/run: Not a directory"):
        run(options(out=tmp_path / "file" / "run"))


def test_runs_without_a_directory_get_numbered_ones(options, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "speck-fp32-001").mkdir(parents=True)
    result = run(options(out=None, steps=1, precision="fp32"))
    assert result.out == "runs/speck-fp32-002"


@pytest.mark.parametrize("name", PRESETS)
def test_presets_state_their_size(name):
    # Only shapes: nothing is allocated for the large ones.
    preset = get_preset(name)
    assert preset.model.vocab_size == 256
    assert preset.optimizer.decay_steps >= preset.steps
    assert {"tiny": 41_120, "small": 853_120}.get(name, preset.model.parameter_count()) == preset.model.parameter_count()


def test_an_edited_chip_file_is_another_chip(options):
    one = set_up(options())
    assert one.identity["chip_numbers"] == set_up(options()).identity["chip_numbers"]
    assert one.identity["chip_numbers"] != set_up(options(chip="trainium1")).identity["chip_numbers"]


def test_a_run_does_not_depend_on_what_its_surroundings_set(options, tmp_path):
    plain = run(options(steps=2, out=tmp_path / "plain"))
    with jax.enable_x64(True), jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        strict = run(options(steps=2, out=tmp_path / "strict"))
    assert without_times(strict) == without_times(plain)


def test_a_full_disk_is_one_sentence_and_the_run_can_go_on(options, tmp_path, monkeypatch):
    def no_space(history, record):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(History, "append", no_space)
        with pytest.raises(TrainingError, match=r"refused a file: .*No space left.*--resume"):
            run(options(steps=2))
    said = []
    run(options(steps=2, resume=True), said)
    assert run(options(steps=2, resume=True), said).tokens_per_s == 0
    assert "tokens/s" not in next(line for line in reversed(said) if line.startswith("loss "))
