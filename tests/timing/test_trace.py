import os
import pickle
import subprocess
import sys
import time

import jax
import jax.extend.core as jex_core
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from traced_programs import compute, mlp_loss, mlp_shapes, mlp_step, rnn, rnn_shapes, shape, table_loads, traffic

from trn_jax._compat import trace_graph
from trn_jax.chips import load_chip
from trn_jax.emulate import emulate
from trn_jax.errors import NoRuleError, ProgramError
from trn_jax.graph.graph import Op, walk
from trn_jax.graph.numerics import AutoCast, Numerics
from trn_jax.graph.rules import VIEWS, lower
from trn_jax.timing.latency import latency
from trn_jax.timing.program import Program, Structure
from trn_jax.timing.trace import trace


def test_matmul_and_gelu_run_on_tensor_vector_and_scalar():
    program = trace(lambda x, w: jax.nn.gelu(x @ w), shape(256, 128), shape(128, 512))
    assert compute(program) == [
        ("tensor", "nc_matmul", "dot_general"),
        ("scalar", "tensor_copy", "evacuate"),  # has less to do than Vector; gelu reads the product three times
        ("vector", "tensor_scalar", "power+multiply"),
        ("vector", "tensor_tensor", "add"),
        ("scalar", "activation", "multiply+tanh"),
        ("scalar", "activation", "add+multiply"),
        ("vector", "tensor_tensor", "multiply"),
    ]
    assert [len(traffic(program, name)) for name in ("load", "store", "spill", "reload")] == [1, 1, 0, 0]


def test_softmax_is_row_maximum_exp_row_sum_divide():
    assert compute(trace(jax.nn.softmax, shape(64, 512))) == [
        ("vector", "tensor_reduce", "maximum"),
        ("vector", "tensor_scalar", "maximum"),
        ("scalar", "activation_reduce", "subtract+exp+add"),
        ("vector", "tensor_scalar", "divide"),
    ]


def test_layer_norm_reads_its_rows_on_the_vector_engine():
    def layer_norm(x):
        centred = x - x.mean(-1, keepdims=True)
        return centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-6)

    kinds = [kind for _, kind, _ in compute(trace(layer_norm, shape(64, 512)))]
    assert kinds.count("tensor_reduce") == kinds.count("tensor_scalar_reduce") == 1
    assert kinds.count("activation") == 1
    assert "tensor_tensor" not in kinds  # mean and scale are one number per row


def test_train_step_has_the_products_of_forward_and_backward():
    params, x, y = mlp_shapes(batch=64, width=128, hidden=256)
    forward = 2 * (2 * 64 * 128 * 256)
    assert trace(mlp_loss, params, x, y).flops == forward
    assert trace(mlp_step, params, x, y).flops == 3 * forward - 2 * 64 * 128 * 256  # the input has no gradient


def test_huge_product_is_one_instruction_and_traces_at_once():
    start = time.perf_counter()
    program = trace(jnp.matmul, shape(16000, 16000, dtype=jnp.bfloat16), shape(16000, 16000, dtype=jnp.bfloat16))
    assert time.perf_counter() - start < 60  # a record per tile would be half a million records
    assert program.flops == 8.192e12
    assert [kind for _, kind, _ in compute(program)] == ["nc_matmul", "tensor_copy"]


def test_every_live_operation_that_is_no_view_has_its_instructions():
    args = mlp_shapes()
    graph = trace_graph(mlp_step, *args).graph
    ops = [node for node in walk(graph) if isinstance(node, Op)]
    expected = sum(len(lower(op, Numerics())) for op in ops)
    program = trace(mlp_step, *args, passes=())
    rows = [row for row in program.to_table() if row["hbm"] == 0 or not row["label"].startswith("dma_copy")]
    transposes = sum(row["kind"] == "nc_transpose" for row in rows)  # on the array and out of PSUM
    assert len(rows) == expected + 2 * transposes + len(table_loads(program))
    assert all(op.name in VIEWS or lower(op, Numerics()) or op.name == "transpose" for op in ops)


def test_dead_code_is_dropped():
    def f(x):
        unused = jnp.sin(x) @ x
        return jnp.cos(x), unused

    assert compute(trace(lambda x: f(x)[0], shape(32, 32))) == [("scalar", "activation", "cos")]
    assert len(compute(trace(f, shape(32, 32)))) == 4


