"""Attention on two chips, with and without fusion, at every level of overlap: how long it takes, and what it rounds.

    python experiments/e03_engine_overlap/run.py [--smoke] [--out DIR]

Writes results.json: `times`, one row per chip, length, fusion and level; `errors`, one per chip, length and way of writing. See README.md.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import trn_jax

CHIPS = ("trainium1", "trainium2")
HEADS, WIDTH = 4, 128
SOFTMAX = {"fp32": jnp.float32, "bf16": jnp.bfloat16}
BF16 = trn_jax.AutoCast("matmult", "bf16")


@dataclass(frozen=True)
class Plan:
    """How much is run."""

    lengths: tuple[int, ...] = (512, 1024, 2048, 4096)
    levels: tuple[float, ...] = (0.0, 0.2, 0.4, 0.6, 0.8, 0.9, 1.0)
    error_lengths: tuple[int, ...] = (256, 1024)
    seeds: int = 3


SMOKE = Plan(lengths=(512,), levels=(0.0, 1.0), error_lengths=(128,), seeds=1)


def attention(q: jax.Array, k: jax.Array, v: jax.Array, softmax: str = "fp32") -> jax.Array:
    """softmax(q k^T / sqrt(width)) v for every head, as one writes it in JAX, with the softmax in fp32 or in bf16."""
    scores = jnp.einsum("hsd,htd->hst", q, k).astype(SOFTMAX[softmax]) * WIDTH**-0.5
    return jnp.einsum("hst,htd->hsd", jax.nn.softmax(scores, axis=-1).astype(v.dtype), v)


def times(plan: Plan) -> list[dict[str, Any]]:
    """Latency and busy engines of every chip, length, fusion and level."""
    rows = []
    for length in plan.lengths:
        size = jax.ShapeDtypeStruct((HEADS, length, WIDTH), jnp.bfloat16)
        fused = trn_jax.trace(attention, size, size, size)
        for name in CHIPS:
            chip = trn_jax.load_chip(name)
            for fusion, program in (("fused", fused), ("not fused", fused.with_passes(()))):
                report = trn_jax.estimate(program, chip)
                on_path: dict[str, float] = {}
                for row in report.critical_path:
                    on_path[row.engine] = on_path.get(row.engine, 0.0) + row.seconds
                for level in plan.levels:
                    rows.append(
                        {
                            "chip": name,
                            "length": length,
                            "fusion": fusion,
                            "overlap": level,
                            "latency_s": float(trn_jax.latency(program, chip, overlap=jnp.asarray(level))),
                            "bound_s": report.bound_s,
                            "instructions": len(program),
                            "hbm_bytes": report.hbm_bytes,
                            "busy_s": {engine: used.busy_s for engine, used in report.engines.items()},
                            "critical_s": on_path,
                            "flops": report.flops,
                        }
                    )
    return rows


def errors(plan: Plan) -> list[dict[str, Any]]:
    """Relative error of the output on each chip, written value by value or only where an instruction ends, against float64."""
    rows = []
    for length in plan.error_lengths:
        for seed in range(plan.seeds):
            q, k, v = (jax.random.normal(key, (HEADS, length, WIDTH), jnp.bfloat16) for key in jax.random.split(jax.random.key(seed), 3))
            exact = reference(*(np.asarray(x, np.float64) for x in (q, k, v)))
            for name in CHIPS:
                for softmax, writes in (("fp32", "value"), ("bf16", "value"), ("bf16", "instruction")):
                    run = trn_jax.emulate(partial(attention, softmax=softmax), trn_jax.load_chip(name), autocast=BF16, writes=writes)
                    found = np.asarray(run(q, k, v), np.float64)
                    row = {"chip": name, "length": length, "softmax": softmax, "writes": writes, "seed": seed}
                    rows.append(row | {"relative_error": float(np.linalg.norm(found - exact) / np.linalg.norm(exact))})
    return rows


def reference(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """The same in float64."""
    scores = np.einsum("hsd,htd->hst", q, k) / np.sqrt(WIDTH)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("hst,htd->hsd", weights / weights.sum(-1, keepdims=True), v)


def main() -> None:
    """Runs the plan and writes results.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="one length, two levels")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    plan, start_s = SMOKE if options.smoke else Plan(), time.perf_counter()
    result = {"times": times(plan), "errors": errors(plan)}
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "results.json").write_text(json.dumps(result, indent=1) + "\n")
    print(f"{len(result['times'])} times and {len(result['errors'])} errors in {time.perf_counter() - start_s:.0f} s")


if __name__ == "__main__":
    main()
