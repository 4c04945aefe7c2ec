"""Published figures and seconds: each kind of row turns one into the other in its own unit."""

from __future__ import annotations

from trn_jax.chips import Chip
from trn_jax.validation.measurement import Measurement
from trn_jax.validation.sizes import Missing, number_of
from trn_jax.validation.workload import Workload

SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ns": 1e-9}
PER_SECOND = {"TFLOPS": 1e12, "TOPS": 1e12, "TFLOP/s": 1e12, "GFLOPS": 1e9, "GB/s": 1e9, "GiB/s": 2.0**30, "TB/s": 1e12, "MB/s": 1e6}
KINDS = ("kernel_latency", "kernel_throughput", "kernel_mfu", "memory_bw", "collective")


def seconds_of(row: Measurement, workload: Workload, chip: Chip, figure: float) -> float:
    """Seconds that a figure in the row's unit stands for.

    Raises:
        Missing: A unit that does not go with the kind, or no formula for its operations or bytes.
    """
    if row.unit in SECONDS:
        return figure * SECONDS[row.unit]
    return _amount(row, workload, chip) / figure


def figure_of(row: Measurement, workload: Workload, chip: Chip, seconds: float) -> float:
    """The figure in the row's unit that some seconds stand for; raises as `seconds_of`."""
    if row.unit in SECONDS:
        return seconds / SECONDS[row.unit]
    return _amount(row, workload, chip) / seconds


def _amount(row: Measurement, workload: Workload, chip: Chip) -> float:
    """What is counted per second, so that amount / seconds is the figure: operations, bytes or per cent of the peak."""
    if row.unit == "%":
        t = chip.tensor
        if not workload.operations:
            raise Missing(f"the number of operations that % of {workload.name} counts")
        return 100 * workload.operations / (2 * t.rows * t.cols * t.clock_hz)
    amount = workload.moved_bytes * number_of(row, "n_cores") if row.kind == "memory_bw" else workload.operations
    if row.unit not in PER_SECOND:
        raise Missing(f"a meaning of the unit {row.unit!r} for a {row.kind}")
    if not amount:
        raise Missing(f"the number of operations that {row.unit} of {workload.name} counts")
    return amount / PER_SECOND[row.unit]
