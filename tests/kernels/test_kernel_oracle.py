"""Random kernels against a simulation written column by column: who must wait for whom, and when everything ends."""

import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import trn_jax as trn
from trn_jax.engines import KINDS, Static
from trn_jax.engines.dma import copy_s

COLUMNS = 12
CHIP = trn.load_chip("trainium2")


def random_steps(seed, count):
    """(what, first column read, first column written, width, queue) of random instructions on one tile."""
    draw = random.Random(seed)
    steps = [("load", 0, 0, COLUMNS, "sync")]
    for _ in range(count):
        width = draw.randint(1, 4)
        start = lambda width=width: draw.randint(0, COLUMNS - width)
        steps.append(
            (draw.choice(["load", "vector", "scalar", "store"]), start(), start(), width, draw.choice(["sync", "sync:1", "scalar"]))
        )
    return [*steps, ("store", 0, 0, COLUMNS, "sync")]


def kernel_of(steps):
    @trn.kernel
    def random_kernel(nc, x):
        out = nc.ndarray((128, COLUMNS), buffer="hbm")
        board = nc.ndarray((128, COLUMNS), name="board")
        for what, read, write, width, queue in steps:
            source, target = slice(read, read + width), slice(write, write + width)
            if what == "load":
                nc.load(x[:, source], dst=board[:, target], queue=queue)
            elif what == "store":
                nc.store(out[:, target], board[:, source], queue=queue)
            elif what == "vector":
                nc.tensor_scalar(board[:, source], "multiply", 2.0, dst=board[:, target])
            else:
                nc.activation("copy", board[:, source], dst=board[:, target])
        return out

    return random_kernel


def lane_of(what, queue):
    return what if what in ("vector", "scalar") else f"dma {queue}"


def simulated_s(steps, instructions):
    """Ends of all instructions, tracked for every column by itself."""
    writer, readers = {}, {}
    ends, lane_ends, last_row, moving_s = [], {}, {}, 0.0
    for row, ((what, read, write, width, queue), instruction) in enumerate(zip(steps, instructions, strict=True)):
        lane = lane_of(what, queue)
        places = {"load": ("x", "board"), "store": ("board", "out")}.get(what, ("board", "board"))
        reads = [(places[0], read + i) for i in range(width)]
        writes = [(places[1], write + i) for i in range(width)]
        waits = {writer[column] for column in reads if column in writer}
        for column in writes:
            before = {*readers.get(column, ()), *([writer[column]] if column in writer else [])}
            waits |= {other for other in before if lane_of(steps[other][0], steps[other][4]) != lane}
        if lane == "dma scalar" and "scalar" in last_row:
            waits.add(last_row["scalar"])
        kind = KINDS[instruction.engine][instruction.kind]
        cost = kind.cost(instruction.work, CHIP, 0.0, Static(narrow=instruction.narrow))
        occupancy_s, gap_s = float(cost.occupancy_s), float(cost.latency_s) - float(cost.occupancy_s)
        begin_s = max(max((ends[wait] for wait in waits), default=0.0) + gap_s, lane_ends.get(lane, 0.0))
        ends.append(begin_s + occupancy_s)
        lane_ends[lane], last_row[lane] = ends[-1], row
        if instruction.engine == "dma":
            moving_s += float(copy_s(instruction.work.bytes, instruction.work.row_bytes, CHIP, 0.0))
        for column in reads:
            readers.setdefault(column, set()).add(row)
        for column in writes:
            writer[column] = row
            readers[column] = set()
    return max(*ends, moving_s)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 12))])
def test_a_random_kernel_ends_when_the_simulation_does(seed):
    steps = random_steps(seed, 30)
    program = trn.trace(kernel_of(steps), jax.ShapeDtypeStruct((128, COLUMNS), jnp.float32))
    np.testing.assert_allclose(float(trn.latency(program, CHIP)), simulated_s(steps, program.instructions), rtol=1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_a_random_kernel_computes_what_numpy_does_in_order(seed):
    steps = random_steps(seed, 30)
    x = np.random.default_rng(seed).normal(size=(128, COLUMNS)).astype(np.float32)
    places = {"x": x.copy(), "board": np.zeros_like(x), "out": np.zeros_like(x)}
    for what, read, write, width, _ in steps:
        source, target = {"load": ("x", "board"), "store": ("board", "out")}.get(what, ("board", "board"))
        value = places[source][:, read : read + width].copy()
        places[target][:, write : write + width] = 2 * value if what == "vector" else value
    np.testing.assert_array_equal(kernel_of(steps)(x), places["out"])
