"""The order of steps between two products: one weight's update after the other instead of stage by stage."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from traced_programs import compute, hbm_bytes, mlp_loss, mlp_shapes, shape

from trn_jax._compat import trace_graph
from trn_jax.chips import load_chip
from trn_jax.graph.numerics import Numerics
from trn_jax.report.estimate import estimate
from trn_jax.timing.elasticity import elasticity
from trn_jax.timing.flatten import flatten
from trn_jax.timing.latency import latency
from trn_jax.timing.live import live
from trn_jax.timing.passes import DEFAULT
from trn_jax.timing.passes.order import order_depth_first
from trn_jax.timing.trace import trace
from trn_jax.units import MIB

WRITTEN = tuple(name for name in DEFAULT if name != "order")
WEIGHTS = [shape(2048, 1024), shape(1024, 2048)] * 4  # 64 MiB; neighbours of equal shape would share one loop as they are written


def stages(xs):
    xs = [jnp.sin(x) for x in xs]
    xs = [jnp.tanh(x) for x in xs]
    return [jnp.exp(x) for x in xs]


def functions(program):
    return [function for _, kind, function in compute(program) if kind == "activation"]


def test_each_chain_runs_to_its_end():
    program = trace(stages, WEIGHTS)
    assert functions(program) == ["sin", "tanh", "exp"] * 8
    assert functions(program.with_passes(WRITTEN)) == ["sin"] * 8 + ["tanh"] * 8 + ["exp"] * 8
    size_bytes = 8 * 8 * MIB
    assert hbm_bytes(program) == 2 * size_bytes  # loaded once, stored once
    # 16 MiB too many for 24 MiB of SBUF are stored and loaded again after each of two stages
    assert hbm_bytes(program.with_passes(WRITTEN)) == 2 * size_bytes + 2 * 2 * (size_bytes - 24 * MIB)


def test_many_small_chains_that_alternate_between_tables_keep_their_order():
    """600 loads of tables would take 0.8 ms; what waits of 38 MiB is moved in 0.2 ms."""
    weights = [shape(128, 384), shape(384, 128)] * 100
    assert functions(trace(stages, weights)) == ["sin"] * 200 + ["tanh"] * 200 + ["exp"] * 200


def test_every_reader_still_comes_after_its_maker():
    step, args = train_step(optax.adamw(1e-3))
    stream = live(flatten(trace_graph(step, *args).graph, Numerics(), None))
    ordered = order_depth_first(stream)
    assert ordered.items != stream.items
    assert sorted(map(id, ordered.items)) == sorted(map(id, stream.items))
    made = {datum for datum, (_, _, place) in enumerate(stream.data) if place == "hbm"}
    for item in ordered.items:
        assert made.issuperset(map(stream.origin, item.reads))
        made.update(item.writes)


def test_what_fits_keeps_its_order():
    small = [shape(256, 1024), shape(128, 2048)] * 4
    assert trace(stages, small).structure == trace(stages, small, passes=WRITTEN).structure


def test_a_value_that_all_chains_need_comes_first():
    def clipped(xs):
        scale = 1.0 / jnp.sqrt(sum(jnp.sum(x * x) for x in xs))
        return stages([x * scale for x in xs])

    program = trace(clipped, WEIGHTS)
    assert [function.split("+")[-1] for function in functions(program)][-24:] == ["sin", "tanh", "exp"] * 8
    assert hbm_bytes(program) < hbm_bytes(program.with_passes(WRITTEN))


def test_nothing_moves_across_a_product():
    def f(xs, w):
        xs = [jnp.sin(x) for x in xs]
        y = w @ w
        return [jnp.tanh(x) for x in xs], y

    found = functions(trace(f, WEIGHTS, shape(512, 512)))
    assert found == ["sin"] * 8 + ["tanh"] * 8


def test_loops_are_ordered_inside():
    def f(xs):
        return jax.lax.scan(lambda xs, _: (stages(xs), None), xs, None, length=20)[0]

    assert functions(trace(f, WEIGHTS)) == ["sin", "tanh", "exp"] * 8


def train_step(optimizer):
    def step(params, state, x, y):
        gradient = jax.grad(mlp_loss)(params, x, y)
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state

    params, x, y = mlp_shapes(batch=256, width=2048, hidden=8192)
    return step, (params, jax.eval_shape(optimizer.init, params), x, y)


def by_weight(optimizer):
    """The same optimizer with each weight from beginning to end."""

    def update(gradient, states, params):
        leaves, tree = jax.tree.flatten(gradient)
        results = [optimizer.update(*each) for each in zip(leaves, states, jax.tree.leaves(params), strict=True)]
        return jax.tree.unflatten(tree, [update for update, _ in results]), [state for _, state in results]

    return optax.GradientTransformation(lambda params: [optimizer.init(leaf) for leaf in jax.tree.leaves(params)], update)


@pytest.mark.parametrize("chip", [pytest.param("trainium1", marks=pytest.mark.slow), "trainium2"])
def test_an_optimizer_of_optax_takes_as_long_as_one_written_weight_by_weight(chip):
    chip, optimizer = load_chip(chip), optax.adamw(1e-3)
    whole, single = (trace(f, *args) for f, args in map(train_step, (optimizer, by_weight(optimizer))))
    assert float(latency(whole, chip)) == pytest.approx(float(latency(single, chip)), rel=0.01)
    for overlap in (0.0, 1.0):
        assert float(latency(whole, chip, overlap=overlap)) < float(latency(whole.with_passes(WRITTEN), chip, overlap=overlap))


def test_the_report_says_what_the_order_bought():
    program = trace(stages, WEIGHTS)
    bought_s = estimate(program, load_chip("trainium2")).passes["order"]
    saved_bytes = hbm_bytes(program.with_passes(WRITTEN)) - hbm_bytes(program)
    assert bought_s == pytest.approx(saved_bytes / 368e9, rel=0.25)


@pytest.mark.slow
def test_laws_hold_for_an_ordered_step():
    step, args = train_step(optax.adamw(1e-3))
    program, chip = trace(step, *args), load_chip("trainium2")
    base = float(latency(program, chip))
    for name in ("sbuf.size_bytes", "dma.bandwidth_bytes_per_s", "tensor.clock_hz", "vector.clock_hz"):
        fields = chip
        for part in name.split("."):
            fields = getattr(fields, part)
        assert float(latency(program, chip.replace({name: 1.3 * float(fields)}))) <= base * (1 + 1e-9)
    table = elasticity(program, chip)
    assert np.isfinite(list(dict(table).values())).all()
