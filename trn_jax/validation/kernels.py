"""Rows that are timed as an explicitly scheduled kernel: which kernel a published name stands for, and its arguments.

A row of `KERNELS` is a pattern on the published name (as in `workloads.WORKLOADS`) and a builder that returns a function made by
`trn_jax.kernel` and its arguments, with the tiling that the row gives. A row without a kernel is timed as a plain function.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from trn_jax.validation.measurement import Measurement
from trn_jax.validation.workloads import Workload

Builder = Callable[[Measurement, Workload], tuple[Callable[..., Any], tuple[Any, ...]]]

KERNELS: list[tuple[str, Builder]] = []


def kernel_of(row: Measurement, workload: Workload) -> tuple[Callable[..., Any], tuple[Any, ...]] | None:
    """Kernel and arguments for a row, or None."""
    for pattern, build in KERNELS:
        if re.search(pattern, row.workload, re.IGNORECASE):
            return build(row, workload)
    return None
