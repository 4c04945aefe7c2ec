"""What is checked of a function's arguments: 64-bit NumPy numbers that JAX would cut to 32 bits silently, shapes without values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from trn_jax.errors import FormatError


def check_arguments(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Refuses NumPy arrays with a value that JAX's dtype for them cannot hold.

    Raises:
        FormatError: An integer would wrap around, or a finite float become infinite. Rounding a float64 to float32 is accepted,
            as everywhere in JAX. Under jax.jit JAX has cut the numbers before anybody can look.
    """
    for path, leaf in jax.tree_util.tree_leaves_with_path((tuple(args), dict(kwargs))):
        if not isinstance(leaf, (np.ndarray, np.generic)) or leaf.dtype.kind not in "iuf" or leaf.dtype.itemsize < 8:
            continue
        held = jax.dtypes.canonicalize_dtype(leaf.dtype)
        if held == leaf.dtype or not leaf.size:
            continue
        limits = np.iinfo(held) if leaf.dtype.kind in "iu" else np.finfo(held)
        flat: Any = np.asarray(leaf).reshape(-1)
        beyond = flat[((flat < limits.min) | (flat > limits.max)) & np.isfinite(flat)]
        if beyond.size:
            raise FormatError(
                f"Argument {_name(path)} is {leaf.dtype} and holds {beyond[0]}, which {held} cannot hold; JAX would go on with "
                f"other numbers silently. Give values that fit {held}, or keep 64 bits with jax.enable_x64(True)."
            )


def check_values(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raises TypeError if an argument is a shape without values."""
    for path, leaf in jax.tree_util.tree_leaves_with_path((tuple(args), dict(kwargs))):
        if isinstance(leaf, jax.ShapeDtypeStruct):
            raise TypeError(
                f"Argument {_name(path)} is {leaf!r}, a shape without values. Give an array; trn_jax.trace and cast_report take shapes, "
                "and jax.eval_shape gives the shapes of results."
            )


def _name(path: Any) -> str:
    """The place of a leaf, as `0['tokens']` or `batch['tokens']`."""
    _, first, *rest = path
    return f"{getattr(first, 'idx', getattr(first, 'key', first))}{jax.tree_util.keystr(tuple(rest))}"
