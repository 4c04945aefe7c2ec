"""A run killed with SIGKILL again and again ends with the losses of a run that was left alone."""

import json
import random
import signal
import subprocess
import sys
import time

import pytest

from trn_jax.training.history import read_history

STEPS = 400
FLAGS = ["--preset", "tiny", "--steps", str(STEPS), "--checkpoint-every", "4", "--validate-every", "1000", "--no-plot", "--json"]


def start(out, *more):
    command = [sys.executable, "-m", "trn_jax", "train", *FLAGS, "--sample-bytes", "16", "--out", str(out), *more]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def steps_done(out):
    return len(read_history(out / "history.jsonl"))


@pytest.mark.slow
def test_killed_at_any_moment_a_run_resumes_to_the_same_losses_bit_for_bit(tmp_path):
    precision = "bf16-sr"  # the recipe with most to keep: its roundings depend on the step
    whole = start(tmp_path / "whole", "--precision", precision)
    whole_out, whole_err = whole.communicate()
    assert whole.returncode == 0, whole_err

    clock, killed = random.Random(0), 0
    out = tmp_path / "killed"
    for attempt in range(8):
        process = start(out, "--precision", precision, "--resume")
        # The first two kills fall anywhere in the start; the others while steps and checkpoints are being written.
        before, patience = steps_done(out), time.monotonic() + 120
        while attempt >= 2 and process.poll() is None and steps_done(out) in (before, 0) and time.monotonic() < patience:
            time.sleep(0.01)
        time.sleep(clock.uniform(0.0, 3.0 if attempt < 2 else 0.4))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        killed += process.returncode == -signal.SIGKILL
    assert killed >= 5
    assert 0 < steps_done(out)

    last = start(out, "--precision", precision, "--resume")
    last_out, last_err = last.communicate()
    assert last.returncode == 0, last_err
    assert read_history(out / "history.jsonl") == read_history(tmp_path / "whole" / "history.jsonl")
    one, two = (json.loads(text.splitlines()[-1]) for text in (whole_out, last_out))
    for name in ("loss_first", "loss_last", "loss_mean", "validation_loss", "sample", "steps"):
        assert one[name] == two[name], name