def test_outputs_that_nobody_computed_are_still_written():
    program = trace(lambda x: (x + 1, jnp.zeros((1024,)), x[:4]), shape(64, 64))
    assert sum(row["bytes"] for row in traffic(program, "store")) == 64 * 64 * 4 + 1024 * 4 + 4 * 64 * 4


def test_inputs_handed_back_cost_nothing():
    program = trace(lambda x, y: (x + 1, y, x.reshape(-1)), shape(256, 256), shape(512, 512))
    assert program.compulsory_bytes == 2 * 256 * 256 * 4


def test_arguments_may_be_arrays_shapes_trees_keywords_and_static_values():
    def f(x, scale, *, bias, mode):
        return jnp.tanh(x["a"]) * scale + bias if mode == "on" else x["a"]

    by_shape = trace(f, {"a": shape(8, 8)}, 2.0, bias=shape(8, 8), mode="on")
    by_value = trace(f, {"a": np.ones((8, 8), np.float32)}, 2.0, bias=jnp.ones((8, 8)), mode="on")
    assert by_shape.structure == by_value.structure


def test_nnx_module_is_a_function_of_its_inputs():
    program = trace(nnx.Linear(16, 32, use_bias=False, rngs=nnx.Rngs(0)), shape(4, 16))
    assert program.flops == 2 * 4 * 16 * 32
    assert program.compulsory_bytes == (4 * 16 + 16 * 32 + 4 * 32) * 4


def test_operand_formats_follow_autocast_and_the_formats_of_an_emulated_function():
    args = shape(64, 64), shape(64, 64)
    plain, cast = trace(jnp.matmul, *args), trace(jnp.matmul, *args, autocast=AutoCast("matmult", "bf16"))
    assert plain.instructions[1].operand_formats == ("fp32", "fp32")
    assert cast.instructions[1].operand_formats == ("bf16", "bf16")
    assert plain.structure != cast.structure
    emulated = emulate(jnp.matmul, load_chip("trainium2"), autocast=AutoCast("matmult", "bf16"))
    assert trace(emulated, *args).structure == cast.structure
    assert trace(jax.jit(emulated), *args).structure == cast.structure
    with pytest.raises(ProgramError, match="which has its own"):
        trace(emulated, *args, autocast=AutoCast())
    with pytest.raises(TypeError, match="autocast='bf16' is not accepted"):
        trace(jnp.matmul, *args, autocast="bf16")


def test_gradient_of_an_emulated_function_is_not_taken_for_the_function():
    def f(x):
        return (jnp.tanh(x) ** 2).sum()

    emulated = emulate(f, load_chip("trainium2"))
    assert len(trace(jax.grad(emulated), shape(8, 8))) > len(trace(emulated, shape(8, 8)))


def test_collective_under_an_abstract_mesh_knows_its_ranks_and_local_bytes():
    mesh = jax.sharding.AbstractMesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))

    def f(x):
        return jax.lax.psum(jnp.tanh(x), "data")

    sharded = jax.shard_map(f, mesh=mesh, in_specs=jax.P("data"), out_specs=jax.P())
    program = trace(sharded, shape(64, 128))
    (reduce,) = [i for i in program.instructions if i.engine == "collective"]
    assert (reduce.kind, reduce.work.ranks, reduce.work.bytes) == ("all_reduce", 8, 8 * 128 * 4)
    assert sum(row["bytes"] for row in traffic(program, "load")) == 8 * 128 * 4


def test_programs_of_one_structure_form_a_batch():
    programs = [trace(lambda x: jax.nn.softmax(x), shape(rows, 256)) for rows in (64, 128)]
    assert programs[0].structure == programs[1].structure
    batch = jax.tree.map(lambda *columns: jnp.stack(columns), *programs)
    assert batch.table["elements"].shape == (2, len(programs[0]))
    np.testing.assert_allclose(batch.compulsory_bytes, [p.compulsory_bytes for p in programs])
    chip = load_chip("trainium2")
    np.testing.assert_allclose(latency(batch, chip), [latency(p, chip) for p in programs], rtol=1e-6)


def test_the_same_call_gives_the_same_program():
    first, second = (trace(mlp_step, *mlp_shapes()) for _ in range(2))
    assert first.structure == second.structure
    assert first.structure.rows == second.structure.rows
    for name, column in first.table.items():
        np.testing.assert_array_equal(column, second.table[name])


