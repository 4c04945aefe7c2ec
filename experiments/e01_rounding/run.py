"""What stochastic rounding buys: one weight that is lowered a thousand times, and a small GPT under every precision recipe.

    python experiments/e01_rounding/run.py [--smoke] [--out DIR]

Writes results.json and table.md, and copies the table into README.md unless --out says otherwise.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from tqdm import tqdm

import trn_jax
from trn_jax.models import GPT, GPTConfig, split_model
from trn_jax.training.batches import training_batch, validation_batches
from trn_jax.training.recipes import get_recipe
from trn_jax.training.step import batch_loss, cast, emulation_options, initial_state, make_step
from trn_jax.training.text import Text, load_text

HERE = Path(__file__).parent
BEGIN, END = "<!-- made by run.py -->", "<!-- end -->"
CHIP = trn_jax.load_chip("trainium2")
MODEL = GPTConfig(vocab_size=256, d_model=32, n_layers=2, n_heads=2, max_tokens=32)
BATCH_SIZE, VALIDATION_BATCHES, WARMUP_STEPS, WINDOW = 16, 8, 10, 20
UPDATE = 1e-3  # a quarter of the distance from 1 to the next bf16 below
# Name: recipe, and whether the seed of stochastic rounding is the step (else it is the same at every step).
VARIANTS = {
    "fp32": ("fp32", True),
    "bf16": ("bf16", True),
    "bf16-master": ("bf16-master", True),
    "bf16-sr": ("bf16-sr", True),
    "bf16-sr, one seed": ("bf16-sr", False),
    "bf16-rne": ("bf16-rne", True),
    "fp16": ("fp16", True),
    "fp8": ("fp8", True),
}


@dataclass(frozen=True)
class Plan:
    """How much is run."""

    seeds: int = 5
    steps: int = 500
    learning_rates: tuple[float, ...] = (1e-2, 1e-3, 1e-4)
    weights: int = 4000
    updates: int = 1000


SMOKE = Plan(seeds=2, steps=WINDOW, learning_rates=(1e-2, 1e-4), weights=200, updates=400)


@dataclass(frozen=True)
class Walk:
    """Where weights of 1 are after all updates.

    Attributes:
        variant: How they are written.
        mean, deviation: Of the weights at the end.
        never_moved: Share of them that are still exactly 1.
        moved_first: Share that the first update moved.
    """

    variant: str
    mean: float
    deviation: float
    never_moved: float
    moved_first: float


@dataclass(frozen=True)
class Row:
    """One trained GPT.

    Attributes:
        variant: Key of `VARIANTS`.
        learning_rate: Peak.
        seed: Of weights, data and rounding.
        validation_loss: Of the last weights, in fp32 arithmetic, so that only the training differs; nats per byte.
        changed: Share of the weights that one of the last 20 steps changed, on average.
        losses: Mean training loss of every 20 steps.
    """

    variant: str
    learning_rate: float
    seed: int
    validation_loss: float
    changed: float
    losses: list[float]


def walks(plan: Plan) -> Iterator[Walk]:
    """Weights of 1, lowered by 0.001 again and again."""
    for variant, dtype, rounding, fresh in (
        ("fp32", "float32", "nearest", True),
        ("bf16-rne", "bfloat16", "nearest", True),
        ("bf16-sr", "bfloat16", "stochastic", True),
        ("bf16-sr, one seed", "bfloat16", "stochastic", False),
    ):

        def lower(w: jax.Array, i: jax.Array, rounding: Any = rounding, fresh: bool = fresh) -> tuple[jax.Array, None]:
            seed = i if fresh else jnp.zeros_like(i)
            return trn_jax.emulate(lambda w: w - jnp.asarray(UPDATE, w.dtype), CHIP, rounding=rounding, seed=seed)(w), None

        run = jax.jit(lambda w, steps, lower=lower: jax.lax.scan(lower, w, steps)[0])
        start, steps = jnp.ones(plan.weights, dtype), jnp.arange(plan.updates, dtype=jnp.uint32)
        first, last = (np.asarray(run(start, steps[:count]), np.float64) for count in (1, plan.updates))
        figures = (last.mean(), last.std(), (last == 1).mean(), (first != 1).mean())
        yield Walk(variant, *map(float, figures))


def trainings(variant: str, plan: Plan, text: Text) -> Iterator[Row]:
    """A GPT for every learning rate and seed, all in one compiled program."""
    name, fresh = VARIANTS[variant]
    recipe = get_recipe(name)
    options = emulation_options(recipe, "fused")
    apply, _ = split_model(GPT(MODEL.replace(compute_dtype=recipe.compute_dtype)))
    apply_fp32, _ = split_model(GPT(MODEL))
    params = [split_model(GPT(MODEL, seed=seed))[1] for seed in range(plan.seeds)]
    batch = partial(training_batch, text, batch_size=BATCH_SIZE, max_tokens=MODEL.max_tokens)
    batches = [np.stack([batch(seed=seed, step=step) for step in range(plan.steps)]) for seed in range(plan.seeds)]
    validation = jnp.stack(validation_batches(text, count=VALIDATION_BATCHES, batch_size=BATCH_SIZE, max_tokens=MODEL.max_tokens))

    def train(lane: Any) -> Any:
        learning_rate, seed, params, batches = lane
        decay = optax.warmup_cosine_decay_schedule(0.0, 1.0, WARMUP_STEPS, plan.steps, end_value=0.1)
        optimizer = optax.chain(
            optax.clip_by_global_norm(1.0), optax.adamw(lambda count: learning_rate * decay(count), b2=0.99, weight_decay=0.0)
        )
        step = make_step(apply, optimizer, recipe)

        def advance(state: Any, each: Any) -> Any:
            index, batch = each
            # Another stream for every seed; within one, another one at every step or always the same.
            rounding_seed = seed * jnp.uint32(plan.steps) + (index if fresh else jnp.uint32(0))
            after, metrics = trn_jax.emulate(step, CHIP, seed=rounding_seed, **options)(state, batch)
            pairs = zip(jax.tree.leaves(after.params), jax.tree.leaves(state.params), strict=True)
            changed = sum(jnp.sum(new != old) for new, old in pairs) / MODEL.parameter_count()
            return after, (metrics["loss"], changed)

        steps = jnp.arange(plan.steps, dtype=jnp.uint32)
        state, (losses, changed) = jax.lax.scan(advance, initial_state(params, optimizer, recipe), (steps, batches))
        loss = jnp.mean(jax.lax.map(lambda batch: batch_loss(apply_fp32, cast(state.params, "float32"), batch), validation))
        return loss, changed[-WINDOW:].mean(), losses.reshape(-1, WINDOW).mean(1)

    run = jax.jit(train)
    for learning_rate in plan.learning_rates:
        for seed in range(plan.seeds):
            lane = (jnp.float32(learning_rate), jnp.uint32(seed), params[seed], jnp.asarray(batches[seed]))
            loss, changed, losses = run(lane)
            yield Row(variant, learning_rate, seed, float(loss), float(changed), [float(x) for x in losses])


def grid(result: dict[str, Any], cell: Callable[[list[dict[str, Any]]], str]) -> list[str]:
    """Lines of a table, recipes down and learning rates across; `cell` makes an entry of the rows of all seeds."""
    rates, rows = result["plan"]["learning_rates"], result["rows"]
    lines = ["| recipe | " + " | ".join(f"peak rate {rate:g}" for rate in rates) + " |", "|---" * (len(rates) + 1) + "|"]
    for variant in VARIANTS:
        here = [[row for row in rows if (row["variant"], row["learning_rate"]) == (variant, rate)] for rate in rates]
        lines.append(f"| {variant} | " + " | ".join(map(cell, here)) + " |")
    return lines


def table(result: dict[str, Any]) -> str:
    """Both results for README.md, and where and when they were made."""
    plan = result["plan"]
    exact = {(row["learning_rate"], row["seed"]): row["validation_loss"] for row in result["rows"] if row["variant"] == "fp32"}

    def spread(values: list[float], form: str) -> str:
        return f"{np.mean(values):{form}} ({min(values):{form}} to {max(values):{form}})"

    lines = [
        f"{result['machine']}, {result['date']}, {result['seconds'] / 60:.0f} minutes. Text: {result['text']}.",
        "",
        f"A weight of 1, lowered by 0.001, {plan['updates']} times; {plan['weights']} such weights:",
        "",
        "| written as | mean at the end | deviation | never moved | moved by the first update |",
        "|---|---|---|---|---|",
    ]
    for walk in result["walks"]:
        shares = f"{walk['never_moved']:.1%} | {walk['moved_first']:.1%}"
        lines.append(f"| {walk['variant']} | {walk['mean']:.4f} | {walk['deviation']:.4f} | {shares} |")
    lines += ["", f"Validation loss of the GPT in nats per byte, mean (lowest to highest) of {plan['seeds']} seeds:", ""]
    lines += grid(result, lambda rows: spread([row["validation_loss"] for row in rows], ".3f"))
    lines += ["", "Loss beyond that of fp32 with the same seed, in thousandths of a nat:", ""]
    lines += grid(
        result, lambda rows: spread([1e3 * (row["validation_loss"] - exact[row["learning_rate"], row["seed"]]) for row in rows], "+.1f")
    )
    lines += ["", f"Share of the weights that one of the last {WINDOW} steps changed, mean of all seeds:", ""]
    lines += grid(result, lambda rows: f"{np.mean([row['changed'] for row in rows]):.1%}")
    return "\n".join(lines) + "\n"


def machine() -> str:
    """Processor, cores and versions."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        cpu = next((line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")), cpu)
    return f"{cpu}, {os.cpu_count()} cores, Python {platform.python_version()}, jax {jax.__version__}"


