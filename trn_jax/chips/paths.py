"""Dotted paths into a chip: `tensor.rows` names the leaf `chip.tensor.rows`, in files, sweeps, tables and gradients alike."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from trn_jax.chips.fields import RANGES, checked_formats, checked_number
from trn_jax.errors import ChipError, did_you_mean
from trn_jax.units import time_power as time_power

_Record = TypeVar("_Record")
_STATIC = {"name": str, "core": str, "formats": tuple, "psum_formats": tuple, "rounds": bool}


def leaf_paths(chip: Any = None) -> list[str]:
    """Dotted names of all leaves, in the order `jax.tree.leaves(chip)` gives them; every chip has the same, so it may be left out."""
    return list(RANGES)


def leaves_by_path(chip: Any) -> dict[str, Any]:
    """Dotted name to leaf. Works on any chip-shaped record: gradients, elasticities, batches."""
    return {path: get_leaf(chip, path) for path in RANGES}


def get_leaf(chip: Any, path: str) -> Any:
    """The leaf at a dotted path such as `tensor.rows`, or a static such as `name`.

    Raises:
        ChipError: If no leaf has that name; says which is closest.
    """
    known_path("chip.get", path)
    value = chip
    for part in path.split("."):
        value = getattr(value, part)
    return value


def replace_leaves(chip: _Record, changes: Mapping[str, Any]) -> _Record:
    """A copy of the chip with some leaves or statics changed; see `Chip.replace`."""
    if not isinstance(changes, Mapping):
        raise ChipError(f"chip.replace: got a {type(changes).__name__}; give a dict of dotted paths, like {{'tensor.rows': 256.0}}.")
    grouped: dict[str, dict[str, Any]] = {}
    for path, value in changes.items():
        known_path("chip.replace", path)
        head, _, tail = path.rpartition(".")
        grouped.setdefault(head, {})[tail] = _static(path, value) if path in _STATIC else _leaf(path, value)
    top = grouped.pop("", {})
    parts = {head: dataclasses.replace(getattr(chip, head), **values) for head, values in grouped.items()}
    return dataclasses.replace(chip, **top, **parts)  # type: ignore[type-var]


def known_path(where: str, path: Any) -> None:
    """Raises ChipError unless the path names a leaf or a static of a chip."""
    if path in RANGES or path in _STATIC:
        return
    inside = [name for name in RANGES if name.startswith(f"{path}.")]
    if inside:
        raise ChipError(f"{where}: {path!r} is a group of values; name one of them: {', '.join(inside)}.")
    raise ChipError(f"{where}: no value is called {path!r}. {did_you_mean(str(path), [*RANGES, *_STATIC])}")


def _leaf(path: str, value: Any) -> Any:
    """Concrete scalars become checked Python floats; arrays and tracers stay, in a floating dtype."""
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if not isinstance(value, (jax.Array, np.ndarray)):  # tracers are jax.Arrays
        return checked_number("chip.replace", path, value)
    if jnp.issubdtype(value.dtype, jnp.floating):
        return value
    if jnp.issubdtype(value.dtype, jnp.integer):
        return value.astype(float)
    raise ChipError(f"chip.replace: {path} is an array of {value.dtype}; give real numbers.")


def _static(path: str, value: Any) -> Any:
    if path in ("formats", "psum_formats"):
        return checked_formats("chip.replace", value, path)
    if not isinstance(value, _STATIC[path]):
        raise ChipError(f"chip.replace: {path} = {value!r}; give a {_STATIC[path].__name__}.")
    return value
