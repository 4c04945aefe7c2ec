"""What looking inside costs: a GPT training step under find_nonfinite against the same step only emulated.

    python benchmarks/observe_overhead.py [--json] [--repeats N]

The step is that of emulation_overhead.py, on Trainium2 with bf16 operands, tiled. Figures are medians of ratios measured in turn in one
process. Before timing, both give the same loss, and a weight set to infinity is found.
"""

from __future__ import annotations

import argparse
import json
import statistics
from typing import Any

import jax
import jax.numpy as jnp
from emulation_overhead import build, compile_and_time, time_in_turn

import trn_jax


def measure(repeats: int) -> dict[str, float]:
    """All ratios."""
    step, args, _ = build()
    chip, options = trn_jax.load_chip("trainium2"), {"autocast": trn_jax.AutoCast("matmult", "bf16")}
    variants: dict[str, Any] = {
        "emulated": trn_jax.emulate(step, chip, **options),
        "find_nonfinite": trn_jax.find_nonfinite(step, chip, **options),
    }
    runs, compile_s = {}, {}
    for name, fn in variants.items():
        runs[name], compile_s[name] = compile_and_time(fn, args)
    times = time_in_turn(runs, repeats)
    return {
        "find_nonfinite_ratio": statistics.median(t / p for t, p in zip(times["find_nonfinite"], times["emulated"], strict=True)),
        "compile_ratio": compile_s["find_nonfinite"] / compile_s["emulated"],
        "emulated_step_s": statistics.median(times["emulated"]),
        "compile_s": compile_s["find_nonfinite"],
        "repeats": repeats,
    }


def check() -> None:
    """The step of a sound model makes nothing non-finite; a weight at infinity is named."""
    step, (params, moments, batch), _ = build()
    look = jax.jit(trn_jax.find_nonfinite(step, trn_jax.load_chip("trainium2")))
    if look(params, moments, batch[:1]):
        raise SystemExit("find_nonfinite reports a sound step")
    broken = jax.tree.map(lambda w: jnp.full_like(w, jnp.inf), params)
    if look(broken, moments, batch[:1]).input is None:
        raise SystemExit("find_nonfinite does not see infinite weights")


def main() -> None:
    """Prints the ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--repeats", type=int, default=5, help="timed rounds after one warm-up")
    arguments = parser.parse_args()
    check()
    result = measure(arguments.repeats)
    if arguments.json:
        print(json.dumps({key: round(float(value), 6) for key, value in result.items()}))
        return
    print(
        f"Under find_nonfinite the emulated step takes {result['find_nonfinite_ratio']:.2f} times as long, compiling "
        f"{result['compile_ratio']:.2f} times. Emulated step: {result['emulated_step_s']:.2f} s."
    )


if __name__ == "__main__":
    main()
