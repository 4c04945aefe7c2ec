"""Chips as data: TOML files with units and sources, and the differentiable record they become."""

from trn_jax.chips.loader import describe_chip as describe_chip
from trn_jax.chips.loader import list_chips as list_chips
from trn_jax.chips.loader import load_chip as load_chip
from trn_jax.chips.paths import leaf_paths as leaf_paths
from trn_jax.chips.paths import leaves_by_path as leaves_by_path
from trn_jax.chips.paths import time_power as time_power
from trn_jax.chips.schema import Chip as Chip
