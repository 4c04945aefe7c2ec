"""Checkpoints that a kill at any moment cannot spoil.

A checkpoint is written by orbax into a directory with a temporary name and gets its real name, `step-00000040`, by one atomic rename
when every byte of it is on disk: what has a real name is complete. A digest of each of its files is kept beside them, so that damage
done later is found as well, before anything tries to read it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import jax
import orbax.checkpoint as ocp

from trn_jax.errors import TrainingError
from trn_jax.training.identity import Identity, require_same
from trn_jax.training.step import TrainState

_RECORD = "run.json"
_NAME = re.compile(r"step-(\d{8,})")


class _DamagedError(Exception):
    """A checkpoint cannot be read; the message says why."""


class Checkpoints:
    """The checkpoints of one run.

    Args:
        directory: Where they are kept; made when the first one is saved.
        identity: What the run is; saved with each checkpoint and compared before one is used.
        keep: How many of the newest are kept.
    """

    def __init__(self, directory: Path, identity: Identity, *, keep: int = 2) -> None:
        self.directory, self.identity, self.keep = Path(directory).absolute(), identity, keep

    def steps(self) -> list[int]:
        """Steps of the complete checkpoints, oldest first."""
        if not self.directory.is_dir():
            return []
        return sorted(int(match[1]) for path in self.directory.iterdir() if (match := _NAME.fullmatch(path.name)))

    def save(self, state: TrainState) -> Path:
        """Writes the state, then removes checkpoints beyond `keep`.

        Raises:
            TrainingError: The disk is full, not writable, or the like.
        """
        step = int(state.step)
        final, partial = self._path(step), self.directory / f"partial-{step:08d}"
        try:
            self._clear_leftovers()
            partial.mkdir(parents=True)
            with ocp.StandardCheckpointer() as checkpointer:
                checkpointer.save(partial / "state", state)
            record = {"step": step, "files": _digests(partial), "identity": self.identity}
            (partial / _RECORD).write_text(json.dumps(record, indent=1))
            _flush(partial)
            os.replace(partial, final)
            _flush_directory(self.directory)
            for old in self.steps()[: -self.keep]:
                doomed = self.directory / f"removing-{old:08d}"
                os.replace(self._path(old), doomed)  # a half-removed checkpoint must not look complete
                shutil.rmtree(doomed)
        except OSError as error:
            raise TrainingError(
                f"Cannot write a checkpoint to {final}: {error.strerror or error}. Earlier checkpoints are untouched."
            ) from error
        return final

    def restore_latest(self, like: TrainState, *, warn: Callable[[str], None]) -> TrainState | None:
        """The newest usable state, or None when there is none yet.

        A damaged checkpoint is renamed, never deleted, and the one before it is used.

        Args:
            like: A state of the same structure, shapes and dtypes; its values are not read.
            warn: Called with a sentence for each damaged checkpoint that was passed over.

        Raises:
            TrainingError: The checkpoint is of another run, or every checkpoint is damaged.
        """
        damaged: dict[int, str] = {}
        for step in reversed(self.steps()):
            try:
                state = self._read(self._path(step), like)
            except _DamagedError as error:
                damaged[step] = str(error)
                continue
            for passed_over, reason in damaged.items():
                aside = self._set_aside(passed_over)
                warn(f"The checkpoint of step {passed_over} is damaged ({reason}); it is kept as {aside}.")
            return state
        if damaged:
            reasons = "; ".join(f"{self._path(step)}: {reason}" for step, reason in damaged.items())
            raise TrainingError(
                f"Every checkpoint is damaged ({reasons}). Nothing was changed: put a good copy back, or start anew in another --out."
            )
        return None

    def _path(self, step: int) -> Path:
        return self.directory / f"step-{step:08d}"

    def _read(self, path: Path, like: TrainState) -> TrainState:
        """The state of one checkpoint, once its identity and its files are found right."""
        try:
            record = json.loads((path / _RECORD).read_text())
            saved_identity, saved_files = dict(record["identity"]), dict(record["files"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise _DamagedError(f"run.json is unreadable: {error}") from error
        require_same(saved_identity, json.loads(json.dumps(self.identity)), str(path))
        files = _digests(path)
        if changed := sorted(name for name in {*files, *saved_files} if files.get(name) != saved_files.get(name)):
            raise _DamagedError(f"{len(changed)} of its files changed or are missing, such as {changed[0]}")
        target = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), like)
        try:
            with ocp.StandardCheckpointer() as checkpointer:
                return checkpointer.restore(path / "state", target)
        except Exception as error:  # orbax and tensorstore raise many types for broken files
            raise _DamagedError(f"{type(error).__name__}: {str(error)[:200]}") from error

    def _set_aside(self, step: int) -> Path:
        """Renames a checkpoint so that it neither counts nor gets lost."""
        number = 0
        while (aside := self.directory / f"damaged-{step:08d}-{number}").exists():
            number += 1
        os.replace(self._path(step), aside)
        return aside

    def _clear_leftovers(self) -> None:
        """Removes what a kill left half-written or half-removed."""
        if self.directory.is_dir():
            for path in self.directory.iterdir():
                if path.name.startswith(("partial-", "removing-")):
                    shutil.rmtree(path)


def _digests(directory: Path) -> dict[str, str]:
    """Hash of every file below `directory` except its record."""
    files = sorted(path for path in directory.rglob("*") if path.is_file() and path != directory / _RECORD)
    return {path.relative_to(directory).as_posix(): hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest() for path in files}


def _flush(directory: Path) -> None:
    """Forces everything below `directory` to disk, so that the rename cannot get there first."""
    for root, _, names in os.walk(directory):
        for name in names:
            with open(Path(root) / name, "rb") as file:
                os.fsync(file.fileno())
        _flush_directory(Path(root))


def _flush_directory(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
