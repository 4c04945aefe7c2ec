import jax
import jax.numpy as jnp
from traced_programs import compute, shape, traffic

from trn_jax._compat import trace_graph
from trn_jax.graph.numerics import Numerics
from trn_jax.timing.flatten import flatten
from trn_jax.timing.groups import groups
from trn_jax.timing.live import live
from trn_jax.timing.stream import Step, walk
from trn_jax.timing.trace import trace


def stream_of(f, *args, trip_count=None):
    return flatten(trace_graph(f, *args).graph, Numerics(), trip_count)


def functions(stream):
    return ["+".join(item.functions) for item in walk(stream.items) if isinstance(item, Step)]


def test_calls_are_inlined_wherever_they_come_from():
    @jax.custom_vjp
    def custom(x):
        return jnp.sin(x)

    custom.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (g * jnp.cos(x),))

    def f(x):
        return jax.jit(jax.checkpoint(lambda x: custom(jax.nn.relu(x))))(x)

    assert functions(stream_of(f, shape(8, 8))) == ["maximum", "sin"]


def test_views_are_the_data_they_show():
    def f(x):
        y = jnp.sin(x)
        return jnp.cos(y.reshape(-1).reshape(8, 2, 4)), jnp.exp(y)

    steps = stream_of(f, shape(16, 4)).items
    assert steps[1].reads == steps[2].reads == steps[0].writes


def test_barriers_show_operand_by_operand():
    def f(x, y):
        x, y = jax.lax.optimization_barrier((jnp.sin(x), jnp.cos(y)))
        return jnp.exp(y), jnp.tanh(x)

    sin, cos, exp, tanh = stream_of(f, shape(8), shape(8)).items
    assert (exp.reads, tanh.reads) == (cos.writes, sin.writes)


def test_a_slice_is_data_of_its_own_and_equal_slices_are_the_same():
    stream = stream_of(lambda x: (jnp.sin(x[:2]), jnp.cos(x[:2]), jnp.tanh(x[2:])), shape(8, 128))
    sin, cos, tanh = stream.items
    assert sin.reads == cos.reads != tanh.reads
    assert [stream.data[step.reads[0]].size_bytes for step in stream.items] == [2 * 512, 2 * 512, 6 * 512]
    assert {stream.origin(step.reads[0]) for step in stream.items} == {0}


def test_literals_need_no_memory():
    (step,) = stream_of(lambda x: x * 2.0 + jnp.zeros((4, 4)), shape(4, 4)).items[:1]
    assert step.reads == (0,)


def test_the_branch_with_the_most_work_is_taken_after_its_condition():
    def f(flag, x):
        return jax.lax.cond(flag.sum() > 0, lambda x: x + 1.0, lambda x: jnp.tanh(x @ x), x)

    program = trace(f, shape(8), shape(64, 64))
    assert [function for _, _, function in compute(program)] == ["add", "greater", "cast", "dot_general", "evacuate+tanh"]
    rows = program.to_table()
    (condition,) = [row["row"] for row in rows if "cast" in row["label"] or row["label"].endswith("greater")][-1:]
    (product,) = [row for row in rows if row["kind"] == "nc_matmul"]
    assert condition in product["waits"]


def test_a_condition_from_the_input_is_loaded_before_the_branch():
    program = trace(lambda flag, x: jax.lax.cond(flag, jnp.sin, jnp.cos, x), shape(dtype=jnp.bool_), shape(64, 64))
    (load,) = traffic(program, "load")
    assert load["bytes"] == 64 * 64 * 4 + 1
    assert len([row for row in program.to_table() if row["kind"] == "activation"]) == 1


def test_a_loop_in_a_branch_counts_all_its_iterations():
    def short(x):
        return jnp.tanh(x @ x)

    def long(x):
        return jax.lax.scan(lambda x, _: (jnp.sin(x), None), x, None, length=100_000)[0]

    program = trace(lambda i, x: jax.lax.switch(i, [short, long], x), shape(dtype=jnp.int32), shape(64, 64))
    assert len(program.structure.loops) == 1


def test_shards_are_as_large_as_one_rank_sees_them():
    mesh = jax.sharding.AbstractMesh((4, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)

    def f(x, w):
        return jax.lax.psum(x @ w, "model")

    sharded = jax.shard_map(f, mesh=mesh, in_specs=(jax.P("data", "model"), jax.P("model", None)), out_specs=jax.P("data"))
    program = trace(sharded, shape(64, 128), shape(128, 256))
    (product,) = [i for i in program.instructions if i.kind == "nc_matmul"]
    assert (product.work.m, product.work.k, product.work.n) == (16, 64, 256)
    (reduce,) = [i for i in program.instructions if i.engine == "collective"]
    assert reduce.work.ranks == 2
    assert program.compulsory_bytes == (16 * 64 + 64 * 256) * 4  # the collective itself writes the output


def test_dead_steps_go_and_effects_stay():
    def f(x):
        jax.debug.print("{}", jnp.cos(x).sum())
        jnp.sin(x)
        return jnp.exp(x)

    stream = stream_of(f, shape(8))
    assert "sin" in functions(stream)
    assert functions(live(stream)) == ["cos", "add", "debug_print", "exp"]


def test_a_shared_subgraph_is_lowered_in_every_place():
    block = jax.jit(lambda x, w: jnp.tanh(x @ w))

    def f(x, ws):
        for w in ws:
            x = block(x, w)
        return x

    assert trace(f, shape(8, 32), [shape(32, 32)] * 12).flops == 12 * 2 * 8 * 32 * 32


def test_groups_start_at_products_and_after_sums_over_rows():
    def f(x, w):
        y = jax.nn.softmax(x @ w)
        total = y.sum(0)
        return jnp.tanh(y) * jnp.broadcast_to(total, y.shape), jnp.sort(y)

    items = live(stream_of(f, shape(64, 32), shape(32, 128))).items
    named = list(zip(["+".join(item.functions) for item in items], groups(items), strict=True))
    first = [name for name, number in named if number == named[0][1]]
    assert first[:2] == ["dot_general", "evacuate"]
    assert {"exp", "divide", "tanh", "add"} <= set(first)
    assert dict(named)["multiply"] != named[0][1]  # needs the sum over all rows
    assert dict(named)["sort"] not in {number for name, number in named if name != "sort"}
