"""What makes two runs the same run: everything that decides their losses, as nested plain data.

A checkpoint carries it, and a run goes on only from a checkpoint whose identity equals its own; otherwise the error lists what differs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trn_jax.errors import TrainingError

Identity = dict[str, Any]
_MISSING = "(absent)"


def flatten(identity: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested identity with dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in identity.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


def require_same(saved: Mapping[str, Any], current: Mapping[str, Any], where: str) -> None:
    """Checks that a checkpoint belongs to the run that is about to go on from it.

    Raises:
        TrainingError: Something differs; the message names each difference with both values.
    """
    there, here = flatten(saved), flatten(current)
    differing = [key for key in {**there, **here} if there.get(key, _MISSING) != here.get(key, _MISSING)]
    if differing:
        listed = "; ".join(f"{key}: {there.get(key, _MISSING)} there, {here.get(key, _MISSING)} here" for key in differing)
        raise TrainingError(
            f"The checkpoint in {where} is of another run ({listed}). Repeat the flags it was made with, or start anew in another --out."
        )
