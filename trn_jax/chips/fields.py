"""What a chip file may say: for every key its allowed range, as data; and the check of one number against it.

A range is closed unless `above` is set, which leaves out the low end: clocks and shares must be greater than zero.
"""

from __future__ import annotations

import math
import numbers
from typing import Any, NamedTuple

import numpy as np

from trn_jax.errors import ChipError, did_you_mean
from trn_jax.numerics.blocks import BLOCK_FORMATS
from trn_jax.numerics.formats import FORMATS

KNOWN_FORMATS = (*FORMATS, *BLOCK_FORMATS)
BASES = ("documented", "derived", "measured", "assumed", "calibrated")


class Range(NamedTuple):
    """Allowed values of one key, in the unit the key ends in."""

    low: float
    high: float
    above: bool = False

    def holds(self, value: float) -> bool:
        """Whether the value is inside."""
        return (value > self.low if self.above else value >= self.low) and value <= self.high

    def __str__(self) -> str:
        return f"greater than {self.low:g}, up to {self.high:g}" if self.above else f"from {self.low:g} to {self.high:g}"


_SHARE = Range(0.0, 1.0, above=True)
_CLOCK_HZ = Range(0.0, 1e12, above=True)
_BANDWIDTH = Range(0.0, 1e18, above=True)
_SIZE = Range(1.0, 1e18)
_COUNT = Range(1.0, 65536.0)
_CYCLES = Range(0.0, 1e6)
_TIME_S = Range(0.0, 1.0)
_FACTOR = Range(0.0, 1024.0, above=True)
_ENERGY_J = Range(0.0, 1e-3)

RANGES: dict[str, Range] = {
    "cores": _COUNT,
    "tensor.rows": _COUNT,
    "tensor.cols": _COUNT,
    "tensor.clock_hz": _CLOCK_HZ,
    "tensor.rate": _SHARE,
    "tensor.min_columns": Range(0.0, 65536.0),
    "tensor.max_moving_columns": Range(1.0, 1e9),
    "tensor.passes_fp32": _FACTOR,
    "tensor.passes_16bit": _FACTOR,
    "tensor.passes_fp8": _FACTOR,
    "tensor.load_speedup": _FACTOR,
    "tensor.transpose_speedup_fp32": _FACTOR,
    "tensor.fill_cycles": _CYCLES,
    "tensor.warmup_share": _SHARE,
    "tensor.warmup_s": _TIME_S,
    "tensor.chip_peak_flop_per_s": _BANDWIDTH,
    "vector.lanes": _COUNT,
    "vector.clock_hz": _CLOCK_HZ,
    "vector.overhead_cycles": _CYCLES,
    "vector.min_cycles": _CYCLES,
    "vector.latency_cycles": _CYCLES,
    "vector.copy_speedup_16bit": _FACTOR,
    "vector.tensor_tensor_speedup_16bit": _FACTOR,
    "vector.tensor_tensor_speedup_other": _FACTOR,
    "vector.sbuf_port_shared": Range(0.0, 1.0),
    "vector.psum_port_shared": Range(0.0, 1.0),
    "scalar.lanes": _COUNT,
    "scalar.clock_hz": _CLOCK_HZ,
    "scalar.overhead_cycles": _CYCLES,
    "scalar.min_cycles": _CYCLES,
    "scalar.latency_cycles": _CYCLES,
    "scalar.table_load_s": _TIME_S,
    "scalar.copy_speedup_16bit": _FACTOR,
    "gpsimd.lanes": _COUNT,
    "gpsimd.clock_hz": _CLOCK_HZ,
    "gpsimd.overhead_cycles": _CYCLES,
    "gpsimd.latency_cycles": _CYCLES,
    "sbuf.size_bytes": _SIZE,
    "psum.size_bytes": _SIZE,
    "psum.banks": _COUNT,
    "dma.engines": _COUNT,
    "dma.bandwidth_bytes_per_s": _BANDWIDTH,
    "dma.rate": _SHARE,
    "dma.latency_s": _TIME_S,
    "dma.issue_s": _TIME_S,
    "dma.row_overhead_bytes": Range(0.0, 1e9),
    "hbm.size_bytes": _SIZE,
    "hbm.bandwidth_bytes_per_s": _BANDWIDTH,
    "hbm.stacks": _COUNT,
    "hbm.active_cores": _COUNT,
    "link.bandwidth_bytes_per_s": _BANDWIDTH,
    "link.rate": _SHARE,
    "link.latency_s": _TIME_S,
    "energy.mac_fp32_j": _ENERGY_J,
    "energy.mac_16bit_j": _ENERGY_J,
    "energy.mac_fp8_j": _ENERGY_J,
    "energy.lane_op_j": _ENERGY_J,
    "energy.sbuf_j_per_byte": _ENERGY_J,
    "energy.psum_j_per_byte": _ENERGY_J,
    "energy.hbm_j_per_byte": _ENERGY_J,
    "energy.link_j_per_byte": _ENERGY_J,
    "energy.static_w": Range(0.0, 1e6),
    "energy.supply_share": _SHARE,
}


def checked_number(where: str, path: str, value: Any) -> float:
    """The value as a Python float, if it is a number inside the key's range.

    Args:
        where: File or call the value came from, for the message.
        path: Dotted key, one of `RANGES`.
        value: A Python or NumPy real scalar; booleans and text are no numbers.

    Returns:
        A Python float, so that integers and NumPy scalars never cost an extra jit trace.

    Raises:
        ChipError: Naming where, key, value and allowed range.
    """
    allowed = RANGES[path]
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (numbers.Real, np.number)) or isinstance(value, np.complexfloating):
        raise ChipError(f"{where}: {path} = {value!r} is a {type(value).__name__}, not a number. Allowed: a number {allowed}.")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not allowed.holds(number):  # NaN and infinities are inside no range
        raise ChipError(f"{where}: {path} = {number:g} is out of range. Allowed: a finite number {allowed}.")
    return number


def checked_formats(where: str, names: Any, key: str = "formats") -> tuple[str, ...]:
    """The names as a tuple, if they are a list of known number formats. Raises ChipError otherwise."""
    if not isinstance(names, (list, tuple)) or not names:
        raise ChipError(f"{where}: {key} = {names!r} must be a list of number formats. Known: {', '.join(KNOWN_FORMATS)}.")
    for name in names:
        if not isinstance(name, str) or name not in KNOWN_FORMATS:
            raise ChipError(f"{where}: {key} contains {name!r}. {did_you_mean(str(name), KNOWN_FORMATS)}")
    return tuple(names)
