"""Every exception trn_jax raises on purpose; each message says what was given, what is accepted, where, and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class TrnJaxError(Exception):
    """Base of all trn_jax errors, so that `except trn_jax.TrnJaxError` catches exactly ours."""


class ChipError(TrnJaxError, ValueError):
    """A chip description is wrong: names the file, the key, the value and the allowed range."""


class FormatError(TrnJaxError, ValueError):
    """A number format, rounding mode or overflow policy is unknown, or the chip cannot compute in it."""


class NoRuleError(TrnJaxError, NotImplementedError):
    """A primitive has no rule: names the primitive, the user's source line and `trn_jax.register_rule`."""


class UnsupportedError(TrnJaxError, NotImplementedError):
    """Something is refused on purpose; the message gives the reason and the way around it."""


class ProgramError(TrnJaxError, ValueError):
    """A function cannot become a Program, or a Program does not fit what it is asked to do."""


class ShapeError(TrnJaxError, ValueError):
    """Operands do not fit each other or the hardware: names the argument, the given size and the limit."""


class FaultError(TrnJaxError, ValueError):
    """A fault cannot be: no such memory, engine or bit, no probability, or a place outside the array."""


class NetworkError(TrnJaxError, ValueError):
    """A collective, topology or group of ranks is not possible."""


class ModelError(TrnJaxError, ValueError):
    """A model cannot be built as described, or is called with the wrong shapes."""


class TrainingError(TrnJaxError, ValueError):
    """A training run cannot start or go on: bad text, bad flags, or a checkpoint of another model."""


class ValidationError(TrnJaxError, ValueError):
    """A table of measurements cannot be read: names the file, the line and what is wrong with it."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A sentence with the closest known name and the full list, for the end of an error message."""
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return (f"Did you mean {close[0]!r}? " if close else "") + f"Known: {', '.join(known)}."
