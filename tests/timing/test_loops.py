import jax
import jax.numpy as jnp
import numpy as np
import pytest
from traced_programs import compute, hbm_bytes, rnn, rnn_shapes, shape

from trn_jax.chips import load_chip
from trn_jax.errors import ProgramError
from trn_jax.timing import flatten
from trn_jax.timing.latency import latency
from trn_jax.timing.trace import trace
from trn_jax.units import MIB

STEP = [("tensor", "nc_matmul", "dot_general"), ("vector", "tensor_tensor", "evacuate+add"), ("scalar", "activation", "tanh")]


def unrolled(monkeypatch, f, *args, **kwargs):
    with monkeypatch.context() as patch:
        patch.setattr(flatten, "UNROLLED_TRIPS", 1000)
        return trace(f, *args, **kwargs)


def test_short_scan_is_unrolled_and_every_iteration_waits_for_the_one_before():
    program = trace(rnn, *rnn_shapes(4))
    assert compute(program) == STEP * 4
    assert program.structure.loops == ()
    products = [row for row in program.to_table() if row["kind"] == "nc_matmul"]
    assert [product["row"] - 1 in product["waits"] for product in products[1:]] == [True] * 3


def test_long_scan_is_one_iteration_and_its_count():
    program = trace(rnn, *rnn_shapes(20))
    assert compute(program) == STEP
    (loop,) = program.structure.loops
    rows = program.to_table()
    assert rows[loop.end]["label"] == "loop 20 times"
    assert rows[loop.end]["repeats"] == 1
    assert program.table["trips"][loop.end] == 20
    assert {row["repeats"] for row in rows[loop.begin : loop.end]} == {20}
    labels = [([rows[reader]["kind"] for reader in readers], rows[maker]["label"]) for readers, maker in loop.carried]
    assert labels == [(["nc_matmul"], "activation tanh"), (["tensor_tensor"], "dma_copy load")]  # the next slice is loaded ahead


def test_what_reads_a_loop_waits_for_its_closing_row():
    program = trace(lambda *args: jnp.cos(rnn(*args)[0]), *rnn_shapes(20))
    (loop,) = program.structure.loops
    (last,) = [row for row in program.to_table() if row["label"] == "activation cos"]
    assert last["waits"] == (loop.end,)


def test_products_in_loops_are_counted_every_iteration():
    w, x = shape(64, 64), shape(8, 64)

    def scanned(w, x):
        return jax.lax.scan(lambda x, _: (jnp.tanh(x @ w), None), x, None, length=24)[0]

    def looped(w, x):
        for _ in range(24):
            x = jnp.tanh(x @ w)
        return x

    assert trace(scanned, w, x).flops == trace(looped, w, x).flops == 24 * 2 * 8 * 64 * 64


def test_nested_loops_multiply():
    def f(w, x):
        inner = lambda x, _: (jnp.tanh(x @ w), None)
        outer = lambda x, _: (jnp.sin(jax.lax.scan(inner, x, None, length=10)[0]), None)
        return jax.lax.scan(outer, x, None, length=12)[0]

    program = trace(f, shape(32, 32), shape(8, 32))
    assert len(program.structure.loops) == 2
    assert program.flops == 120 * 2 * 8 * 32 * 32
    inner, outer = program.structure.loops
    assert outer.begin <= inner.begin < inner.end < outer.end
    ((readers, maker),), ((first, last),) = inner.carried, outer.carried
    assert inner.begin <= readers[0] < maker < inner.end < last < outer.end
    assert first == readers  # what the inner loop starts from is what the outer one carries


@pytest.mark.parametrize("reverse", [False, True])
def test_loops_load_each_slice_and_store_each_result_once(reverse, monkeypatch):
    def f(xs):
        return jax.lax.scan(lambda c, x: (c + x, jnp.tanh(c)), jnp.zeros((64, 256)), xs, reverse=reverse)

    rolled, flat = trace(f, shape(16, 64, 256)), unrolled(monkeypatch, f, shape(16, 64, 256))
    assert rolled.compulsory_bytes == flat.compulsory_bytes == (16 + 16 + 1) * 64 * 256 * 4


def test_reversed_scan_pairs_slices_with_their_own_results():
    def f(xs):
        _, ys = jax.lax.scan(lambda c, x: (c, jnp.tanh(x)), 0.0, xs)
        _, zs = jax.lax.scan(lambda c, y: (c, jnp.sin(y)), 0.0, ys, reverse=True)
        return zs

    table = trace(f, shape(4, 8, 8)).to_table()
    tanh, sin = ([row for row in table if row["label"] == f"activation {name}"] for name in ("tanh", "sin"))
    assert [row["waits"] for row in sin] == [(made["row"],) for made in reversed(tanh)]


