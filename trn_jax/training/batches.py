"""Which bytes a step sees: a pure function of (seed, step), so that a resumed run sees what an uninterrupted one would.

Sequence b of a step starts at `raw_b(seed, step) mod (size - T)`, with `raw` the 64-bit stream of a Philox counter generator.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Int32, UInt8

from trn_jax.training.text import Text

Batch = Int32[np.ndarray, "B T1"]


def training_batch(text: Text, *, seed: int, step: int, batch_size: int, max_tokens: int) -> Batch:
    """Sequences of `max_tokens + 1` bytes: inputs are all but the last, targets all but the first."""
    # The raw stream of a bit generator is fixed for ever by numpy's policy; the methods that draw integers from it are not.
    raw = np.random.Philox(key=np.asarray([seed, step], np.uint64)).random_raw(batch_size)
    return _cut(text.train, (raw % np.uint64(text.train.size - max_tokens)).astype(np.int64), max_tokens)


def validation_batches(text: Text, *, count: int, batch_size: int, max_tokens: int) -> list[Batch]:
    """At most `count` batches spread evenly over the validation bytes, the same for every run."""
    room = text.validation.size - max_tokens
    starts = np.unique(np.linspace(0, room - 1, count * batch_size).astype(np.int64))
    # Every batch has the same shape, so that one compilation serves; a short text repeats its sequences.
    starts = np.resize(starts, max(1, starts.size // batch_size) * batch_size)
    return [_cut(text.validation, part, max_tokens) for part in np.split(starts, starts.size // batch_size)]


def _cut(data: UInt8[np.ndarray, " N"], starts: np.ndarray, max_tokens: int) -> Batch:
    """The sequences that begin at `starts`."""
    return data[starts[:, None] + np.arange(max_tokens + 1)].astype(np.int32)