def main() -> None:
    """Runs everything and writes results.json and the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="a minute or two, to see that it runs")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    arguments = parser.parse_args()
    plan = SMOKE if arguments.smoke else Plan()
    start, text = time.perf_counter(), load_text(None, MODEL.max_tokens)
    walked = [asdict(walk) for walk in walks(plan)]
    bar = tqdm(total=len(VARIANTS) * len(plan.learning_rates) * plan.seeds, unit="training")
    rows = []
    for variant in VARIANTS:
        for row in trainings(variant, plan, text):
            rows.append(asdict(row))
            bar.set_postfix_str(variant)
            bar.update()
    result = {
        "machine": machine(),
        "date": datetime.date.today().isoformat(),
        "seconds": round(time.perf_counter() - start),
        "text": text.name,
        "bigram_entropy": text.bigram_entropy(),
        "plan": asdict(plan),
        "walks": walked,
        "rows": rows,
    }
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "results.json").write_text(json.dumps(result, indent=1) + "\n")
    (arguments.out / "table.md").write_text(table(result))
    if arguments.out == HERE / "results":
        before, _, rest = (HERE / "README.md").read_text().partition(BEGIN)
        (HERE / "README.md").write_text(f"{before}{BEGIN}\n{table(result)}{END}{rest.partition(END)[2]}")
    print(f"{len(rows)} trainings in {result['seconds']} s: {arguments.out / 'results.json'}")


if __name__ == "__main__":
    main()
