"""What emulation costs: one GPT training step on the emulated Trainium2 against the same step in plain jitted fp32 JAX.

    python benchmarks/emulation_overhead.py [--json] [--repeats N]

The step: d_model 256, 4 layers, 4 heads, 256 tokens, batch 8, vocabulary 256, AdamW, fp32 weights; forward, backward and
update all emulated. Every figure is a median of ratios measured in turn in one process, so a noisy machine moves all of them alike.
Before timing, the emulated gradient is compared with an eager reference that rounds the operands of every product itself.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np
import optax

import trn_jax
from trn_jax.models import GPT, GPTConfig, cross_entropy, split_model

CONFIG = GPTConfig(vocab_size=256, d_model=256, n_layers=4, n_heads=4, max_tokens=256)
BATCH, TOKENS = 8, 256


def build(dtype: str = "float32") -> tuple[Callable[..., Any], tuple[Any, ...], Callable[..., Any]]:
    """The plain training step, its arguments, and the loss; fp32 weights, read and computed with in `dtype`."""
    apply, params = split_model(GPT(CONFIG.replace(compute_dtype=dtype)))
    optimizer = optax.adamw(3e-4)

    def loss(params: Any, batch: Any) -> Any:
        read = jax.tree.map(lambda weight: weight.astype(dtype), params)
        return cross_entropy(apply(read, batch[:, :-1]), batch[:, 1:])

    def step(params: Any, moments: Any, batch: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(params, batch)
        updates, moments = optimizer.update(gradients, moments, params)
        return optax.apply_updates(params, updates), moments, value

    batch = jax.random.randint(jax.random.key(0), (BATCH, TOKENS + 1), 0, 256)
    return step, (params, optimizer.init(params), batch), loss


def variants(step: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
    """The steps that are timed; stochastic ones take a traced seed, as a training loop gives it."""
    chip = trn_jax.load_chip("trainium2")
    matmult, everything = trn_jax.AutoCast("matmult", "bf16"), trn_jax.AutoCast("all", "bf16")
    fp8 = trn_jax.AutoCast("matmult", "fp8_e4m3", scaling="tensor", backward="fp8_e5m2")

    def stochastic(seed: Any, *args: Any) -> Any:
        options = {"autocast": everything, "rounding": "stochastic", "writes": "instruction", "fidelity": "tiled"}
        return trn_jax.emulate(step, chip, seed=seed, **options)(*args)

    return {
        "plain": step,
        "fused": trn_jax.emulate(step, chip, autocast=matmult, fidelity="fused"),
        "tiled": trn_jax.emulate(step, chip, autocast=matmult, fidelity="tiled"),
        "tiled_sr": stochastic,
        "fp8": trn_jax.emulate(build("bfloat16")[0], chip, autocast=fp8, fidelity="fused"),
    }


def compile_and_time(fn: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Callable[[], None], float]:
    """A call that waits for its result, and the seconds that tracing and compiling took."""
    start = time.perf_counter()
    compiled = jax.jit(fn).lower(*args).compile()
    seconds = time.perf_counter() - start
    return lambda: jax.block_until_ready(compiled(*args)), seconds


def time_in_turn(runs: dict[str, Callable[[], None]], repeats: int) -> dict[str, list[float]]:
    """Seconds of every call, one after the other in each of `repeats` rounds after one that warms up."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for round_number in range(repeats + 1):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            if round_number:
                times[name].append(time.perf_counter() - start)
    return times


def reference_gradient(loss: Callable[..., Any], params: Any, batch: Any) -> Any:
    """The gradient with every dot_general's operands rounded to bf16, evaluated one primitive at a time."""
    closed, shape = jax.make_jaxpr(jax.grad(loss), return_shape=True)(params, batch)

    def interpret(jaxpr: Any, consts: Any, args: Any) -> list[Any]:
        values = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *args], strict=True))
        read = lambda atom: atom.val if isinstance(atom, jax.extend.core.Literal) else values[atom]
        for eqn in jaxpr.eqns:
            operands = [read(atom) for atom in eqn.invars]
            if eqn.primitive.name == "dot_general":
                operands = [x.astype(jnp.bfloat16).astype(jnp.float32) for x in operands]
            if eqn.primitive.name in ("jit", "custom_jvp_call"):
                inner = eqn.params.get("jaxpr") or eqn.params["call_jaxpr"]
                outputs = interpret(inner.jaxpr, inner.consts, operands)
            else:
                outputs = eqn.primitive.bind(*operands, **eqn.primitive.get_bind_params(eqn.params))
            values.update(zip(eqn.outvars, outputs if isinstance(outputs, list) else [outputs], strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    return jax.tree.unflatten(jax.tree.structure(shape), interpret(closed.jaxpr, closed.consts, jax.tree.leaves((params, batch))))


def distance(a: Any, b: Any) -> float:
    """Largest relative distance in norm over the leaves."""
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return max(float(jnp.linalg.norm(x - y) / jnp.linalg.norm(y)) for x, y in pairs)


def measure(repeats: int) -> dict[str, float]:
    """All ratios."""
    step, args, loss = build()
    matmult = trn_jax.AutoCast("matmult", "bf16")
    gradient = trn_jax.emulate(jax.grad(loss), trn_jax.load_chip("trainium2"), autocast=matmult, fidelity="fused")
    params, _, batch = args
    reference = reference_gradient(loss, params, batch[:1])
    error, plain_error = distance(gradient(params, batch[:1]), reference), distance(jax.grad(loss)(params, batch[:1]), reference)
    if not error < plain_error / 1000:
        raise SystemExit(f"operands are not really rounded: {error:.2e} from the reference, plain JAX {plain_error:.2e}")

    runs, compile_s = {}, {}
    for name, fn in variants(step).items():
        operands = (jnp.uint32(1), *args) if name == "tiled_sr" else args
        runs[name], compile_s[name] = compile_and_time(fn, operands)
    times = time_in_turn(runs, repeats)
    ratio = lambda name: statistics.median(t / p for t, p in zip(times[name], times["plain"], strict=True))
    return {
        "fused_ratio": ratio("fused"),
        "tiled_ratio": ratio("tiled"),
        "tiled_sr_ratio": ratio("tiled_sr"),
        "fp8_ratio": ratio("fp8"),
        "compile_ratio": max(compile_s["fused"], compile_s["tiled"]) / compile_s["plain"],
        "compile_sr_ratio": compile_s["tiled_sr"] / compile_s["plain"],
        "plain_step_s": statistics.median(times["plain"]),
        "gradient_error": error,
        "plain_gradient_error": plain_error,
        "repeats": repeats,
    }


def main() -> None:
    """Prints the ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--repeats", type=int, default=9, help="timed rounds after one warm-up")
    arguments = parser.parse_args()
    result = measure(arguments.repeats)
    if arguments.json:
        print(json.dumps({key: float(np.round(value, 6)) for key, value in result.items()}))
        return
    print(
        f"Emulated on Trainium2, the step takes {result['fused_ratio']:.2f} times plain JAX fused, {result['tiled_ratio']:.2f} tiled, "
        f"{result['tiled_sr_ratio']:.2f} tiled with everything in stochastically rounded bf16, {result['fp8_ratio']:.2f} with scaled fp8 "
        f"products and bf16 everywhere else; compiling takes "
        f"{result['compile_ratio']:.2f} times. Plain step: {result['plain_step_s']:.2f} s."
    )


if __name__ == "__main__":
    main()
