import json
import os
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trn_jax.errors import TrainingError
from trn_jax.training.checkpoint import Checkpoints
from trn_jax.training.step import TrainState

IDENTITY = {"precision": "bf16", "model": {"d_model": 16, "n_kv_heads": None}, "text": {"name": "a"}}


def state(step):
    params = {"blocks": {0: {"kernel_IO": jnp.full((3, 2), 1 / 3 + step, jnp.bfloat16)}}, "scale_D": jnp.arange(2.0) + step}
    return TrainState(step=jnp.uint32(step), params=params, moments=(jnp.int32(step), {"mu": jnp.full((4,), 0.1) * step}))


def assert_equal(one, two):
    assert jax.tree.structure(one) == jax.tree.structure(two)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


@pytest.fixture
def checkpoints(tmp_path):
    return Checkpoints(tmp_path / "checkpoints", IDENTITY)


def fail(sentence):
    raise AssertionError(sentence)


def test_a_state_comes_back_bit_for_bit(checkpoints):
    checkpoints.save(state(7))
    assert_equal(checkpoints.restore_latest(state(0), warn=fail), state(7))


def test_the_newest_two_are_kept(checkpoints):
    for step in (5, 10, 15):
        checkpoints.save(state(step))
    assert checkpoints.steps() == [10, 15]
    assert_equal(checkpoints.restore_latest(state(0), warn=fail), state(15))


def test_nothing_saved_is_not_an_error(checkpoints):
    assert checkpoints.steps() == []
    assert checkpoints.restore_latest(state(0), warn=fail) is None


@pytest.mark.parametrize("victim", ["replace", "fsync"])
def test_a_save_that_dies_before_the_rename_leaves_the_one_before(checkpoints, monkeypatch, victim):
    checkpoints.save(state(5))

    def die(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, victim, die)
        with pytest.raises(KeyboardInterrupt):
            checkpoints.save(state(10))
    assert_equal(checkpoints.restore_latest(state(0), warn=fail), state(5))
    checkpoints.save(state(10))
    assert sorted(path.name for path in checkpoints.directory.iterdir()) == ["step-00000005", "step-00000010"]


def test_a_full_disk_is_reported_and_earlier_checkpoints_stay(checkpoints, monkeypatch):
    checkpoints.save(state(5))

    def full(*args):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(TrainingError, match=r"Cannot write a checkpoint .*No space left on device"):
            checkpoints.save(state(10))
    assert_equal(checkpoints.restore_latest(state(0), warn=fail), state(5))


def spoil_record(path):
    (path / "run.json").write_text("{")


def spoil_record_type(path):
    (path / "run.json").write_text('{"identity": 3, "files": {}}')


def spoil_digest(path):
    record = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps({**record, "files": {}}))


def spoil_values(path):
    for file in path.glob("state/**/d/*"):
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)


def spoil_by_removing(path):
    (path / "state" / "manifest.ocdbt").unlink()


def spoil_structure(path):
    record = json.loads((path / "run.json").read_text())
    shutil.rmtree(path / "state")
    (path / "run.json").write_text(json.dumps({**record, "files": {}}))


def spoil_by_emptying(path):
    for file in path.glob("state/**/*"):
        if file.is_file():
            file.write_bytes(b"")


@pytest.mark.parametrize(
    "spoil", [spoil_record, spoil_record_type, spoil_digest, spoil_values, spoil_by_removing, spoil_structure, spoil_by_emptying]
)
def test_a_damaged_checkpoint_is_kept_aside_and_the_one_before_is_used(checkpoints, spoil):
    checkpoints.save(state(5))
    spoil(checkpoints.save(state(10)))
    said = []
    assert_equal(checkpoints.restore_latest(state(0), warn=said.append), state(5))
    assert len(said) == 1
    assert "step 10 is damaged" in said[0]
    assert (checkpoints.directory / "damaged-00000010-0").is_dir()
    checkpoints.save(state(10))
    assert_equal(checkpoints.restore_latest(state(0), warn=fail), state(10))


def test_if_every_checkpoint_is_damaged_nothing_is_touched(checkpoints):
    for step in (5, 10):
        spoil_digest(checkpoints.save(state(step)))
    with pytest.raises(TrainingError, match=r"Every checkpoint is damaged .*step-00000010.*step-00000005.*Nothing was changed"):
        checkpoints.restore_latest(state(0), warn=fail)
    assert checkpoints.steps() == [5, 10]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"precision": "fp32"}, r"\(precision: bf16 there, fp32 here\)"),
        ({"model": {"d_model": 32, "n_kv_heads": None}}, r"\(model.d_model: 16 there, 32 here\)"),
        ({"text": {"name": "b"}, "seed": 1}, r"\(text.name: a there, b here; seed: \(absent\) there, 1 here\)"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused_with_what_differs(checkpoints, changes, message):
    checkpoints.save(state(5))
    other = Checkpoints(checkpoints.directory, {**IDENTITY, **changes})
    with pytest.raises(TrainingError, match=message):
        other.restore_latest(state(0), warn=fail)
    assert checkpoints.steps() == [5]
