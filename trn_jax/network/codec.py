"""What happens to a number on its way around the ring: rounded to the wire's format to be sent, and summed in fp32.

    send(x) = round_wire(x)            a + b = round_reduce(fp32(a) + fp32(b))

An array of the wire's own dtype is sent, so the bytes in a program are the bytes on the link.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import jax.numpy as jnp
from jaxtyping import Array

from trn_jax.numerics import get_format, mix, rounder


@dataclass(frozen=True, slots=True, kw_only=True)
class FloatCodec:
    """Floating-point numbers: two formats and one rounding mode. Hashable, so that it can be a static argument."""

    wire_format: str
    reduce_format: str
    rounding: Literal["nearest", "stochastic"]

    @property
    def wire_holds_sums(self) -> bool:
        """Whether a partial sum in `reduce_format` can be sent in `wire_format` without being rounded again."""
        wire, reduce = get_format(self.wire_format), get_format(self.reduce_format)
        return wire.mantissa_bits >= reduce.mantissa_bits and wire.exponent_bits >= reduce.exponent_bits

    def load(self, x: Array) -> Array:
        """The local operand as the adder sees it: exact, in float32."""
        return x.astype(jnp.float32)

    def send(self, x: Array, seed: Any) -> Array:
        """Float32 values as they leave a rank. tf32 travels in 32 bits, as it has no storage type of its own."""
        return rounder(self.wire_format, self.rounding)(x, seed).astype(get_format(self.wire_format).dtype or jnp.float32)

    def receive(self, word: Array) -> Array:
        """Values from the wire in float32 (exact)."""
        return word.astype(jnp.float32)

    def add(self, a: Array, b: Array, seed: Any) -> Array:
        """One partial sum, rounded once when it is written."""
        return rounder(self.reduce_format, self.rounding)(a + b, seed)


@dataclass(frozen=True, slots=True)
class IntegerCodec:
    """Integers travel and are summed in their own dtype, exactly (modulo its range), whatever the formats asked for."""

    wire_holds_sums = True

    def load(self, x: Array) -> Array:
        """The operand itself."""
        return x

    def send(self, x: Array, seed: Any) -> Array:
        """The operand itself."""
        return x

    def receive(self, word: Array) -> Array:
        """The operand itself."""
        return word

    def add(self, a: Array, b: Array, seed: Any) -> Array:
        """The sum in the operands' dtype."""
        return a + b


Codec = FloatCodec | IntegerCodec


def sub_seed(seed: Any, *words: Any) -> Any:
    """A seed for one rounding, different for every combination of integers; None stays None (nearest)."""
    return None if seed is None else mix(seed, *words)
