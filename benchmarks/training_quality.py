"""Does a GPT learn as well on the emulated Trainium2 as in plain JAX? The preset small, bf16 auto-cast against fp32.

    python benchmarks/training_quality.py [--json] [--steps 200] [--fidelity fused|tiled]

Both runs start from the same weights, see the same batches and take turns step by step in one process; the reference is the same step
under plain `jax.jit`, fp32 throughout. A loss is the mean of the last 20 batches, in nats per byte. The yardstick of learning is the
bigram entropy of the text: what is left to guess about a byte when the byte before it is known.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

import jax
import jax.numpy as jnp
from tqdm import tqdm

from trn_jax.training.history import mean
from trn_jax.training.options import TrainOptions
from trn_jax.training.setup import set_up
from trn_jax.training.step import cast

SPAN = 20


def measure(steps: int, fidelity: Any) -> dict[str, Any]:
    """Trains both and returns the figures."""
    plain, emulated = (set_up(TrainOptions(precision=precision, fidelity=fidelity)) for precision in ("fp32", "bf16"))
    runs = {
        "fp32": [jax.jit(plain.pure_step, donate_argnums=0), plain.state],
        "bf16": [jax.jit(emulated.step, donate_argnums=0), emulated.state],
    }
    losses: dict[str, list[float]] = {name: [] for name in runs}
    for step in tqdm(range(steps), disable=None):
        batch = jnp.asarray(plain.batch(step))
        for name, run in runs.items():
            run[1], metrics = run[0](run[1], batch)
            losses[name].append(float(metrics["loss"]))
    entropy = plain.text.bigram_entropy()
    below = [count for count in range(SPAN, steps + 1) if mean(losses["bf16"][count - SPAN : count]) < entropy]
    last = {name: mean(values[-SPAN:]) for name, values in losses.items()}
    weights = cast(runs["bf16"][1].params, "float32")
    return {
        "preset": "small",
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(weights)),
        "learning_rate": plain.identity["optimizer"]["learning_rate"],
        "tokens_per_step": plain.batch_size * plain.model.max_tokens,
        "fidelity": fidelity,
        "steps": steps,
        "text_bytes": plain.text.size_bytes,
        "loss_fp32": last["fp32"],
        "loss_bf16": last["bf16"],
        "relative_difference": abs(last["bf16"] - last["fp32"]) / last["fp32"],
        "last_batch_relative_difference": abs(losses["bf16"][-1] - losses["fp32"][-1]) / losses["fp32"][-1],
        "bigram_entropy": entropy,
        "steps_to_below_bigram_entropy": below[0] if below else None,
    }


def main() -> None:
    """Prints the finding."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the figures as one JSON object")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--fidelity", choices=("fused", "tiled"), default="fused")
    arguments = parser.parse_args()
    figures = measure(arguments.steps, arguments.fidelity)
    first = figures["steps_to_below_bigram_entropy"]
    sentence = (
        f"After {figures['steps']} steps the loss is {figures['loss_bf16']:.4f} with bf16 auto-cast on the emulated Trainium2 and "
        f"{figures['loss_fp32']:.4f} in plain fp32 JAX, {100 * figures['relative_difference']:.2f} % apart; it fell below the bigram "
        f"entropy of the text ({figures['bigram_entropy']:.4f}) {'at no step' if first is None else f'at step {first}'}."
    )
    print(sentence, file=sys.stderr if arguments.json else sys.stdout)
    if arguments.json:
        print(json.dumps(figures))


if __name__ == "__main__":
    main()
