"""Accuracy of a small trained network on a Trainium2 with broken PEs and flipped bits.

    python experiments/e02_pe_faults/run.py [--smoke] [--out DIR]

Writes results.json: one row for every fault, variant, level and seed. See README.md.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import trn_jax
from trn_jax.faults import BitFlip, DeadColumn, Fault, RemappedColumns, StuckPE

CHIP = trn_jax.load_chip("trainium2")
ROWS, COLS = int(CHIP.tensor.rows), int(CHIP.tensor.cols)
BF16 = trn_jax.AutoCast("matmult", "bf16")
CLASSES, CLUSTERS, FEATURES, HIDDEN = 10, 4, 64, 256
MANTISSA, EXPONENT = tuple(range(23)), tuple(range(23, 31))


@dataclass(frozen=True)
class Plan:
    """How much is run."""

    seeds: int = 5
    fault_seeds: int = 4
    steps: int = 300
    retrain_steps: int = 60
    test_size: int = 2000
    dead: tuple[int, ...] = (0, 1, 2, 4, 8, 16, 32, 64)
    stuck: tuple[int, ...] = (0, 1, 2, 4, 8, 16, 32)
    rates: tuple[float, ...] = (0.0, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)


SMOKE = Plan(seeds=1, fault_seeds=2, steps=30, retrain_steps=5, test_size=200, dead=(0, 2), stuck=(2,), rates=(0.0, 1e-2))
STUCK_BITS = {"sign": 31, "top of exponent": 30, "bottom of exponent": 23, "top of mantissa": 22}
FLIPS = {
    "arguments in HBM": ("hbm", None),
    "results in SBUF": ("sbuf", None),
    "sums in PSUM": ("psum", None),
    "sums in PSUM, exponent": ("psum", EXPONENT),
    "sums in PSUM, mantissa": ("psum", MANTISSA),
}


@dataclass(frozen=True)
class Row:
    """One measurement."""

    fault: str
    variant: str
    level: float
    seed: int
    accuracy: float


def draw(centres: jax.Array, key: jax.Array, size: int) -> tuple[jax.Array, jax.Array]:
    """Points around one of several centres of each class, and their classes."""
    which, noise = jax.random.split(key)
    cluster = jax.random.randint(which, (size,), 0, CLASSES * CLUSTERS)
    return centres[cluster] + 2.0 * jax.random.normal(noise, (size, FEATURES)), cluster % CLASSES


def logits(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """A network with one hidden layer, twice as wide as the array."""
    return jax.nn.relu(x @ params["up"]) @ params["down"]


def loss(params: dict[str, jax.Array], x: jax.Array, y: jax.Array) -> jax.Array:
    """Cross entropy."""
    return optax.softmax_cross_entropy_with_integer_labels(logits(params, x), y).mean()


def train(
    params: dict[str, jax.Array], centres: jax.Array, key: jax.Array, steps: int, faults: Sequence[Fault] = ()
) -> dict[str, jax.Array]:
    """Adam, with forward and backward pass on a chip with these faults."""
    optimizer = optax.adam(3e-3)
    gradient = trn_jax.emulate(jax.grad(loss), CHIP, autocast=BF16, fidelity="fused", faults=faults)

    def step(state: Any, key: jax.Array) -> tuple[Any, None]:
        params, moments = state
        updates, moments = optimizer.update(gradient(params, *draw(centres, key, 128)), moments, params)
        return (optax.apply_updates(params, updates), moments), None

    run = jax.jit(lambda params, keys: jax.lax.scan(step, (params, optimizer.init(params)), keys)[0][0])
    return run(params, jax.random.split(key, steps))


def accuracies(plan: Plan, faults: Sequence[Fault]) -> Callable[..., np.ndarray]:
    """`(params, x, y) -> accuracy` for every fault seed; one where nothing is random."""
    count = plan.fault_seeds if any(fault.rate > 0 for fault in faults) else 1

    def accuracy(params: dict[str, jax.Array], x: jax.Array, y: jax.Array, seed: jax.Array) -> jax.Array:
        out = trn_jax.emulate(logits, CHIP, autocast=BF16, faults=faults, seed=seed)(params, x)
        return (out.argmax(1) == y).mean()

    batched = jax.jit(jax.vmap(accuracy, (None, None, None, 0)))
    return lambda params, x, y: np.asarray(batched(params, x, y, jnp.arange(count, dtype=jnp.uint32)))


def measure(plan: Plan) -> Iterator[Row]:
    """All rows, seed by seed: another data set, network and set of broken PEs each."""
    flips = {(name, rate): accuracies(plan, [BitFlip(memory, rate, bits)]) for name, (memory, bits) in FLIPS.items() for rate in plan.rates}
    for seed in range(plan.seeds):
        keys = jax.random.split(jax.random.key(seed), 5)
        centres = jax.random.normal(keys[0], (CLASSES * CLUSTERS, FEATURES))
        x, y = draw(centres, keys[1], plan.test_size)
        start = {
            "up": jax.random.normal(keys[2], (FEATURES, HIDDEN)) / FEATURES**0.5,
            "down": jax.random.normal(keys[3], (HIDDEN, CLASSES)) / HIDDEN**0.5,
        }
        params = train(start, centres, keys[4], plan.steps)
        rng = np.random.default_rng(seed)

        columns = rng.permutation(COLS)  # more dead columns include the fewer ones
        for count in plan.dead:
            cols = tuple(int(col) for col in columns[:count])
            dead = [DeadColumn(col) for col in cols]
            retrained = train(params, centres, jax.random.fold_in(keys[4], 1), plan.retrain_steps, dead)
            for variant, faults, weights in (
                ("as it is", dead, params),
                ("remapped", [*dead, RemappedColumns(cols)], params),
                ("retrained", dead, retrained),
            ):
                yield Row("dead columns", variant, count, seed, float(accuracies(plan, faults)(weights, x, y).mean()))

        places = rng.permutation(ROWS * COLS)
        for name, bit in STUCK_BITS.items():
            for count in plan.stuck:
                faults = [StuckPE(int(place) // COLS, int(place) % COLS, bit, 1) for place in places[:count]]
                yield Row("stuck PEs", name, count, seed, float(accuracies(plan, faults)(params, x, y).mean()))

        for (name, rate), accuracy in flips.items():
            yield Row("bit flips", name, rate, seed, float(accuracy(params, x, y).mean()))


def column_passes(plan: Plan) -> dict[int, float]:
    """Column tiles of both layers with n columns left out, relative to none: what remapping costs."""
    tiles = lambda cols: sum(-(-size // cols) for size in (HIDDEN, CLASSES))
    return {count: tiles(COLS - count) / tiles(COLS) for count in plan.dead}


def main() -> None:
    """Runs everything and writes results.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="a minute's worth, to see that it runs")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    arguments = parser.parse_args()
    plan = SMOKE if arguments.smoke else Plan()
    start = time.perf_counter()
    rows = list(measure(plan))
    arguments.out.mkdir(parents=True, exist_ok=True)
    result = {"plan": asdict(plan), "column_passes": column_passes(plan), "rows": [asdict(row) for row in rows]}
    (arguments.out / "results.json").write_text(json.dumps(result, indent=1) + "\n")
    print(f"{len(rows)} rows in {time.perf_counter() - start:.0f} s: {arguments.out / 'results.json'}")


if __name__ == "__main__":
    main()
