"""The numbers of the chip: formats, rounding to them, and the random bits of stochastic rounding."""

from trn_jax.numerics.activation_fit import fitted_table
from trn_jax.numerics.activation_table import ActivationTable
from trn_jax.numerics.blocks import BLOCK_FORMATS, BlockFormat
from trn_jax.numerics.formats import FORMATS, Format, format_of, get_format
from trn_jax.numerics.hash import hash_bits, mix
from trn_jax.numerics.rounding import Overflow, Rounding, block_rounder, round_to, rounder
from trn_jax.numerics.stream import Stream, start_stream

__all__ = [
    "BLOCK_FORMATS",
    "FORMATS",
    "ActivationTable",
    "BlockFormat",
    "Format",
    "Overflow",
    "Rounding",
    "Stream",
    "block_rounder",
    "fitted_table",
    "format_of",
    "get_format",
    "hash_bits",
    "mix",
    "round_to",
    "rounder",
    "start_stream",
]
