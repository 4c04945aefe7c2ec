"""The schedule against its definition in plain Python, its bounds, its loops and its overlap."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hand_programs import MIB, all_reduce, costs, dma, gpsimd, matmul, program, scalar, slow_schedule, unrolled, vector

from trn_jax import ProgramError, latency, load_chip
from trn_jax.timing.overlap import mixture, overlap_levels
from trn_jax.timing.plan import main_plan
from trn_jax.timing.schedule import schedule

CHIP = load_chip("trainium2")
MANY = CHIP.replace({"tensor.clock_hz": jnp.linspace(1e9, 2e9, 64)})
LAYER = [
    (dma(MIB), ()),
    (dma(2 * MIB), ()),
    (matmul(512, 512, 512), (0, 1)),
    (vector(512 * 512, "tensor_copy", 1, "evacuate"), (2,)),
    (scalar(512 * 512), (3,)),
    (vector(512 * 512, "tensor_reduce", 1), (4,)),
    (gpsimd(512 * 64), ()),
    (vector(512 * 512), (0, 2, 4, 5, 6)),
    (matmul(512, 512, 1024, "fp32"), (7, 1)),
    (dma(MIB), (8,)),
]


def test_concurrent_ends_are_those_of_the_definition():
    hand = program(LAYER)
    expected = slow_schedule(hand, costs(hand, CHIP))
    result = schedule(hand, CHIP, overlap=1.0)
    np.testing.assert_allclose(result.end_s, expected, rtol=1e-6)
    np.testing.assert_allclose(result.total_s, max(expected), rtol=1e-6)


def test_without_overlap_rows_follow_one_another():
    result = schedule(program(LAYER), CHIP, overlap=0.0)
    np.testing.assert_allclose(result.end_s, np.cumsum(result.latency_s), rtol=1e-5)
    np.testing.assert_allclose(result.total_s, result.serial_s, rtol=1e-6)


@pytest.mark.parametrize("overlap", [None, 0.3, 1.0, "compiled"])
def test_total_lies_between_every_engines_busy_time_and_the_serial_sum(overlap):
    result = schedule(program(LAYER), CHIP, overlap=overlap)
    assert max(float(busy) for busy in result.busy_s.values()) <= result.total_s * (1 + 1e-6)
    assert result.total_s <= result.serial_s * (1 + 1e-6)
    assert set(result.busy_s) == {"tensor", "vector", "scalar", "gpsimd", "dma"}


@pytest.mark.parametrize("overlap", [0.0, 0.5, 1.0])
def test_rows_of_one_engine_never_overlap_and_the_last_one_ends_the_program(overlap):
    result = schedule(program(LAYER), CHIP, overlap=overlap)
    start_s, end_s = np.asarray(result.start_s), np.asarray(result.end_s)
    for engine in result.busy_s:
        rows = [row for row, (record, _) in enumerate(LAYER) if record.engine == engine]
        assert all(start_s[b] >= end_s[a] * (1 - 1e-6) for a, b in zip(rows, rows[1:], strict=False))
    np.testing.assert_allclose(end_s.max(), result.total_s, rtol=1e-6)


@pytest.mark.parametrize("gradient", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["time", "gradient"])
def test_work_of_the_schedule_is_linear_in_the_number_of_rows(gradient):
    """The scan carries what is alive at once, so four times the rows are four times the steps, each as large as before."""

    def plan_and_bytes(layers):
        rows = [(record, [wait + layer * len(LAYER) for wait in waits]) for layer in range(layers) for record, waits in LAYER]
        hand = program(rows)
        seconds = lambda chip: latency(hand, chip, dtype="float32").sum()
        memory = jax.jit(jax.grad(seconds) if gradient else seconds).lower(MANY).compile().memory_analysis()
        assert memory is not None
        return main_plan(hand.structure, "concurrent", "ends"), memory.temp_size_in_bytes

    (short, short_bytes), (long, long_bytes) = plan_and_bytes(12), plan_and_bytes(48)
    assert long.slots == short.slots
    assert len(long) == 4 * len(short)
    assert long_bytes < 4.1 * short_bytes


def test_a_consumer_of_many_tiles_streams_and_one_of_a_single_tile_waits():
    producer = dma(8 * MIB)
    streamed = schedule(program([(producer, ()), (vector(128 * 2048 * 64, operands=1.0), (0,))]), CHIP, overlap=1.0)
    assert streamed.start_s[1] < 0.5 * streamed.end_s[0]
    assert streamed.end_s[1] > streamed.end_s[0]
    whole = schedule(program([(producer, ()), (vector(128 * 2048.0), (0,))]), CHIP, overlap=1.0)
    assert whole.start_s[1] >= whole.end_s[0]


BODIES = {
    "in order across engines": (
        [(dma(MIB), ()), (matmul(512, 512, 512), (0,)), (scalar(128 * 8192), (1,)), (matmul(512, 512, 512), (2,))],
        [],
    ),
    "independent engines": ([(dma(MIB), ()), (scalar(128 * 8192), ()), (vector(128 * 2048.0), ())], []),
    "carried from end to start": ([(matmul(512, 512, 512), ()), (scalar(128 * 2048), (0,)), (vector(128 * 512.0), (1,))], [((0,), 2)]),
    "a chain through two values and two iterations": (
        [(matmul(512, 512, 512), ()), (scalar(128 * 2048), ()), (vector(128 * 2048.0), (1,)), (gpsimd(128 * 2048), (0,))],
        [((1,), 3), ((0,), 2)],
    ),
}


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("trips", [9, 40])
def test_a_loop_takes_as_long_as_its_iterations_written_out(name, trips):
    body, carried = BODIES[name]
    closing = len(body)
    rows = [*body, (None, (closing - 1,)), (vector(128 * 512.0), (closing,))]
    folded = schedule(program(rows, [(0, closing, carried)], trips={closing: trips}), CHIP, overlap=1.0)
    written_out = program(unrolled(rows, (0, closing, carried), trips))
    np.testing.assert_allclose(folded.total_s, max(slow_schedule(written_out, costs(written_out, CHIP))), rtol=0.03)
    cost = costs(written_out, CHIP)
    np.testing.assert_allclose(folded.serial_s, sum(latency for _, latency, _ in cost), rtol=1e-5)
    for engine, busy_s in folded.busy_s.items():
        expected = sum(c[0] for c, name in zip(cost, written_out.structure.engines, strict=True) if name == engine)
        np.testing.assert_allclose(busy_s, expected, rtol=1e-5)


def test_nested_loops_multiply():
    inner = [(dma(MIB), ()), (matmul(512, 512, 512), (0,)), (None, (1,))]
    rows = [*inner, (scalar(128 * 2048), (2,)), (None, (3,))]
    nested = schedule(program(rows, [(0, 2, []), (0, 4, [((0,), 3)])], trips={2: 10, 4: 12}), CHIP, overlap=1.0)
    once = unrolled(rows[:3], (0, 2, []), 10)
    body = [*once, (scalar(128 * 2048), (len(once) - 1,))]
    flat = program(unrolled([*body, (None, (len(body) - 1,))], (0, len(body), [((0,), len(body) - 1)]), 12))
    cost = costs(flat, CHIP)
    np.testing.assert_allclose(nested.total_s, max(slow_schedule(flat, cost)), rtol=0.03)
    np.testing.assert_allclose(nested.serial_s, sum(latency for _, latency, _ in cost), rtol=1e-5)
    serial = schedule(program(rows, [(0, 2, []), (0, 4, [((0,), 3)])], trips={2: 10, 4: 12}), CHIP, overlap=0.0)
    np.testing.assert_allclose(serial.total_s, serial.serial_s, rtol=1e-6)


WITH_COLLECTIVES = [
    (matmul(1024, 1024, 1024), ()),
    (all_reduce(4 * MIB), (0,)),
    (matmul(1024, 1024, 1024), ()),
    (scalar(128 * 8192), (0,)),
    (all_reduce(MIB), (3,)),
    (vector(128 * 8192.0), (1, 2)),
]


def test_in_a_kernel_dma_hides_behind_compute_and_a_fifth_of_the_shorter_compute_engines_shows():
    work = [(dma(64 * MIB), ()), (matmul(4096, 4096, 4096), ()), (scalar(128 * 2048 * 64), ()), (vector(128 * 2048 * 32.0), ())]
    result = schedule(program(work), CHIP)
    busy = {engine: float(seconds) for engine, seconds in result.busy_s.items()}
    compute = sum(busy.values()) - busy["dma"]
    alone = float(schedule(program(work), CHIP, overlap=1.0).total_s)
    np.testing.assert_allclose(result.total_s, 0.8 * alone + 0.2 * max(alone, compute), rtol=1e-6)
    assert compute > alone  # or nothing would show


def test_levels_of_overlap_are_ordered():
    hand = program(WITH_COLLECTIVES)

    def total(engines, collectives):
        return float(schedule(hand, CHIP, overlap={"engines": engines, "collectives": collectives}).total_s)

    assert total(1, 1) < total(1, 0) < total(0, 0)
    assert total(1, 1) <= total(0, 1) < total(0, 0)
    np.testing.assert_allclose(total(0.4, 0.4), (total(0.8, 0.8) + total(0, 0)) / 2, rtol=1e-6)
    np.testing.assert_allclose(total(0.9, 0.9), (total(0.8, 0.8) + total(1, 1)) / 2, rtol=1e-6)
    beside = total(0.8, 0) - 0.8 * total(1, 0)  # 0.2 of compute in turn, DMA beside it, collectives alone
    expected = 0.2 * total(1, 1) + 0.5 * total(1, 0) + 0.175 / 0.2 * beside + 0.125 * total(0, 0)
    np.testing.assert_allclose(total(0.7, 0.2), expected, rtol=1e-6)


def test_collectives_alone_are_exposed_and_engines_in_turn_hide_them():
    hand = program(WITH_COLLECTIVES)
    cost = costs(hand, CHIP)
    exposed = schedule(hand, CHIP, overlap={"engines": 1.0, "collectives": 0.0})
    start_s, end_s = np.asarray(exposed.start_s), np.asarray(exposed.end_s)
    for row in (1, 4):
        others = [r for r in range(len(cost)) if r != row]
        assert all(end_s[r] <= start_s[row] * (1 + 1e-6) for r in others if r < row)
        assert all(start_s[r] >= end_s[row] * (1 - 1e-6) for r in others if r > row)
    hidden = schedule(hand, CHIP, overlap={"engines": 0.0, "collectives": 1.0})
    compute = sum(cost[row][1] for row in (0, 2, 3, 5))
    assert compute <= hidden.total_s < compute + cost[1][1] + cost[4][1]


def test_engines_in_turn_do_not_overlap_at_all():
    hand = program([(all_reduce(1024.0, 2.0), ()), (dma(MIB), ()), (scalar(128 * 512), ()), (dma(MIB), ()), (vector(128 * 512.0), (2,))])
    in_turn = schedule(hand, CHIP, overlap={"engines": 0.0, "collectives": 1.0})
    np.testing.assert_allclose(in_turn.total_s, sum(latency for _, latency, _ in costs(hand, CHIP)[1:]), rtol=1e-6)


def test_loops_with_exposed_collectives_take_as_long_as_written_out():
    body = [(matmul(512, 512, 512), ()), (all_reduce(MIB), (0,)), (scalar(128 * 2048), (1,))]
    rows = [*body, (None, (2,))]
    levels = {"engines": 1.0, "collectives": 0.0}
    folded = schedule(program(rows, [(0, 3, [])], trips={3: 20}), CHIP, overlap=levels)
    flat = schedule(program(unrolled(rows, (0, 3, []), 20)), CHIP, overlap=levels)
    np.testing.assert_allclose(folded.total_s, flat.total_s, rtol=0.03)


def test_schedule_of_many_chips_has_their_shape_at_the_end():
    chips = CHIP.replace({"tensor.clock_hz": jnp.array([[1e9], [2e9], [3e9]]), "dma.rate": jnp.array([0.5, 1.0])})
    result = schedule(program(LAYER), chips)
    assert result.end_s.shape == (len(LAYER), 3, 2)
    assert result.total_s.shape == result.busy_s["dma"].shape == (3, 2)
    assert result.intervals_s.shape == (0, 3, 2)


def test_weights_of_a_mixture_add_up_to_one_also_when_traced():
    for levels in (0.3, {"engines": 0.2, "collectives": 0.9}, {"engines": 0.9, "collectives": 0.2}, None, "compiled"):
        assert sum(mixture(levels, True).values()) == pytest.approx(1.0)
    traced = mixture({"engines": jnp.float32(0.25), "collectives": jnp.float32(0.75)}, True)
    assert sum(float(weight) for weight in traced.values()) == 1.0
    assert float(traced["engines_in_turn"]) == 0.75 - 0.25 / 0.8


@pytest.mark.parametrize("overlap", [1.5, -0.1, "full", {"engine": 1.0}, [0.5, 0.5], True])
def test_unknown_overlap_says_what_is_accepted(overlap):
    with pytest.raises(ProgramError, match='"compiled"'):
        overlap_levels(overlap)


def test_an_empty_program_takes_no_time():
    assert schedule(program([]), CHIP).total_s == 0.0
