"""How many chips per second can be timed, and differentiated: a 120-instruction program on a batch of chips in float32.

Run from the repository: python benchmarks/latency_throughput.py [--json] [--chips 4096] [--repeats 7] [--instructions 120]

`updates_per_s` and `gradient_updates_per_s` are instruction-updates per second: chips (or gradients) per second x instructions x plans, all
in float32. A plan is one pass over all rows in a fixed order; `latency` at its default overlap takes one (`plans`), from which it derives
the other schedules that it mixes. They do not depend on the length of the program, as time is linear in it: `linearity` is the time of four
times the instructions over four times the time, 1 if exactly linear. `compile_400_s` is what tracing and compiling `latency` takes for one
chip and a program of 400 instructions, in float64.
"""

import argparse
import json
import statistics
import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

import trn_jax
from trn_jax.chips.paths import get_leaf
from trn_jax.timing.latency import latency
from trn_jax.timing.overlap import IN_TURN, SERIAL, mixture
from trn_jax.timing.program import Program, Row, Structure

INSTRUCTIONS = 120
COMPILED_INSTRUCTIONS = 400
FREE = (
    "tensor.clock_hz",
    "vector.clock_hz",
    "scalar.clock_hz",
    "sbuf.size_bytes",
    "dma.bandwidth_bytes_per_s",
    "hbm.bandwidth_bytes_per_s",
    "tensor.rows",
    "tensor.cols",
)


def transformer_like(instructions: int) -> Program:
    """A layer's mix of records, each waiting for one or two of the last few."""
    rng = np.random.default_rng(0)
    kinds = [
        ("dma", "dma_copy", "load", {"bytes": 2.0**21}),
        ("tensor", "nc_matmul", "dot_general", {"batch": 1.0, "m": 1024.0, "k": 1024.0, "n": 1024.0, "elements": 2.0**20}),
        ("vector", "tensor_copy", "evacuate", {"elements": 2.0**20}),
        ("scalar", "activation", "exp", {"elements": 2.0**20}),
        ("vector", "tensor_tensor", "multiply", {"elements": 2.0**20, "operands": 2.0}),
        ("vector", "tensor_reduce", "add", {"elements": 2.0**20}),
    ]
    rows, waits = [], []
    for row in range(instructions):
        engine, kind, function, work = kinds[row % len(kinds)]
        formats = ("bf16", "bf16") if engine == "tensor" else ()
        work = trn_jax.Work(**work)
        rows.append(trn_jax.Instruction(engine=engine, kind=kind, function=function, work=work, operand_formats=formats))
        waits.append(tuple(sorted({max(0, row - 1), max(0, row - int(rng.integers(1, 8)))})) if row else ())
    names = [field for field in ("batch", "m", "k", "n", "elements", "operands", "rows", "bytes", "row_bytes", "ranks")]
    table = {name: np.array([getattr(row.work, name) for row in rows], np.float32) for name in names}
    table["reuse_bytes"] = np.where(np.arange(instructions) % 12 == 0, np.float32(2.0**25), np.float32(np.inf))
    table["hbm"] = np.array([row.engine == "dma" for row in rows], np.float32)
    table["trips"] = np.ones(instructions, np.float32)
    structure = Structure(
        engines=tuple(row.engine for row in rows),
        kinds=tuple(row.kind for row in rows),
        narrow=(False,) * instructions,
        waits=tuple(waits),
        loops=(),
        rows=tuple(Row(instruction=row, waits=w, label=row.kind, source="", scope="") for row, w in zip(rows, waits, strict=True)),
        functions=tuple(row.function for row in rows),
        operand_formats=tuple(row.operand_formats for row in rows),
    )
    return Program(structure=structure, table=table)


def median_seconds(function, *args, repeats: int) -> float:
    jax.block_until_ready(function(*args))
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(function(*args))
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def compile_s(instructions: int, chip: trn_jax.Chip) -> float:
    """Seconds to trace and compile `latency` of a program as a function of the chip."""
    program = transformer_like(instructions)
    start = time.perf_counter()
    jax.jit(lambda chip: latency(program, chip)).lower(chip).compile()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--chips", type=int, default=4096)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--smoothing", type=float, default=0.0)
    parser.add_argument("--instructions", type=int, default=INSTRUCTIONS)
    args = parser.parse_args()

    program, chip = transformer_like(args.instructions), trn_jax.load_chip("trainium2")
    compile_400_s = compile_s(COMPILED_INSTRUCTIONS, chip)  # first, before JAX has seen anything like it
    factors = np.random.default_rng(1).uniform(0.5, 2.0, (len(FREE), args.chips)).astype(np.float32)
    chips = chip.replace({path: jnp.asarray(get_leaf(chip, path) * f) for path, f in zip(FREE, factors, strict=True)})

    def seconds(chips, program=program):
        return latency(program, chips, smoothing=args.smoothing, dtype="float32")

    longer = partial(seconds, program=transformer_like(4 * args.instructions))
    value_s, longer_s, gradient_s = (
        median_seconds(jax.jit(function), chips, repeats=args.repeats)
        for function in (seconds, longer, jax.grad(lambda chips: seconds(chips).sum()))
    )
    plans = len({IN_TURN.get(mode, mode) for mode in mixture(None, has_collectives=False)} - {SERIAL})
    result = {
        "chips_per_s": args.chips / value_s,
        "gradients_per_s": args.chips / gradient_s,
        "instructions": args.instructions,
        "plans": plans,
        "updates_per_s": args.chips * args.instructions * plans / value_s,
        "gradient_updates_per_s": args.chips * args.instructions * plans / gradient_s,
        "linearity": longer_s / (4 * value_s),
        "compile_400_s": compile_400_s,
    }
    if args.json:
        print(json.dumps(result))
    else:
        print(
            f"A program of {result['instructions']} instructions is timed on {result['chips_per_s']:,.0f} chips per second "
            f"and differentiated on {result['gradients_per_s']:,.0f}: {result['updates_per_s'] / 1e6:,.0f} and "
            f"{result['gradient_updates_per_s'] / 1e6:,.0f} million instruction-updates per second. "
            f"Compiling {COMPILED_INSTRUCTIONS} instructions takes {result['compile_400_s']:.1f} s."
        )


if __name__ == "__main__":
    main()
