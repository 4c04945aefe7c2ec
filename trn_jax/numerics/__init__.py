"""The numbers of the chip: formats, rounding to them, and the random bits of stochastic rounding."""

from trn_jax.numerics.formats import FORMATS, Format, format_of, get_format
from trn_jax.numerics.hash import hash_bits, key_table, mix, split_key
from trn_jax.numerics.rounding import Overflow, Rounding, round_to, rounder

__all__ = [
    "FORMATS",
    "Format",
    "Overflow",
    "Rounding",
    "format_of",
    "get_format",
    "hash_bits",
    "key_table",
    "mix",
    "round_to",
    "rounder",
    "split_key",
]
