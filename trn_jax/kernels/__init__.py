"""Kernels: tiles, buffers, engines and queues by hand, as an NKI author writes them; run and timed from one recording.

kernel.py     the decorator     nc.py, memory.py     the instructions     recorder.py, record.py     what was said
run.py        values            lower.py             the schedule         limits.py, footprint.py    what fits
"""

from trn_jax.kernels.affine import Affine
from trn_jax.kernels.kernel import Kernel, kernel
from trn_jax.kernels.limits import tile_size
from trn_jax.kernels.nc import NeuronCore
from trn_jax.kernels.tile import Tile

__all__ = ["Affine", "Kernel", "NeuronCore", "Tile", "kernel", "tile_size"]
