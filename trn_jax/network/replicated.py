"""Tells JAX that a value is the same on every rank of an axis, as the result of an all-reduce is.

`shard_map` tracks which arrays vary between ranks. What comes out of a `ppermute` counts as varying, even when a ring has made
it equal everywhere, so it could not leave through `out_specs=P()` as the result of `lax.psum` can. The primitive `replicated`
moves and computes nothing; only the type changes.
"""

from __future__ import annotations

from typing import Any

import jax
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir
from jaxtyping import Array

replicated_p = Primitive("replicated")


def replicated(x: Array, axis_name: str | tuple[str, ...]) -> Array:
    """Returns `x`, typed as equal on all ranks of `axis_name`; the caller guarantees that it is, bit for bit.

    Gradient: none is defined; to be used inside a function that has its own rule.
    """
    axes = frozenset(axis_name if isinstance(axis_name, tuple) else (axis_name,))
    varying = axes & jax.typeof(x).mat.varying  # empty with check_vma=False, or where the axis belongs to a vmap
    return replicated_p.bind(x, axes=tuple(sorted(varying))) if varying else x


@replicated_p.def_abstract_eval
def _(aval: Any, *, axes: tuple[str, ...]) -> Any:
    return aval.update(manual_axis_type=aval.mat.update(varying=aval.mat.varying - frozenset(axes)))


mlir.register_lowering(replicated_p, lambda ctx, x, *, axes: [x])
batching.primitive_batchers[replicated_p] = lambda args, dims, *, axes: (replicated_p.bind(*args, axes=axes), dims[0])
