"""What the example kernels take on Trainium1 and 2, with one buffer per tile and with two, beside published figures.

    python examples/kernels/compare.py [--json] [--quick]

Published figures are rows of data/measured.csv and, for the steps of the matrix multiplication, AWS's profiles of its own tutorial on
Trainium2. Nothing here is fitted to them: the kernels are ours, in the spirit of the published ones but not instruction by instruction
the same, and the chips are the presets. Figures taken on the host contain the launch of a kernel, which is added to the prediction.
"""

from __future__ import annotations

import argparse
import csv
import json
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from attention import flash_attention
from conv2d import conv2d
from mamba import selective_scan
from matmul import blocked, blocked_free, hoisted, tiled
from rmsnorm_matmul import rmsnorm_matmul
from softmax import softmax
from vector_add import vector_add

import trn_jax as trn
from trn_jax.software import load_software

MEASURED = Path(__file__).parents[2] / "data" / "measured.csv"
COLUMNS = (1, 2, 8)  # buffers for each tile in a loop
UNITS_S = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
# AWS Neuron docs, NKI kernel optimization tutorial: profiles of its matrix multiplication, fp32 4096 x 8192 x 8192 on one core of trn2
TUTORIAL_S = {"tiled": 39.9e-3, "hoisted": 28.2e-3, "blocked_free": 28.42e-3, "blocked": 28.30e-3}


class Case(NamedTuple):
    """One line: a kernel, its arguments, and what was published for it."""

    name: str
    chip: str
    kernel: Any
    arguments: tuple[Any, ...]
    settings: dict[str, Any] = {}
    published: str | float = 0.0  # id of a row, or seconds; 0 for none
    buffers: tuple[int, ...] = (1, 2)


def array(*shape: int, dtype: Any = jnp.float32) -> Any:
    """An argument without values."""
    return jax.ShapeDtypeStruct(shape, dtype)


def product(m: int, k: int, n: int, dtype: Any) -> tuple[Any, Any]:
    """lhsT and rhs."""
    return array(k, m, dtype=dtype), array(k, n, dtype=dtype)


def scan(channels: int, time: int) -> tuple[Any, ...]:
    """Arguments of a selective scan with 16 states."""
    return array(channels, time), array(channels, time), array(channels, 16), array(16, time), array(16, time)


def cases() -> list[Case]:
    """All lines."""
    tutorial = product(4096, 8192, 8192, jnp.float32)
    steps = {"tiled": (tiled, {}), "hoisted": (hoisted, {}), "blocked_free": (blocked_free, {}), "blocked": (blocked, {"tiles_m": 8})}
    buffers = {name: COLUMNS if name == "tiled" else (1, 2) for name in steps}  # short loops need the most copies
    found = [
        Case(f"matmul {name}, fp32 4096x8192x8192", "trainium2", k, tutorial, s, TUTORIAL_S[name], buffers[name])
        for name, (k, s) in steps.items()
    ]
    for chip in ("trainium1", "trainium2"):
        small = product(2048, 2048, 2048, jnp.bfloat16)
        found += [Case(f"matmul {name}, bf16 2048x2048x2048", chip, k, small, buffers=buffers[name]) for name, (k, _) in steps.items()]
        found += [
            Case("softmax, fp32 4096x2048", chip, softmax, (array(4096, 2048),)),
            Case("attention, bf16, 1 head 4096x128", chip, flash_attention, _attention(4096, 128)),
        ]
    big = product(4096, 8192, 8192, jnp.bfloat16)
    found.append(Case("matmul blocked, bf16 4096x8192x8192", "trainium1", blocked, big, {}, "autocomp-gemm-5"))
    rms = (array(4096, 1024), array(1024, 2048))
    found.append(
        Case(
            "rmsnorm + matmul, fp32 4096x1024x2048",
            "trainium1",
            rmsnorm_matmul,
            rms,
            {},
            "nkibench-rmsnorm_matmul_k1024_m4096_n2048-best-found",
        )
    )
    for name, dtype in (("fp16", jnp.float16), ("fp32", jnp.float32)):
        image, filters = array(256, 224, 224, dtype=dtype), array(3, 3, 256, 256, dtype=dtype)
        found.append(Case(f"conv2d 3x3, {name} 256x224x224", "trainium1", conv2d, (image, filters), {}, f"cs149-conv-trn1-{name}"))
    for width, length in ((2, 25600), (200, 25600), (1000, 256000), (2000, 256000)):
        row = f"cs149-vecadd-trn1-{length}-free_dim={width}"
        found.append(
            Case(f"vector add, {length} in tiles of {width}", "trainium1", vector_add, (array(length),) * 2, {"width": width}, row, COLUMNS)
        )
    found += [
        Case("selective scan, 256 channels, 512 steps", "trainium1", selective_scan, scan(256, 512), {}, "nkidoc-mamba-c256-s512-nki"),
        Case("selective scan, 4096 channels, 512 steps", "trainium1", selective_scan, scan(4096, 512), {}, "nkidoc-mamba-c4096-s512-v2"),
        Case("selective scan, 256 channels, 2048 steps", "trainium1", selective_scan, scan(256, 2048), {}, "autocomp-mamba-5"),
    ]
    return found