def test_dead_results_of_a_loop_are_dropped():
    def f(xs):
        def step(carry, x):
            a, b = carry
            return (a + x, b * jnp.sin(x)), jnp.cos(x)

        return jax.lax.scan(step, (jnp.ones(8), jnp.ones(8)), xs)[0][0]

    assert [function for _, _, function in compute(trace(f, shape(20, 8)))] == ["add"]


def test_scan_without_iterations_hands_its_carry_through():
    program = trace(lambda *args: jnp.sin(rnn(*args)[0]), *rnn_shapes(0))
    assert compute(program) == [("scalar", "activation", "sin")]


def test_what_all_iterations_share_and_does_not_fit_is_loaded_by_each():
    def f(w, x):
        return jax.lax.scan(lambda x, _: (jnp.tanh(x @ w), None), x, None, length=10)[0]

    program = trace(f, shape(4096, 4096), shape(16, 4096))  # 64 MiB
    small = 16 * 4096 * 4
    np.testing.assert_allclose(hbm_bytes(program, 4 * MIB), 10 * 64 * MIB + 2 * small)
    assert hbm_bytes(program, 128 * MIB) == program.compulsory_bytes == 64 * MIB + 2 * small


def training(w, xs):
    def loss(w, xs):
        return (jax.lax.scan(lambda x, _: (jnp.sin(x @ w), None), xs, None, length=12)[0] ** 2).sum()

    return jax.grad(loss, argnums=(0, 1))(w, xs)


PROGRAMS = {
    "recurrent": (lambda *args: rnn(*args)[1], rnn_shapes(12, batch=256, width=512)),
    "layers": (lambda x, ws: jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, ws)[0], (shape(512, 1024), shape(10, 1024, 1024))),
    "training": (training, (shape(1024, 1024), shape(1024, 1024))),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_loop_moves_about_the_bytes_of_its_unrolled_iterations(name, monkeypatch):
    f, args = PROGRAMS[name]
    rolled, flat = trace(f, *args), unrolled(monkeypatch, f, *args)
    assert len(rolled.structure.loops) > len(flat.structure.loops) == 0
    assert rolled.compulsory_bytes == flat.compulsory_bytes
    for sbuf_bytes in (2 * MIB, 8 * MIB, 24 * MIB, 64 * MIB, 1024 * MIB):
        np.testing.assert_allclose(hbm_bytes(rolled, sbuf_bytes), hbm_bytes(flat, sbuf_bytes), rtol=0.2)


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("overlap", [0.0, 1.0])
def test_a_loop_takes_about_the_time_of_its_unrolled_iterations(name, overlap, monkeypatch):
    f, args = PROGRAMS[name]
    chip = load_chip("trainium2")
    rolled, flat = (latency(p, chip, overlap=overlap) for p in (trace(f, *args), unrolled(monkeypatch, f, *args)))
    np.testing.assert_allclose(rolled, flat, rtol=0.1)


def collatz(x):
    return jax.lax.while_loop(lambda s: s[0] < 100.0, lambda s: (s[0] * 2.0, jnp.sin(s[1])), (x[0, 0], x))[1]


@pytest.mark.parametrize(("trips", "loops", "sines"), [(0, 0, 0), (3, 0, 3), (30, 1, 1)])
def test_while_loop_runs_as_often_as_told(trips, loops, sines):
    program = trace(lambda x: collatz(x) + 1, shape(64, 64), trip_count=trips)
    assert len(program.structure.loops) == loops
    labels = [row["label"] for row in program.to_table()]
    assert labels.count("activation sin") == sines
    assert sum(row["repeats"] for row in program.to_table() if row["label"] == "activation sin") == trips


@pytest.mark.parametrize("trips", [3, 30])
def test_iterations_of_a_while_loop_wait_for_its_condition(trips):
    table = trace(collatz, shape(64, 64), trip_count=trips).to_table()
    conditions = [row["row"] for row in table if "less" in row["label"]]
    sines = [row["waits"] for row in table if row["label"] == "activation sin"]
    assert len(conditions) == len(sines)
    assert all(condition in waits for condition, waits in zip(conditions, sines, strict=True))


def test_trip_counts_by_source_line_and_scope():
    def f(x):
        with jax.named_scope("solver"):
            x = jax.lax.while_loop(lambda x: x.sum() < 1, jnp.sin, x)
        return jax.lax.while_loop(lambda x: x.sum() < 1, jnp.cos, x)

    program = trace(f, shape(8, 8), trip_count={"solver": 20, "test_loops.py": 10})
    assert sorted(set(program.table["trips"])) == [1, 10, 20]
    with pytest.raises(ProgramError, match=r"while loop at .*test_loops.py.*trip_count=N"):
        trace(f, shape(8, 8), trip_count={"solver": 20})


def test_unknown_trip_count_names_the_line_and_what_to_pass():
    with pytest.raises(ProgramError, match=r"test_loops.py:\d+.*trip_count=N.*for each"):
        trace(collatz, shape(8, 8))
