"""A training run from flags to picture: steps, record, checkpoints, validation, sample, predicted step time."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from tqdm import tqdm

from trn_jax.errors import TrainingError
from trn_jax.training.batches import validation_batches
from trn_jax.training.checkpoint import Checkpoints
from trn_jax.training.history import History, mean
from trn_jax.training.options import TrainOptions
from trn_jax.training.predict import predict_step
from trn_jax.training.sample import sample
from trn_jax.training.setup import Setup, set_up
from trn_jax.training.step import TrainState

_VALIDATION_BATCHES = 8
_SMOOTHED_STEPS = 20
Say = Callable[[str], None]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TrainResult:
    """What a run ends with. Losses are in nats per byte.

    Attributes:
        loss_first: Loss of the first batch, before any update.
        loss_last: Loss of the last batch.
        loss_mean: Mean loss of the last 20 batches.
        validation_loss: Mean loss on the validation text after the last step.
        bigram_entropy: Entropy of a byte of the text given the one before it.
        steps: Steps reached.
        tokens_per_s: Speed of the steps of this run on this computer, compilation left out; 0 if it did none.
        compile_s: Time to trace and compile the step.
        parameters: Number of weights.
        predicted_step_s: Time of one step on the chip, as today's compiled graphs run: one instruction after the other.
        predicted_step_overlapped_s: The same with all engines working side by side.
        bottleneck: What the chip spends most of the step on.
        sample: The text written at the end.
        out: Directory of the run.
        plot: The loss curve; None if none was drawn.
    """

    loss_first: float
    loss_last: float
    loss_mean: float
    validation_loss: float
    bigram_entropy: float
    steps: int
    tokens_per_s: float
    compile_s: float
    parameters: int
    predicted_step_s: float
    predicted_step_overlapped_s: float
    bottleneck: str
    sample: str
    out: str
    plot: str | None


def train(options: TrainOptions, *, say: Say = print, progress: bool | None = None) -> TrainResult:
    """Runs a training from start, or from its latest checkpoint, to the end.

    Args:
        options: What to train.
        say: Receives the lines meant for a person.
        progress: Show a progress bar on stderr; None shows it on a terminal only.

    Returns:
        The figures of the run, also written to `result.json` in its directory.

    Raises:
        TrainingError: The run cannot start or go on; the message says why and what to do.
        ChipError, FormatError: The chip cannot be loaded or cannot compute as asked.
    """
    # A run is the same whatever the surroundings set: a resumed one may have others.
    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        try:
            return _train(options, say, progress)
        except OSError as error:
            raise TrainingError(
                f"The run stopped because the system refused a file: {error}. What its directory holds up to the last checkpoint is "
                "complete: make room or mend the directory, and go on with the same flags, --out and --resume."
            ) from error


def _train(options: TrainOptions, say: Say, progress: bool | None) -> TrainResult:
    setup = set_up(options)
    out = _directory(options)
    checkpoints = Checkpoints(out / "checkpoints", setup.identity)
    state = _first_state(setup, checkpoints, say)
    start = int(state.step)
    bigram_entropy = setup.text.bigram_entropy()
    parameters = setup.model.parameter_count()
    say(f"text       {setup.text.name}, {setup.text.size_bytes:,} bytes, bigram entropy {bigram_entropy:.4f} nats per byte")
    say(f"model      {options.preset}: {parameters:,} weights, {setup.batch_size} x {setup.model.max_tokens} tokens per step")
    say(f"precision  {options.precision}: {setup.recipe.summary}, on an emulated {setup.chip.name} ({options.fidelity})")

    validate = _validator(setup)
    with History(out / "history.jsonl", steps=start) as history:
        try:
            state, compile_s, tokens_per_s = _steps(setup, state, history, checkpoints, validate, say, progress)
        except KeyboardInterrupt:
            say(f"Interrupted at step {len(history.records)}. To go on from the last checkpoint: the same flags, --out {out} --resume.")
            raise
        records = list(history.records)
    validation_loss = validate(state)
    losses = [record["loss"] for record in records]
    speed = f" ({tokens_per_s:,.0f} tokens/s)" if tokens_per_s else ""
    say(
        f"loss       {losses[0]:.4f} at the start, {mean(losses[-_SMOOTHED_STEPS:]):.4f} now (mean of {min(len(losses), _SMOOTHED_STEPS)} "
        f"batches), {validation_loss:.4f} on validation text{speed}"
    )
    if setup.recipe.loss_scaling is not None:
        skipped = sum(record["gradient_norm"] is None for record in records)
        say(f"loss scale {records[-1]['loss_scale']:,.0f} in the last step; {skipped} of {len(records)} steps were left out to lower it")
    plot = _plot(setup, records, out, bigram_entropy) if options.plot else None
    written = _sample(setup, state) if options.sample_bytes else ""
    if written:
        say("sample\n" + "\n".join(f"  | {line}" for line in written.splitlines()))
    prediction = predict_step(setup)
    say(prediction.text)
    result = TrainResult(
        loss_first=losses[0],
        loss_last=losses[-1],
        loss_mean=mean(losses[-_SMOOTHED_STEPS:]),
        validation_loss=validation_loss,
        bigram_entropy=bigram_entropy,
        steps=int(state.step),
        tokens_per_s=tokens_per_s,
        compile_s=compile_s,
        parameters=parameters,
        predicted_step_s=prediction.serial_s,
        predicted_step_overlapped_s=prediction.overlapped_s,
        bottleneck=prediction.bottleneck,
        sample=written,
        out=str(out),
        plot=None if plot is None else str(plot),
    )
    (out / "result.json").write_text(json.dumps(dataclasses.asdict(result), indent=1) + "\n")
    say(f"written    {out} (result.json, history.jsonl{'' if plot is None else ', ' + plot.name}, checkpoints)")
    return result


def _directory(options: TrainOptions) -> Path:
    """The run's directory, made if need be."""
    if options.out is not None:
        out = options.out
    else:
        number = 1
        while (out := Path("runs") / f"{options.preset}-{options.precision}-{number:03d}").exists():
            number += 1
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TrainingError(f"Cannot make the directory {out}: {error.strerror or error}. Choose another --out.") from None
    return out


