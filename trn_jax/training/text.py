"""Text to train on, as bytes: a file, or the Python library sources that every Python carries.

A byte is a token, so the vocabulary is always 256. The yardstick of a text is its bigram entropy
`H(next | byte) = -sum p(a, b) log p(b | a)` in nats: a model whose loss is below it has learnt more than pairs of bytes.
"""

from __future__ import annotations

import dataclasses
import hashlib
import sysconfig
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from trn_jax.errors import TrainingError

VOCABULARY = 256
_VALIDATION_FRACTION = 0.05
# Tests, tables of code points, generated files and whatever was installed later: not sources in the same sense, or not on every machine.
_LEFT_OUT = {"__pycache__", "dist-packages", "encodings", "ensurepip", "idlelib", "lib2to3", "pydoc_data", "site-packages", "test", "tests"}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Text:
    """A text cut in two.

    Attributes:
        name: Where it came from.
        train: Bytes to learn from.
        validation: Bytes at the end, never trained on.
        sha256: Digest of the whole text.
    """

    name: str
    train: UInt8[np.ndarray, " N"]
    validation: UInt8[np.ndarray, " M"]
    sha256: str

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole text."""
        return self.train.size + self.validation.size

    def bigram_entropy(self) -> float:
        """Entropy of the next byte given the byte before it, in nats, over the whole text."""
        data = np.concatenate([self.train, self.validation]).astype(np.int64)
        pairs = np.bincount(data[:-1] * VOCABULARY + data[1:], minlength=VOCABULARY**2).reshape(VOCABULARY, VOCABULARY).astype(np.float64)
        rows = np.broadcast_to(pairs.sum(axis=1, keepdims=True), pairs.shape)
        seen = pairs > 0
        return float(-np.sum(pairs[seen] * np.log(pairs[seen] / rows[seen])) / pairs.sum())


def load_text(path: str | Path | None, max_tokens: int) -> Text:
    """Reads and cuts a text.

    Args:
        path: A UTF-8 file; None takes the library sources of the running Python.
        max_tokens: Length of one training sequence; decides how short a text may be.

    Returns:
        The text; the last twentieth, and at least one sequence, is for validation.

    Raises:
        TrainingError: The file cannot be read, is empty, is not UTF-8 text or is too short.
    """
    name, data = _library_sources() if path is None else (str(path), _read_file(Path(path)))
    needed = 4 * (max_tokens + 1)
    if len(data) < needed:
        size = f"{name} is empty" if not data else f"{name} has only {len(data)} bytes"
        raise TrainingError(
            f"{size}; training on sequences of {max_tokens} tokens needs at least {needed} bytes of text (one byte is one token)."
        )
    validation = max(int(len(data) * _VALIDATION_FRACTION), max_tokens + 1)
    array = np.frombuffer(data, np.uint8)
    return Text(name=name, train=array[:-validation], validation=array[-validation:], sha256=hashlib.sha256(data).hexdigest())


def _read_file(path: Path) -> bytes:
    """The bytes of a text file, or an error that says what is wrong with it."""
    if path.is_dir():
        raise TrainingError(f"{path} is a directory; --text needs one UTF-8 text file.")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise TrainingError(f"Cannot read {path}: {error.strerror or error}. --text needs a readable UTF-8 text file.") from None
    if b"\0" in data:
        raise TrainingError(f"{path} looks binary (a zero byte at offset {data.index(0)}); --text needs a UTF-8 text file.")
    try:
        data.decode()
    except UnicodeDecodeError as error:
        raise TrainingError(
            f"{path} is not UTF-8 text (byte {data[error.start]:#04x} at offset {error.start}); convert it first, e.g. with iconv -t utf-8."
        ) from None
    return data


def _library_sources() -> tuple[str, bytes]:
    """The .py files of the running Python's standard library, one after the other."""
    root = Path(sysconfig.get_paths()["stdlib"])
    files = []
    for path in root.rglob("*.py"):
        parts = path.relative_to(root).parts
        generated = parts[-1].startswith(("_sysconfigdata", "sitecustomize", "usercustomize")) or parts[0].startswith("config-")
        if not generated and not _LEFT_OUT.intersection(parts) and path.is_file():
            files.append(path)
    # In the order of a digest of the name: a mixture, so that the end of the text is like the rest of it.
    files.sort(key=lambda path: hashlib.sha256(path.relative_to(root).as_posix().encode()).digest())
    try:
        data = b"".join(path.read_bytes() for path in files)
    except OSError as error:
        raise TrainingError(
            f"Cannot read the Python library source {error.filename}: {error.strerror}. Give a text with --text FILE."
        ) from None
    if not data:
        raise TrainingError(f"This Python carries no library sources in {root}. Give a text with --text FILE.")
    return f"Python library sources ({len(files)} files)", data
