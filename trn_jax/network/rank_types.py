"""Tells JAX whether a value is the same on every rank of an axis or may vary; nothing is moved or computed.

`shard_map` tracks which arrays vary between ranks. What comes out of a `ppermute` counts as varying, even when a ring has made
it equal everywhere, so it could not leave through `out_specs=P()` as the result of `lax.psum` can. The primitive `replicated`
changes that type. With check_vma=False, or where the axis belongs to a vmap, nothing is tracked and nothing is done.
"""

from __future__ import annotations

from typing import Any

import jax
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir
from jaxtyping import Array

replicated_p = Primitive("replicated")


def replicated(x: Array, axis_name: str | tuple[str, ...]) -> Array:
    """Returns `x`, typed as equal on all ranks of `axis_name`; the caller guarantees that it is, bit for bit.

    Gradient: none is defined; to be used inside a function that has its own rule.
    """
    axes = frozenset(axis_name if isinstance(axis_name, tuple) else (axis_name,))
    tracked = axes & jax.typeof(x).mat.varying
    return replicated_p.bind(x, axes=tuple(sorted(tracked))) if tracked else x


def varying(x: Array, axis_name: str | tuple[str, ...]) -> Array:
    """Returns `x`, typed as different on the ranks of `axis_name`, as the carry of a loop that permutes it has to be."""
    missing = jax.typeof(lax.axis_index(axis_name)).mat.varying - jax.typeof(x).mat.varying
    return lax.pcast(x, tuple(sorted(missing)), to="varying") if missing else x


@replicated_p.def_abstract_eval
def _(aval: Any, *, axes: tuple[str, ...]) -> Any:
    return aval.update(manual_axis_type=aval.mat.update(varying=aval.mat.varying - frozenset(axes)))


mlir.register_lowering(replicated_p, lambda ctx, x, *, axes: [x])
batching.primitive_batchers[replicated_p] = lambda args, dims, *, axes: (replicated_p.bind(*args, axes=axes), dims[0])
