"""Operands from HBM: `x @ w.T` is a contraction over the other axis, and only a table that is gathered by rows needs a transpose."""

import jax
import jax.numpy as jnp
import pytest
from traced_programs import hbm_bytes, shape, traffic

from trn_jax.chips import load_chip
from trn_jax.engines.dma import TRANSPOSE_SHARE
from trn_jax.report.estimate import estimate
from trn_jax.timing.elasticity import elasticity
from trn_jax.timing.latency import latency
from trn_jax.timing.trace import trace

CHIP = load_chip("trainium2")
TOKENS, WIDTH, WORDS = 256, 1024, 32768
TABLE_BYTES = WIDTH * WORDS * 2  # 64 MiB
X, TABLE = shape(TOKENS, WIDTH, dtype=jnp.bfloat16), shape(WORDS, WIDTH, dtype=jnp.bfloat16)
NUMBERS = shape(TOKENS, dtype=jnp.int32)


def by_transpose(x, w):
    return x @ w.T


def by_contraction(x, w):
    return jnp.einsum("mk,nk->mn", x, w)


def in_loop(product):
    def f(x, ws):
        return jax.lax.scan(lambda x, w: (jnp.tanh(product(x, w)), None), x, ws)[0]

    return f


def tied(product):
    return lambda numbers, table: product(table[numbers], table)


def tied_gradient(product):
    return jax.grad(lambda table, numbers: jnp.sin(tied(product)(numbers, table).astype(jnp.float32)).sum())


PAIRS = {
    "product": (lambda product: product, (X, TABLE)),
    "loop": (in_loop, (X, shape(20, WIDTH, WIDTH, dtype=jnp.bfloat16))),
    "tied": (tied, (NUMBERS, TABLE)),
    "gradient": (tied_gradient, (TABLE, NUMBERS)),
}


def kinds(program):
    return [row["kind"] for row in program.to_table()]


@pytest.mark.parametrize("passes", [(), None])
@pytest.mark.parametrize("name", PAIRS)
def test_a_transpose_before_a_product_is_a_contraction_over_the_other_axis(name, passes):
    make, args = PAIRS[name]
    chosen = {} if passes is None else {"passes": passes}
    one, other = (trace(make(product), *args, **chosen) for product in (by_transpose, by_contraction))
    assert hbm_bytes(one) == hbm_bytes(other)
    assert float(latency(one, CHIP)) == pytest.approx(float(latency(other, CHIP)), rel=0.01)  # rows of the largest array differ


def test_weights_that_only_products_read_are_loaded_as_they_are():
    program = trace(by_transpose, X, TABLE)
    assert "dma_transpose" not in kinds(program)
    assert sum(row["bytes"] for row in traffic(program, "load")) == TABLE_BYTES + TOKENS * WIDTH * 2


def test_a_table_that_is_gathered_is_transposed_once_on_its_way_in():
    program = trace(tied(by_contraction), NUMBERS, TABLE)
    (row,) = [row for row in program.to_table() if row["kind"] == "dma_transpose"]
    assert row["bytes"] == TABLE_BYTES
    assert not [row for function in ("spill", "reload") for row in traffic(program, function) if row["bytes"] == TABLE_BYTES]
    assert not [row for row in traffic(program, "load") if row["bytes"] >= TABLE_BYTES]


def test_a_step_of_decoding_takes_what_the_transposed_table_takes():
    one = shape(1, dtype=jnp.int32)
    untied = lambda numbers, table, head: table[numbers] @ head
    separate = estimate(trace(untied, one, TABLE, shape(WIDTH, WORDS, dtype=jnp.bfloat16)), CHIP)
    together = estimate(trace(tied(by_transpose), one, TABLE), CHIP)
    assert together.engines["dma"].busy_s == pytest.approx(separate.engines["dma"].busy_s / TRANSPOSE_SHARE, rel=0.02)


def test_a_product_over_the_rows_of_a_table_needs_no_transpose():
    f = lambda numbers, table, y: (table[numbers], y @ table, table.T @ y.T)
    assert "dma_transpose" not in kinds(trace(f, NUMBERS, TABLE, shape(TOKENS, WORDS, dtype=jnp.bfloat16)))


@pytest.mark.parametrize(
    "others",
    [jnp.sin, lambda turned: turned, lambda turned: jnp.sum(turned[:, 512:])],
    ids=["read", "returned", "read in part"],
)
def test_a_transposed_array_that_others_need_is_made(others):
    def f(x, w):
        turned = w.T
        return x @ turned, others(turned)

    assert kinds(trace(f, X, TABLE)).count("dma_transpose") == 1


def test_transposes_that_undo_each_other_are_nothing():
    there_and_back = lambda w: jnp.sin(w.T.T)
    assert "dma_transpose" not in kinds(trace(there_and_back, TABLE))
    in_another_shape = lambda w: jnp.sin(w.T.reshape(WORDS, WIDTH).T)
    assert kinds(trace(in_another_shape, TABLE)).count("dma_transpose") == 2


def test_a_gather_does_not_wait_for_its_table_to_be_loaded():
    program = trace(lambda numbers, table: table[numbers] + jnp.sum(table * 2.0), NUMBERS, TABLE)
    rows = program.to_table()
    loads = {row["row"] for row in traffic(program, "load") if row["bytes"] >= TABLE_BYTES}
    (gather,) = [row for row in rows if row["kind"] == "gather"]
    assert loads.isdisjoint(gather["waits"])


def test_laws_hold_for_tied_embeddings():
    program = trace(tied(by_transpose), NUMBERS, TABLE)
    base_s = float(latency(program, CHIP))
    for path in ("dma.bandwidth_bytes_per_s", "hbm.bandwidth_bytes_per_s", "sbuf.size_bytes", "tensor.clock_hz"):
        group, name = path.split(".")
        faster = CHIP.replace({path: 1.5 * float(getattr(getattr(CHIP, group), name))})
        assert float(latency(program, faster)) <= base_s * (1 + 1e-9)
    assert elasticity(program, CHIP).time_power_sum == pytest.approx(1.0, abs=1e-3)