def _attention(length: int, d: int) -> tuple[Any, Any, Any]:
    q = array(1, d, length, dtype=jnp.bfloat16)
    return q, q, array(1, length, d, dtype=jnp.bfloat16)


def predicted_s(case: Case, buffers: int) -> float | None:
    """Seconds with so many buffers for each tile in a loop; None if they do not fit."""
    try:
        program = trn.trace(case.kernel.replace(buffers=buffers, chip=case.chip), *case.arguments, **case.settings)
    except trn.ShapeError:
        return None
    return float(trn.latency(program, trn.load_chip(case.chip)))


def published_s(case: Case, rows: dict[str, dict[str, str]]) -> tuple[float, float]:
    """The published figure, and how much of it is the launch of a kernel; zeros for none."""
    if isinstance(case.published, float):
        return case.published, 0.0
    row = rows[case.published]
    on_host = any(word in row["metric"] for word in ("nc_latency", "nki.benchmark"))
    return float(row["value"]) * UNITS_S[row["unit"]], load_software().launch_s if on_host else 0.0


def main() -> None:
    """Prints the table, or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quick", action="store_true", help="the vector additions only")
    options = parser.parse_args()
    with MEASURED.open(newline="", encoding="utf-8") as file:
        rows = {row["id"]: row for row in csv.DictReader(file)}
    results = []
    if not options.json:
        print(f"{'kernel':44} {'chip':10} {'1 buffer':>12} {'2 buffers':>12} {'8 buffers':>12} {'published':>12} {'error':>7}")
    for case in cases():
        if options.quick and case.kernel is not vector_add:
            continue
        published, launch_s = published_s(case, rows)
        times = {buffers: predicted_s(case, buffers) for buffers in case.buffers}
        times = {buffers: time + launch_s for buffers, time in times.items() if time is not None}
        error = min(times.values()) / published - 1 if times and published else None
        results.append({"kernel": case.name, "chip": case.chip, "seconds": times, "published_s": published, "error": error})
        if not options.json:
            columns = [_time(times.get(buffers)) if buffers in case.buffers else "" for buffers in COLUMNS]
            columns.append(_time(published) if published else "")
            print(f"{case.name:44} {case.chip:10} {' '.join(f'{column:>12}' for column in columns)}", end=" ")
            print(f"{error:>+7.0%}" if error is not None else "", flush=True)
    errors = sorted(abs(result["error"]) for result in results if result["error"] is not None)
    if options.json:
        print(json.dumps({"rows": results, "median_error": errors[len(errors) // 2] if errors else None}))
    elif errors:
        median, mean = errors[len(errors) // 2], sum(errors) / len(errors)
        print(f"\nOf {len(errors)} published figures the median is off by {median:.0%}, the mean by {mean:.0%}.")


def _time(seconds: float | None) -> str:
    return "does not fit" if seconds is None else f"{seconds * 1e6:,.1f} us"


if __name__ == "__main__":
    main()
