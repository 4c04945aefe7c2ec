"""One 32-bit word from whatever a user gives as the source of randomness: an int, a traced integer or a JAX PRNG key."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, UInt32

from trn_jax.errors import FormatError
from trn_jax.numerics.hash import Seed, as_word, mix

_NEEDS = "rounding='stochastic' takes its random bits from exactly one of key= (a JAX PRNG key) and seed= (an int or a uint32 scalar)"


def as_seed(*, key: Any = None, seed: Seed | None = None) -> UInt32[Array, ""]:
    """One uint32 scalar from a PRNG key or a seed, exactly one of which must be given.

    Raises:
        FormatError: If none or both are given, or the one given is of another kind.
    """
    if seed is None:
        if key is None:
            raise FormatError(f"{_NEEDS}; none given.")
        return _seed_of_key(key)
    if key is not None:
        raise FormatError(f"{_NEEDS}; both given.")
    if isinstance(seed, int) and not isinstance(seed, bool):
        if not 0 <= seed < 2**32:
            raise FormatError(f"seed must be in 0 .. 2^32 - 1; got {seed}. Reduce it, or fold its parts with trn_jax.numerics.mix.")
    elif not (jnp.issubdtype(_dtype(seed), np.integer) and jnp.shape(seed) == ()):
        raise FormatError(
            f"seed must be an int or a uint32 scalar, traced or not; got {_describe(seed)}. Of a PRNG key, give jax.random.bits(key)."
        )
    return as_word(seed)


def _seed_of_key(key: Any) -> UInt32[Array, ""]:
    """All words of a PRNG key folded into one."""
    typed = jnp.issubdtype(_dtype(key), jax.dtypes.prng_key)
    words = jax.random.key_data(key) if typed else key
    if not (_dtype(words) == np.uint32 and words.ndim == 1):
        raise FormatError(f"key must be one JAX PRNG key, typed or raw; got {_describe(key)}. Use jax.random.key(seed), or give seed=.")
    return mix(words[0], *words[1:])


def _dtype(value: Any) -> Any:
    """The dtype of an array; that of numpy's objects for anything else."""
    return getattr(value, "dtype", np.dtype(object))


def _describe(value: Any) -> str:
    """Dtype and shape of an array, the value of anything else."""
    return f"an array {jax.typeof(value)}" if hasattr(value, "dtype") else repr(value)
