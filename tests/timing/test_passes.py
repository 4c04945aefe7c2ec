import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from traced_programs import compute, hbm_bytes, mlp_loss, mlp_shapes, mlp_step, shape

from trn_jax.chips import load_chip
from trn_jax.timing.latency import latency
from trn_jax.timing.passes import DEFAULT
from trn_jax.timing.trace import trace
from trn_jax.units import MIB

X = shape(256, 512)


def fused(f, *args, passes=("elementwise",)):
    return [(kind, function) for _, kind, function in compute(trace(f, *args, passes=passes))]


@pytest.mark.parametrize(
    ("f", "expected"),
    [
        (lambda x: jnp.exp(x * 2.0 + 1.0), [("activation", "multiply+add+exp")]),
        (lambda x: jnp.exp((x * 2.0 + 1.0) * 3.0), [("tensor_scalar", "multiply+add"), ("activation", "multiply+exp")]),
        (lambda x: (x * 2.0 + 1.0) * 3.0, [("tensor_scalar", "multiply+add"), ("tensor_scalar", "multiply")]),
        (lambda x: jnp.exp(jnp.maximum(x, 0.0)), [("tensor_scalar", "maximum"), ("activation", "exp")]),  # no free maximum
        (lambda x: jnp.exp(x) * 2.0, [("activation", "exp"), ("tensor_scalar", "multiply")]),  # another engine
        (lambda x: jnp.tanh(x).astype(jnp.bfloat16), [("activation", "tanh+cast")]),
    ],
)
def test_neighbours_of_a_chain_share_an_instruction(f, expected):
    assert fused(f, X) == expected


def test_scalar_and_tensor_operation_share_an_instruction_unless_both_have_fast_modes():
    f = lambda x, y: x * 0.5 + y
    assert fused(f, X, X) == [("tensor_tensor", "multiply+add")]
    narrow = shape(256, 512, dtype=jnp.bfloat16)
    assert len(fused(f, narrow, narrow)) == 2


def test_a_value_read_twice_is_written():
    assert fused(lambda x: (jnp.exp(x * 2.0), x * 2.0 + 1.0), X) == [("activation", "multiply+exp"), ("tensor_scalar", "multiply+add")]

    def shared(x):
        y = x * 2.0
        return jnp.exp(y), y + 1.0

    assert len(fused(shared, X)) == 3


def test_row_maximum_is_the_bias_of_exp():
    def f(x):
        y = jnp.sin(x)
        return jnp.exp(y - jnp.broadcast_to(y.max(-1, keepdims=True), y.shape))

    assert fused(f, X, passes=DEFAULT) == [("activation", "sin"), ("tensor_reduce", "maximum"), ("activation", "subtract+exp")]


def test_an_output_inside_a_chain_is_written():
    def f(x):
        y = x * 2.0
        return y, jnp.exp(y)

    assert fused(f, X) == [("tensor_scalar", "multiply"), ("activation", "exp")]


def test_a_fused_row_keeps_every_source_line():
    def f(x):
        y = x * 2.0
        return jnp.exp(y)

    (row,) = [row for row in trace(f, X).to_table() if row["kind"] == "activation"]
    lines = row["source"].split("; ")
    assert len(lines) == 2
    assert all("test_passes.py" in line for line in lines)
    assert row["label"] == "activation multiply+exp"


def test_one_number_per_row_is_a_scalar_operand():
    f = lambda x: x - jnp.broadcast_to(x.max(-1, keepdims=True), x.shape)
    assert fused(f, X, passes=()) == [("tensor_reduce", "maximum"), ("tensor_tensor", "subtract")]
    assert fused(f, X, passes=("row_scalars",)) == [("tensor_reduce", "maximum"), ("tensor_scalar", "subtract")]
    columns = lambda x: x - jnp.broadcast_to(x.max(0, keepdims=True), x.shape)
    assert fused(columns, X, passes=("row_scalars",))[-1] == ("tensor_tensor", "subtract")


def test_the_only_reader_of_a_product_takes_it_from_psum():
    w = shape(512, 512)
    f = lambda x, w: jnp.tanh(x @ w)
    assert [function for _, function in fused(f, X, w, passes=())] == ["dot_general", "evacuate", "tanh"]
    assert fused(f, X, w, passes=("epilogue",)) == [("nc_matmul", "dot_general"), ("activation", "evacuate+tanh")]


def test_a_product_with_two_readers_or_none_but_the_output_is_evacuated():
    w = shape(512, 512)
    assert ("tensor_copy", "evacuate") in fused(lambda x, w: (jnp.tanh(x @ w), x @ w), X, w, passes=("epilogue",))
    assert ("tensor_copy", "evacuate") in fused(jnp.matmul, X, w, passes=("epilogue",))


def test_a_product_does_not_wait_in_psum_for_a_reader_behind_another_product():
    def f(x, w):
        first, second = x @ w, (x * 2.0) @ w
        return jnp.tanh(second), jnp.sin(first)

    functions = [function for _, function in fused(f, X, shape(512, 512), passes=("epilogue",))]
    assert functions == ["dot_general", "evacuate", "multiply", "dot_general", "evacuate+tanh", "sin"]


