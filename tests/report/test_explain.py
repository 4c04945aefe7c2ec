"""Critical path, worth of passes, utilisations, traffic, footprint and energy of a report."""

import json

import jax
import jax.numpy as jnp
import optax
import pytest
from hand_programs import dma, matmul, program, vector

import trn_jax
from trn_jax.report.estimate import estimate
from trn_jax.report.footprint import BACKWARD, CAPTURED, FORWARD, OTHER

FLOAT = jax.ShapeDtypeStruct((256, 256), jnp.float32)


@pytest.mark.slow
def test_the_critical_path_sums_to_the_latency_at_every_overlap(any_report):
    assert sum(row.seconds for row in any_report.critical_path) == pytest.approx(any_report.latency_s, rel=1e-9)


def test_the_critical_path_sums_to_the_latency(any_program, chip):
    report = estimate(any_program, chip)
    path = report.critical_path
    assert sum(row.seconds for row in path) == pytest.approx(report.latency_s, rel=1e-9)
    assert sum(row.share for row in path) == pytest.approx(1.0)
    assert [row.row for row in path] == sorted(row.row for row in path)
    assert all(row.seconds > 0 and row.engine != "loop" for row in path)


def test_what_is_hidden_is_not_on_the_path(chip):
    hidden = program([(dma(1e5), ()), (matmul(2048.0, 2048.0, 2048.0), (0,)), (vector(1e4), (0,))])
    path = {row.row: row for row in estimate(hidden, chip, overlap=1.0).critical_path}
    assert set(path) == {0, 1}
    assert path[1].share > 0.9
    serial = {row.row for row in estimate(hidden, chip, overlap=0.0).critical_path}
    assert serial == {0, 1, 2}


def test_passes_are_the_latency_without_them_less_the_latency(train_step, chip):
    report = estimate(train_step, chip)
    names = train_step.structure.origin.passes
    assert tuple(report.passes) == names
    without = train_step.with_passes([name for name in names if name != "elementwise"])
    difference_s = float(trn_jax.latency(without, chip)) - report.latency_s
    assert report.passes["elementwise"] == pytest.approx(difference_s, rel=1e-3, abs=1e-6 * report.latency_s)
    assert report.passes["elementwise"] > 0


def test_a_program_built_by_hand_has_no_passes(layer, chip):
    assert estimate(layer, chip).passes == {}


@pytest.mark.slow
def test_recomputation_is_in_hfu_and_not_in_mfu(chip):
    def loss(w, x):
        return jnp.sum(jnp.tanh(jnp.tanh(x @ w) @ w))

    def with_both(f):
        return estimate(trn_jax.trace(jax.value_and_grad(f), FLOAT, FLOAT), chip)

    plain, again = with_both(loss), with_both(jax.checkpoint(loss))
    assert again.flops > plain.flops
    assert again.mfu * again.latency_s == pytest.approx(plain.mfu * plain.latency_s)
    assert again.hfu * again.latency_s > plain.hfu * plain.latency_s
    alone = estimate(trn_jax.trace(jax.grad(jax.checkpoint(loss)), FLOAT, FLOAT), chip)  # the first computation is dead code
    assert alone.mfu * alone.latency_s == pytest.approx(plain.mfu * plain.latency_s)


def test_whole_tiles_have_equal_mfu_and_hfu_and_part_filled_ones_do_not(chip):
    whole, part = (estimate(program([(dma(1e5), ()), (matmul(m, 128.0, n), (0,))]), chip) for m, n in ((128.0, 512.0), (129.0, 513.0)))
    assert whole.hfu == pytest.approx(whole.mfu)
    assert part.hfu * part.latency_s == pytest.approx(5 * 129 / 2.4e9)  # the smaller operand moves: five tiles of 129 columns
    assert part.hfu > part.mfu


def test_utilisations_by_hand(layer, chip):
    report = estimate(layer, chip)
    assert report.mbu == pytest.approx(6e6 / (2.9e12 / 4 * report.latency_s))
    assert report.mfu_chip == pytest.approx(8 * report.flops / (667e12 * report.latency_s))


def test_traffic_adds_up_and_spills_are_named(chip):
    def f(x):
        y = jnp.tanh(x)
        return jnp.sort(y, axis=0) + y.sum() + y

    report = estimate(trn_jax.trace(f, jax.ShapeDtypeStruct((4096, 4096), jnp.float32)), chip)
    assert sum(report.hbm_traffic.values()) == pytest.approx(report.hbm_bytes)
    assert report.spilled_bytes == report.hbm_traffic["spill"] + report.hbm_traffic["reload"] > 0
    assert 0 < report.footprint.temporaries[OTHER] <= 3 * 4096 * 4096 * 4


