import os
import sysconfig
from pathlib import Path

import numpy as np
import pytest

from trn_jax.errors import TrainingError
from trn_jax.training.batches import training_batch, validation_batches
from trn_jax.training.text import Text, load_text


def make_text(data: bytes, validation: int = 0) -> Text:
    array = np.frombuffer(data, np.uint8)
    return Text(name="test", train=array[: array.size - validation], validation=array[array.size - validation :], sha256="")


def test_the_default_text_is_megabytes_of_library_source_in_a_fixed_order():
    text, again = load_text(None, 128), load_text(None, 128)
    source = (Path(sysconfig.get_paths()["stdlib"]) / "argparse.py").read_bytes()
    assert text.size_bytes > 1_000_000
    assert text.sha256 == again.sha256
    assert source in text.train.tobytes() + text.validation.tobytes()
    assert 0.04 < text.validation.size / text.size_bytes < 0.06
    assert 1.5 < text.bigram_entropy() < 3.5


def test_a_file_is_cut_into_training_and_validation_bytes(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("héllo " * 100)
    text = load_text(path, 16)
    assert text.train.tobytes() + text.validation.tobytes() == path.read_bytes()
    assert text.validation.size == int(700 * 0.05)
    assert load_text(path, 100).validation.size == 101


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"is empty; training on sequences of 16 tokens needs at least 68 bytes"),
        (b"x" * 67, r"has only 67 bytes; .* needs at least 68 bytes"),
        (b"text" * 50 + b"\0", r"looks binary \(a zero byte at offset 200\)"),
        ("déjà vu".encode("latin-1") * 50, r"is not UTF-8 text \(byte 0xe9 at offset 1\); convert it"),
    ],
    ids=["empty", "short", "binary", "latin-1"],
)
def test_an_unusable_text_is_refused_with_what_is_needed(tmp_path, content, message):
    path = tmp_path / "text"
    path.write_bytes(content)
    with pytest.raises(TrainingError, match=message):
        load_text(path, 16)


def test_a_missing_file_and_a_directory_are_refused(tmp_path):
    with pytest.raises(TrainingError, match=r"Cannot read .*absent: No such file"):
        load_text(tmp_path / "absent", 16)
    with pytest.raises(TrainingError, match=r"is a directory"):
        load_text(tmp_path, 16)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_an_unreadable_file_is_refused(tmp_path):
    path = tmp_path / "secret"
    path.write_text("x" * 1000)
    path.chmod(0)
    with pytest.raises(TrainingError, match=r"Cannot read .*secret: Permission denied"):
        load_text(path, 16)


def test_a_python_without_library_sources_asks_for_a_text(tmp_path, monkeypatch):
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    with pytest.raises(TrainingError, match=r"carries no library sources .* --text FILE"):
        load_text(None, 16)


def test_bigram_entropy_of_known_chains():
    assert make_text(b"ab" * 500).bigram_entropy() == 0.0
    random = np.random.default_rng(0).integers(0, 4, 200_000).astype(np.uint8).tobytes()
    assert abs(make_text(random).bigram_entropy() - np.log(4)) < 1e-3


def test_a_batch_depends_on_seed_and_step_only():
    text = make_text(bytes(range(256)) * 40)
    cut = {"batch_size": 6, "max_tokens": 5}
    one = training_batch(text, seed=3, step=7, **cut)
    assert one.shape == (6, 6)
    np.testing.assert_array_equal(one, training_batch(text, seed=3, step=7, **cut))
    assert (one != training_batch(text, seed=3, step=8, **cut)).any()
    assert (one != training_batch(text, seed=4, step=7, **cut)).any()
    np.testing.assert_array_equal((one[:, 1:] - one[:, :-1]) % 256, 1)


def test_batches_are_the_same_on_every_machine():
    text = make_text(bytes(range(256)) * 40)
    assert training_batch(text, seed=1, step=2, batch_size=3, max_tokens=1)[:, 0].tolist() == [141, 238, 88]


def test_every_byte_of_a_short_text_can_be_reached_and_none_beyond():
    text = make_text(bytes(range(9)))
    seen = {int(x) for step in range(60) for x in training_batch(text, seed=0, step=step, batch_size=2, max_tokens=4).ravel()}
    assert seen == set(range(9))


def test_validation_batches_never_touch_training_bytes_and_fill_short_texts():
    text = make_text(bytes([1] * 100 + [2] * 30), validation=30)
    batches = validation_batches(text, count=4, batch_size=3, max_tokens=10)
    assert len(batches) == 4
    assert all(batch.shape == (3, 11) and (batch == 2).all() for batch in batches)
    shortest = validation_batches(make_text(bytes(50), validation=11), count=4, batch_size=3, max_tokens=10)
    assert [batch.shape for batch in shortest] == [(3, 11)]
