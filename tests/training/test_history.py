import numpy as np
import pytest

from trn_jax.errors import TrainingError
from trn_jax.training.history import History, mean, read_history


def record(step):
    return {"step": step, "loss": float(np.float32(1.0) / np.float32(step + 3))}


def test_losses_read_back_bit_for_bit(tmp_path):
    path = tmp_path / "history.jsonl"
    with History(path) as history:
        for step in range(5):
            history.append(record(step))
    assert read_history(path) == [record(step) for step in range(5)]


def test_going_on_cuts_the_record_at_the_checkpoint(tmp_path):
    path = tmp_path / "history.jsonl"
    with History(path) as history:
        for step in range(5):
            history.append(record(step))
    with History(path, steps=3) as history:
        assert history.losses() == [record(step)["loss"] for step in range(3)]
        history.append(record(3))
    assert read_history(path) == [record(step) for step in range(4)]


def test_a_torn_line_ends_the_record(tmp_path):
    path = tmp_path / "history.jsonl"
    path.write_text('{"step": 0, "loss": 2.5}\n{"step": 1, "loss": 2.25}\n{"step": 2, "lo')
    assert [row["step"] for row in read_history(path)] == [0, 1]
    path.write_text('{"step": 0, "loss": 2.5}\n{"step": 2, "loss": 2.25}\n')
    assert [row["step"] for row in read_history(path)] == [0]
    path.write_bytes(b"\xff\xfe[]\n3\n")
    assert read_history(path) == []


def test_a_new_run_starts_a_new_record(tmp_path):
    path = tmp_path / "history.jsonl"
    path.write_text('{"step": 0, "loss": 2.5}\n')
    with History(path):
        pass
    assert read_history(path) == []


def test_a_record_shorter_than_the_checkpoint_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "history.jsonl"
    path.write_text('{"step": 0, "loss": 2.5}\n')
    with pytest.raises(TrainingError, match=r"holds only the first 1 of the 3 steps"):
        History(path, steps=3)
    assert path.read_text() == '{"step": 0, "loss": 2.5}\n'


def test_means_do_not_lose_small_terms():
    assert mean([np.float32(4096.0), *[np.float32(1.0)] * 4096]) == (4096 + 4096) / 4097
    assert mean([]) == 0.0