def test_a_train_step_s_footprint_by_argument(chip):
    optimizer = optax.adamw(1e-3)
    params = {"w": FLOAT, "v": FLOAT}
    state = jax.eval_shape(optimizer.init, params)

    def step(params, state, batch):
        gradient = jax.grad(lambda p: jnp.sum(jnp.tanh(batch @ p["w"]) @ p["v"]))(params)
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state

    traced = trn_jax.trace(step, params, state, jax.ShapeDtypeStruct((16384, 256), jnp.float32))
    held = estimate(traced, chip.replace({"sbuf.size_bytes": 4 * 2**20})).footprint
    size = 256 * 256 * 4
    assert held.arguments == {"params": 2 * size, "state": 4 * size + 4, "batch": 64 * size}
    assert held.results_bytes == 0  # new weights and moments take the place of the old ones
    assert held.temporaries[FORWARD] >= 64 * size * 0.5  # the activation that the backward pass needs again
    assert held.total_bytes == sum(held.parts().values())
    assert estimate(traced, chip.replace({"sbuf.size_bytes": 2.0**30})).footprint.temporaries == {}


@pytest.mark.slow
def test_layers_in_a_loop_have_the_footprint_of_layers_written_out(chip, monkeypatch):
    def loss(weights, x):
        return jnp.sum(jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, weights)[0])

    args = jax.ShapeDtypeStruct((12, 256, 256), jnp.float32), jax.ShapeDtypeStruct((8192, 256), jnp.float32)
    rolled = estimate(trn_jax.trace(jax.grad(loss), *args), chip).footprint
    monkeypatch.setattr("trn_jax.timing.flatten.UNROLLED_TRIPS", 100)
    flat = estimate(trn_jax.trace(jax.grad(loss), *args), chip).footprint
    assert flat.temporaries[FORWARD] > 4 * 8192 * 256 * 4
    ratio = rolled.temporaries[FORWARD] / flat.temporaries[FORWARD]
    assert 0.6 < ratio < 1.4  # JAX's generations stack other residuals, and SBUF holds a part of them
    assert BACKWARD not in flat.temporaries or flat.temporaries[BACKWARD] < flat.temporaries[FORWARD]


def test_a_result_of_the_shape_of_an_argument_has_room_of_its_own(chip):
    held = estimate(trn_jax.trace(jnp.matmul, FLOAT, FLOAT), chip).footprint
    assert held.results_bytes == 256 * 256 * 4
    table = jnp.ones((256, 256))
    assert estimate(trn_jax.trace(lambda x: x @ table, FLOAT), chip).footprint.arguments == {"x": 2**18, CAPTURED: 2**18}


def test_what_does_not_fit_is_said_with_the_arithmetic(chip):
    def f(x, weights):
        return x @ weights["a"] @ weights["b"]

    big = jax.ShapeDtypeStruct((2**17, 2**17), jnp.bfloat16)
    text = estimate(trn_jax.trace(f, jax.ShapeDtypeStruct((8, 2**17), jnp.bfloat16), {"a": big, "b": big, "unused": big}), chip).to_table()
    assert "DOES NOT FIT: weights 103.1 GB + x 2.097 MB + results 2.097 MB = 103.1 GB of 103.1 GB HBM" in text


def test_energy_of_a_report(layer, chip):
    report = estimate(layer, chip)
    low, high = report.energy_range_j
    assert low < report.energy_j < high
    assert report.energy_j == pytest.approx(float(trn_jax.energy(layer, chip)), rel=1e-6)
    assert sum(report.energy_by_engine_j.values()) == pytest.approx(report.energy_j)


def test_the_roofline_is_a_picture(layer, idle, chip, tmp_path):
    report = estimate(layer, chip)
    axes = report.roofline(tmp_path / "roof.png").axes[0]
    assert (tmp_path / "roof.png").stat().st_size > 10_000
    point = next(line for line in axes.lines if line.get_marker() == "o")
    assert point.get_xydata()[0] == pytest.approx([report.arithmetic_intensity_flop_per_byte, report.flops / report.latency_s])
    roofs = [line.get_ydata() for line in axes.lines if line.get_marker() == "None"]
    assert max(map(max, roofs)) == pytest.approx(2 * 128 * 128 * 2.4e9)
    with pytest.raises(trn_jax.ProgramError, match="A roofline needs products and traffic"):
        estimate(idle, chip).roofline()


def test_a_report_is_numbers_for_json(train_step, chip):
    report = estimate(train_step, chip, overlap={"engines": 0.5, "collectives": 0.0})
    record = json.loads(json.dumps(report.to_dict()))
    assert record["latency_s"] == report.latency_s
    assert record["footprint"]["total_bytes"] == report.footprint.total_bytes
    assert record["engines"]["dma"]["busy_s"] == report.engines["dma"].busy_s
    assert "critical_path" not in record