def test_a_product_of_two_products_evacuates_one():
    f = lambda x, w: (x @ w) * (x @ (w + 1.0))
    functions = [function for _, function in fused(f, X, shape(512, 512), passes=("epilogue",))]
    assert functions == ["dot_general", "evacuate", "add", "dot_general", "evacuate+multiply"]


def test_transposes_beside_a_product_are_its_access_pattern():
    w = shape(512, 512)
    after = lambda x, w: jnp.tanh((x @ w).T)
    before = lambda x, w: jnp.tanh(x).T @ (x @ w)
    for f in (after, before):
        assert [kind for kind, _ in all_kinds(f, X, w, ())].count("dma_transpose") == 1
        assert [kind for kind, _ in all_kinds(f, X, w, ("layout",))].count("dma_transpose") == 0
    used = lambda x, w: jnp.sin(jnp.tanh(x).T)
    assert [kind for kind, _ in all_kinds(used, X, w, DEFAULT)].count("dma_transpose") == 1


def all_kinds(f, *args):
    *args, passes = args
    return [(i.kind, i.function) for i in trace(f, *args, passes=passes).instructions]


def test_passes_run_in_their_own_order_and_can_be_switched_off():
    program = trace(mlp_step, *mlp_shapes())
    assert program.structure == trace(mlp_step, *mlp_shapes(), passes=reversed(DEFAULT)).structure
    assert program.with_passes(()).structure == trace(mlp_step, *mlp_shapes(), passes=()).structure
    assert program.with_passes(()).with_passes(DEFAULT).structure == program.structure
    assert trace(mlp_step, *mlp_shapes(), passes="epilogue").structure == program.with_passes(["epilogue"]).structure


def test_passes_inside_loops():
    f = lambda x: jax.lax.scan(lambda x, _: (jnp.exp(x * 2.0), None), x, None, length=20)[0]
    assert fused(f, X) == [("activation", "multiply+exp")]


def attention(q, k, v):
    scores = jnp.einsum("thd,shd->hts", q, k) / 8.0
    return jnp.einsum("hts,shd->thd", jax.nn.softmax(scores), v)


def adam(p, m, v, g):
    m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
    return p - 1e-3 * m / (jnp.sqrt(v) + 1e-8), m, v


def staged(weights, moments, gradients):
    """Adam as optimizers of libraries are written: each stage for all weights before the next one."""
    moments = [adam(0.0, m, v, g)[1:] for (m, v), g in zip(moments, gradients, strict=True)]
    updates = [m / (jnp.sqrt(v) + 1e-8) for m, v in moments]
    updates = [update + 0.1 * weight for update, weight in zip(updates, weights, strict=True)]
    return [weight - 1e-3 * update for weight, update in zip(weights, updates, strict=True)], moments


WEIGHTS = [shape(2048, 1024), shape(1024, 2048)] * 4

LAW_PROGRAMS = {
    "mlp": (mlp_step, mlp_shapes(batch=512, width=256, hidden=512)),
    "attention": (jax.grad(lambda *qkv: attention(*qkv).sum(), argnums=(0, 1, 2)), [shape(512, 4, 64)] * 3),
    "adam": (adam, [shape(1024, 1024)] * 4),
    "staged": (staged, [WEIGHTS, [(weight, weight) for weight in WEIGHTS], WEIGHTS]),
    "large": (jax.grad(mlp_loss), mlp_shapes(batch=8192, width=1024, hidden=4096)),
}


def subsets(name):
    """All subsets of the passes; the order of steps only matters to results that are held from stage to stage."""
    varied = DEFAULT if name == "staged" else [other for other in DEFAULT if other != "order"]
    return [*itertools.chain(*(itertools.combinations(varied, count) for count in range(1, len(varied) + 1))), DEFAULT]


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name == "staged")) for name in LAW_PROGRAMS])
def test_passes_never_add_work_or_traffic(name):
    f, args = LAW_PROGRAMS[name]
    full = trace(f, *args, passes=())
    for names in subsets(name):
        program = full.with_passes(names)
        assert program.flops == full.flops
        assert program.compulsory_bytes <= full.compulsory_bytes
        assert len(compute(program)) <= len(compute(full))
        for size in (4, 24, 64, 1024):
            assert hbm_bytes(program, size * MIB) <= hbm_bytes(full, size * MIB) * (1 + 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name", LAW_PROGRAMS)
@pytest.mark.parametrize("chip", ["trainium1", "trainium2"])
def test_passes_never_take_longer(name, chip):
    f, args = LAW_PROGRAMS[name]
    seconds = []
    for count in range(len(DEFAULT) + 1):
        program = trace(f, *args, passes=DEFAULT[:count])
        seconds.append([float(latency(program, load_chip(chip), overlap=overlap)) for overlap in (0.0, 1.0)])
    for before, after in itertools.pairwise(np.array(seconds)):
        assert np.all(after <= before * (1 + 1e-6)), seconds
