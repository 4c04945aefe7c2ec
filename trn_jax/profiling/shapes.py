"""Shapes and dtypes as text: `4096x4096:bf16`, `128:int32`, `scalar:fp32`."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np

from trn_jax.errors import ProgramError, did_you_mean
from trn_jax.numerics import FORMATS

DTYPES = {name: jnp.dtype(fmt.storage) for name, fmt in FORMATS.items() if fmt.storage}
DTYPES |= {name: np.dtype(name) for name in ("int8", "int32", "uint32", "bool")}
_SHAPE = re.compile(r"(scalar|[1-9]\d*(?:x[1-9]\d*)*)(?::(\w+))?")


def read_shape(text: str, default: str = "fp32") -> jax.ShapeDtypeStruct:
    """The array that a text like `4096x4096:bf16` describes; without a dtype it is of the default one.

    Raises:
        ProgramError: Not of this form, or an unknown dtype.
    """
    found = _SHAPE.fullmatch(text)
    if found is None:
        raise ProgramError(f"{text!r} is no shape. Write sizes and a dtype, such as 4096x4096:bf16, 128:int32 or scalar:fp32.")
    sizes, name = found[1], found[2] or default
    if name not in DTYPES:
        raise ProgramError(f"{text!r} has an unknown dtype {name!r}. {did_you_mean(name, DTYPES)}")
    return jax.ShapeDtypeStruct(() if sizes == "scalar" else tuple(map(int, sizes.split("x"))), DTYPES[name])
