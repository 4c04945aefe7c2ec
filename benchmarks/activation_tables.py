"""Error of the Scalar Engine's tables (`activation="table"`) against float64, and what they cost to evaluate.

    python benchmarks/activation_tables.py [--json] [--samples N]

Inputs are spread evenly over the range, over its octaves, and close to zero and one. An ulp is the distance between neighbouring fp32
values at the exact result. The rows of docs/numerics.md are this output.
"""

from __future__ import annotations

import argparse
import json
import timeit
from typing import Any

import jax
import numpy as np

from trn_jax.numerics.activation_fit import SOURCES, Source, fitted_table


def inputs(source: Source, samples: int) -> np.ndarray:
    """fp32 inputs inside the range of a table."""
    rng = np.random.default_rng(0)
    smallest = np.log2(source.low) if source.low > 0 else -30.0
    signs = np.ones(samples) if source.low > 0 else rng.choice([-1.0, 1.0], samples)
    octaves = signs * np.exp2(rng.uniform(smallest, np.log2(source.high), samples))
    near_one = 1 + rng.normal(size=samples) * np.exp2(-rng.uniform(2, 20, samples))
    x = np.concatenate([rng.uniform(source.low, source.high, samples), octaves, near_one]).astype(np.float32)
    return x[(x >= source.low) & (x <= source.high)]


def measure(name: str, samples: int) -> dict[str, Any]:
    """One row."""
    source, table = SOURCES[name], fitted_table(name)
    x = inputs(source, samples)
    evaluate, exact_fp32 = jax.jit(table), jax.jit(getattr(jax.lax, name))
    exact = source.function(x.astype(np.float64))
    error_ulp = np.abs(np.asarray(evaluate(x), np.float64) - exact) / np.spacing(np.abs(exact).astype(np.float32))
    seconds = [min(timeit.repeat(lambda f=f: f(x).block_until_ready(), number=1, repeat=5)) for f in (evaluate, exact_fp32)]
    return {
        "function": name,
        "low": source.low,
        "high": source.high,
        "basis": source.basis.partition(":")[0],
        "segments": len(table.bases),
        "max_ulp": float(error_ulp.max()),
        "at": float(x[error_ulp.argmax()]),
        "mean_ulp": float(error_ulp.mean()),
        "times_plain": seconds[0] / seconds[1],
    }


def bound(x: float) -> str:
    """A range's end: a power of two as such."""
    exponent = np.log2(x) if x > 0 else 0.5
    return f"2^{exponent:.0f}" if exponent == round(exponent) and abs(exponent) > 10 else f"{x:.6g}"


def main() -> None:
    """Prints a table and the sentence."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    parser.add_argument("--samples", type=int, default=300_000, help="inputs of each of three kinds")
    options = parser.parse_args()
    rows = [measure(name, options.samples) for name in SOURCES]
    if options.json:
        print(json.dumps(rows, indent=2))
        return
    print("| function | inputs | range | segments | worst error, ulp | at | mean error, ulp |")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        inside = f"{bound(row['low'])} to {bound(row['high'])} | {row['basis']}"
        error = f"{row['max_ulp']:.1f} | {row['at']:.4g} | {row['mean_ulp']:.2f}"
        print(f"| {row['function']} | {inside} | {row['segments']} | {error} |")
    worst, slowest = max(rows, key=lambda row: row["max_ulp"]), max(rows, key=lambda row: row["times_plain"])
    print(
        f"No table is off by more than {worst['max_ulp']:.1f} ulp ({worst['function']}) inside its range; on this machine they take up to "
        f"{slowest['times_plain']:.0f} times as long as the plain function ({slowest['function']})."
    )


if __name__ == "__main__":
    main()
