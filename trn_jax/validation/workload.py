"""What to trace for one row: a plain JAX function and the shapes of its arguments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from trn_jax.validation.measurement import Measurement
from trn_jax.validation.sizes import Missing

DTYPES = {
    "fp32": jnp.float32,
    "float32": jnp.float32,
    "bf16": jnp.bfloat16,
    "bfloat16": jnp.bfloat16,
    "fp16": jnp.float16,
    "float16": jnp.float16,
    "int8": jnp.int8,
    "fp8": jnp.float8_e4m3,
    "float8": jnp.float8_e4m3,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What to trace for one row.

    Attributes:
        name: Of the mathematics, e.g. "matmul"; with `shape` it makes the row's group.
        shape: Sizes in words.
        function: A plain JAX function.
        args: Its arguments, as shapes.
        operations: Floating point operations by the formula that throughputs are published with; 0 where none are.
        moved_bytes: Bytes that a bandwidth is published for; 0 where none is.
    """

    name: str
    shape: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    operations: float = 0.0
    moved_bytes: float = 0.0

    @property
    def argument_bytes(self) -> float:
        """Of all arguments."""
        return float(sum(arg.size * arg.dtype.itemsize for arg in self.args))


def dtype_of(row: Measurement) -> Any:
    """The dtype of a row's inputs; raises Missing where it is none that JAX has."""
    text = row.text("dtype").lower()
    for name, dtype in DTYPES.items():
        if text.startswith(name):
            return dtype
    raise Missing("the dtype" if not text else f"a format for the dtype {row.text('dtype')!r}")


def made(row: Measurement, name: str, function: Callable[..., Any], *shapes: tuple[int, ...], **more: Any) -> Workload:
    """A workload whose arguments all have the dtype of the row."""
    dtype = dtype_of(row)
    args = tuple(jax.ShapeDtypeStruct(shape, dtype) for shape in shapes)
    shape = " ".join("x".join(map(str, dims)) for dims in shapes)
    return Workload(name=name, shape=shape, function=function, args=args, **more)