def _first_state(setup: Setup, checkpoints: Checkpoints, say: Say) -> TrainState:
    """The state to start from: new, or the latest checkpoint's."""
    if not setup.options.resume:
        if steps := checkpoints.steps():
            raise TrainingError(
                f"{checkpoints.directory.parent} already holds a run at step {steps[-1]}. Go on with --resume, or choose another --out."
            )
        return setup.state
    state = checkpoints.restore_latest(setup.state, warn=say)
    if state is None:
        say("There is no complete checkpoint yet: starting from step 0.")
        return setup.state
    if int(state.step) > setup.steps:
        raise TrainingError(f"The run is at step {int(state.step)} already, beyond --steps {setup.steps}. Ask for more steps.")
    say(f"Going on from step {int(state.step)}.")
    return state


def _steps(
    setup: Setup,
    state: TrainState,
    history: History,
    checkpoints: Checkpoints,
    validate: Callable[[TrainState], float],
    say: Say,
    progress: bool | None,
) -> tuple[TrainState, float, float]:
    """Runs the steps that are left; returns the state, the compile time in seconds and the tokens per second."""
    start, options = int(state.step), setup.options
    if start == setup.steps:
        return state, 0.0, 0.0
    began = time.perf_counter()
    compiled = jax.jit(setup.step, donate_argnums=0).lower(state, jnp.asarray(setup.batch(start))).compile()
    compile_s = time.perf_counter() - began
    say(f"compiled   in {compile_s:.1f} s")
    busy_s, tokens_per_step = 0.0, setup.batch_size * setup.model.max_tokens
    bar = tqdm(total=setup.steps, initial=start, unit="step", disable=None if progress is None else not progress, dynamic_ncols=True)
    with bar:
        for step in range(start, setup.steps):
            began = time.perf_counter()
            state, metrics = compiled(state, jnp.asarray(setup.batch(step)))
            record: dict[str, Any] = {"step": step, **{name: float(value) for name, value in metrics.items()}}
            busy_s += time.perf_counter() - began
            _require_finite(record, setup)
            done = step + 1
            if done % options.validate_every == 0:
                record["validation_loss"] = validate(state)
                recent = [*(earlier["loss"] for earlier in history.records[1 - _SMOOTHED_STEPS :]), record["loss"]]
                line = f"step {done:<6d} loss {mean(recent):.4f}, validation {record['validation_loss']:.4f}"
                say(line) if bar.disable else bar.write(line, file=sys.stderr)
            history.append(record)
            if done % options.checkpoint_every == 0 or done == setup.steps:
                history.sync()
                checkpoints.save(state)
            bar.set_postfix_str(f"loss {record['loss']:.3f}, {tokens_per_step * (done - start) / busy_s:,.0f} tokens/s", refresh=False)
            bar.update()
    return state, compile_s, tokens_per_step * (setup.steps - start) / busy_s


def _require_finite(record: dict[str, Any], setup: Setup) -> None:
    """Raises unless the step went well, or was left out because its loss scale was too large."""
    scaling = setup.recipe.loss_scaling
    too_large = scaling is not None and record["loss_scale"] > scaling.minimum
    if too_large and math.isfinite(record["loss"]) and not math.isfinite(record["gradient_norm"]):
        record["gradient_norm"] = None  # JSON has no infinity
        return
    for name in ("loss", "gradient_norm"):
        if not math.isfinite(record[name]):
            raise TrainingError(
                f"At step {record['step']} the {name.replace('_', ' ')} is {record[name]}: the run has diverged. Try a lower "
                f"--learning-rate or another --precision than {setup.options.precision}."
            )


def _validator(setup: Setup) -> Callable[[TrainState], float]:
    """Mean validation loss of a state, on the chip."""
    batches = validation_batches(setup.text, count=_VALIDATION_BATCHES, batch_size=setup.batch_size, max_tokens=setup.model.max_tokens)
    loss = setup.on_chip(setup.loss)
    return lambda state: mean([float(loss(state.params, jnp.asarray(batch), state.step)) for batch in batches])


def _sample(setup: Setup, state: TrainState) -> str:
    """Text of the trained model."""
    options, logits = setup.options, setup.on_chip(setup.apply)
    written = sample(
        lambda tokens, seed: logits(state.params, tokens, seed),
        max_tokens=setup.model.max_tokens,
        count=options.sample_bytes,
        temperature=options.temperature,
        top_k=options.top_k,
        seed=options.seed,
    )
    text = written.decode(errors="replace")
    return "".join(letter if letter.isprintable() or letter in "\n\t" else "\N{REPLACEMENT CHARACTER}" for letter in text)


def _plot(setup: Setup, records: list[dict[str, Any]], out: Path, bigram_entropy: float) -> Path:
    from trn_jax.training.plot import plot_losses

    title = f"{setup.options.preset}, {setup.options.precision}, emulated {setup.chip.name}"
    return plot_losses(records, out / "loss.png", bigram_entropy=bigram_entropy, title=title)
