"""The sizes of a published row: its columns, and the numbers in its `shape` text, under the names they are given there.

"batch1 seq512 channels256 state16"   {"B": 16, "K": 64}   "N1 Cin256 Cout256 224x224 k3"   "(1,512,1024)x384"   "n=25600"   "S 2K"
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from typing import Any

from trn_jax.validation.measurement import Measurement

COLUMNS = ("M", "K", "N", "layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "seq_len", "bytes", "ranks", "n_nodes")
ATTENTION_COLUMNS = ("batch", "batch_size", "global_batch", "n_heads", "num_heads", "head_dim", "seq", "seqlen", "sequence", "tokens")
_NAMED = re.compile(r"([A-Za-z_]+)\s?[=:]?\s?(\d+)([Kk]\b)?(?![\dxKk])")
_NUMBERS = re.compile(r"\d+")
_KILO = 1024


class Missing(Exception):  # noqa: N818  (not an error of the user: the reason why a row is listed and not predicted)
    """A row cannot be built; the text is what is missing, or why it is no workload of one core."""


class Sizes(dict[str, int]):
    """Sizes by name; asking for one that is not there, or that is not positive, says so in the words of a report."""

    def __missing__(self, name: str) -> int:
        raise Missing(f"the size {name}")

    def __getitem__(self, name: str) -> int:
        size = super().__getitem__(name)
        if size < 1:
            raise Missing(f"the size {name}: {size} is not positive")
        return size

    def either(self, names: Iterable[str], default: int) -> int:
        """The first of several names that is there, or the default."""
        return next((self[name] for name in names if name in self), default)

    def first(self, *names: str) -> int:
        """The first of several names that is there; raises for the first name where none is."""
        return self.either(names, 0) or self[names[0]]


def sizes_of(row: Measurement) -> Sizes:
    """All sizes of a row; those of its columns win over those in its text."""
    text = row.text("shape")
    sizes = Sizes(
        _from_json(text)
        if text.startswith("{")
        else {name: int(size) * (_KILO if kilo else 1) for name, size, kilo in _NAMED.findall(text)}
    )
    for name in COLUMNS + ATTENTION_COLUMNS:
        if row.text(name):
            sizes[name] = int(number_of(row, name))
    return sizes


def number_of(row: Measurement, column: str, default: float = 1.0) -> float:
    """The positive number in a column, or the default where the table or the row has none."""
    text = row.text(column)
    if not text:
        return default
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number > 0):
        raise Missing(f"the size {column}: {text!r} is no positive number")
    return number


def numbers_of(row: Measurement) -> list[int]:
    """The bare numbers of the `shape` text, in order."""
    numbers = [int(number) for number in _NUMBERS.findall(row.text("shape"))]
    if 0 in numbers:
        raise Missing(f"the shape: {row.text('shape')!r} has a size of 0")
    return numbers


def _from_json(text: str) -> dict[str, int]:
    """Numbers of a JSON object; what is no finite number counts as 0."""
    try:
        found: Any = json.loads(text)
    except json.JSONDecodeError as error:
        raise Missing(f"the shape: {text!r} is no JSON") from error
    numbers = {name: size for name, size in found.items() if isinstance(size, (int, float)) and not isinstance(size, bool)}
    return {name: int(size) if math.isfinite(size) else 0 for name, size in numbers.items()}