@pytest.mark.slow
def test_a_fresh_process_and_other_devices_give_the_same_program():
    code = (
        "import jax; jax.config.update('jax_num_cpu_devices', {devices})\n"
        "from traced_programs import mlp_shapes, mlp_step\n"
        "from trn_jax.timing.trace import trace\n"
        "p = trace(mlp_step, *mlp_shapes())\n"
        "print([(r.label, r.waits) for r in p.structure.rows], [(n, c.tobytes().hex()) for n, c in p.table.items()])"
    )

    def run(devices, seed):
        path = os.pathsep.join([os.path.dirname(os.path.dirname(__file__)), *sys.path])
        environment = {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": str(seed)}
        return subprocess.run([sys.executable, "-c", code.format(devices=devices)], env=environment, capture_output=True, check=True).stdout

    assert run(1, 1) == run(8, 2)


def test_short_repr_and_a_table_of_what_runs_where():
    program = trace(rnn, *rnn_shapes(20))
    assert repr(program) == "Program(9 instructions: dma 5, scalar 2, tensor 1, vector 1; 1 loops)"
    table = program.to_table()
    assert len(table) == len(program) == 10
    product = next(row for row in table if row["kind"] == "nc_matmul")
    assert (product["repeats"], product["m"], product["k"], product["n"]) == (20, 8, 64, 64)
    assert "traced_programs.py" in product["source"]


def test_named_scopes_are_kept():
    def f(x):
        with jax.named_scope("attention"):
            return jnp.tanh(x)

    assert {row.scope for row in trace(f, shape(64, 1024)).structure.rows} == {"attention"}


@pytest.mark.parametrize("trips", [3, 20], ids=["unrolled", "loop"])
def test_scopes_inside_loops_and_calls_follow_those_around_them(trips):
    @jax.jit
    def layer(x):
        with jax.named_scope("mlp"):
            return jnp.tanh(x)

    def f(x):
        with jax.named_scope("blocks"):
            return jax.lax.scan(lambda x, _: (layer(x), None), x, None, length=trips)[0]

    scopes = {row.scope for row in trace(f, shape(64, 1024)).structure.rows if "tanh" in row.label}
    assert scopes == {"blocks/mlp"}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: trace(jnp.ones(3), shape(3)), "takes a function and its arguments"),
        (lambda: trace(lambda x: x.reshape(4), shape(2, 2)), "<lambda> runs no instruction"),
        (lambda: trace(lambda x: jnp.zeros(3), shape(2, 2)), "runs no instruction"),
        (lambda: trace(jnp.sin, shape(2), passes=("elementwize",)), "no pass 'elementwize'.*Did you mean 'elementwise'"),
        (lambda: trace(jnp.sin, shape(2), trip_count=-1), "give a non-negative int"),
        (lambda: trace(jnp.sin, shape(2), trip_count={"loop": 2.5}), "give a non-negative int"),
        (lambda: trace(jnp.sin, shape(2), trip_count={"nowhere": 2}), "names 'nowhere', but no while loop"),
    ],
)
def test_what_cannot_become_a_program_is_refused(call, message):
    with pytest.raises(ProgramError, match=message):
        call()


def test_unknown_primitive_names_itself_and_its_source():
    mystery = jex_core.Primitive("mystery")
    mystery.def_abstract_eval(lambda x: x)
    with pytest.raises(NoRuleError, match=r"'mystery' .*test_trace.py"):
        trace(lambda x: mystery.bind(x), shape(2))


def test_a_program_made_by_hand_cannot_be_lowered_again():
    structure = Structure(engines=(), kinds=(), narrow=(), waits=(), loops=(), rows=())
    with pytest.raises(ProgramError, match="built by hand or comes from a file"):
        Program(structure=structure, table={}).with_passes(())


def test_a_program_pickles_without_the_function_it_came_from():
    chip = load_chip("trainium2")
    program = trace(lambda x, w: jnp.tanh(x @ w), shape(256, 256), shape(256, 256))
    again = pickle.loads(pickle.dumps(program))
    assert again.structure == program.structure
    assert latency(again, chip) == latency(program, chip)
    assert [row["source"] for row in again.to_table()] == [row["source"] for row in program.to_table()]
    with pytest.raises(ProgramError, match="comes from a file"):
        again.with_passes(())
