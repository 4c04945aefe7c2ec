import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from traced_programs import hbm_bytes, mlp_shapes, mlp_step, shape, traffic

from trn_jax.graph.instruction import Work
from trn_jax.timing.blocking import BLOCK_SHARE, KNOTS_BYTES, reread_bytes, reread_pieces
from trn_jax.timing.residency import SIZES_BYTES, residency
from trn_jax.timing.trace import trace
from trn_jax.units import MIB

SIZE = 4 * MIB  # the smallest SBUF of the ladder, and every piece of data below is as large
INTERVALS = st.lists(st.tuples(st.integers(0, 7), st.integers(1, 4)), min_size=1, max_size=9)


def nothing_else(slots):
    return np.zeros((slots, len(SIZES_BYTES)))


@settings(deadline=None, max_examples=60)
@given(INTERVALS, st.sampled_from([1, 2, 4]))
def test_what_is_needed_last_leaves_and_no_other_choice_evicts_less(intervals, capacity):
    starts, stops = [start for start, _ in intervals], [start + length for start, length in intervals]
    _, kept_bytes = residency(starts, stops, [SIZE] * len(starts), nothing_else(12))
    level = list(SIZES_BYTES).index(capacity * SIZE)

    def fits(kept):
        return all(sum(starts[i] <= slot < stops[i] for i in kept) <= capacity for slot in range(12))

    everything = range(len(starts))
    most = max(size for size in range(len(starts) + 1) if any(fits(kept) for kept in itertools.combinations(everything, size)))
    rooms = residency(starts, stops, [SIZE] * len(starts), nothing_else(12)).rooms
    evicted = sum(min(SIZE, room.slope * max(0.0, room.size_bytes - capacity * SIZE)) for room in rooms)
    assert kept_bytes[:, level].max() <= capacity * SIZE
    np.testing.assert_allclose(evicted, (len(starts) - most) * SIZE)


def test_room_counts_own_size_what_is_needed_sooner_and_what_is_there_anyway():
    base = nothing_else(5)
    base[3] = 7 * MIB
    # slots 0-3; slots 1-2, needed sooner; slots 2-4, needed later
    rooms, kept_bytes = residency([0, 1, 2], [4, 3, 5], [10 * MIB, 3 * MIB, 1100 * MIB], base)
    assert [room.size_bytes / MIB for room in rooms] == [8 + 9, 4, 1100 + 10 + 7]  # in between a byte of SBUF keeps a byte
    np.testing.assert_array_equal(kept_bytes[:, -1] / MIB, [10, 13, 1113, 1117, 1100])


def test_missing_bytes_are_exact_at_the_sizes_next_to_where_eviction_begins():
    rooms, kept_bytes = residency([0, 1], [9, 3], [20 * MIB, 6 * MIB], nothing_else(9))
    missing = np.minimum(20 * MIB, rooms[0].slope * np.maximum(0.0, rooms[0].size_bytes - SIZES_BYTES))
    np.testing.assert_allclose(missing, 20 * MIB - kept_bytes[4])


def test_inputs_and_outputs_move_once_and_what_fits_stays():
    program = trace(lambda x: jnp.sin(x) @ jnp.cos(x), shape(512, 512))
    assert program.compulsory_bytes == hbm_bytes(program, 4 * MIB) == 2 * 512 * 512 * 4
    assert not traffic(program, "spill")
    assert not traffic(program, "reload")


def test_what_does_not_fit_is_stored_once_and_reloaded_at_every_use():
    x = shape(4096, 4096)  # 64 MiB

    def f(x, w):
        y = jnp.sin(x)
        return (y @ w).T @ (w.T @ y).T

    program = trace(f, x, shape(4096, 128))
    (spill,) = [row for row in traffic(program, "spill") if row["bytes"] == 64 * MIB]
    assert spill["reuse_bytes"] >= 64 * MIB
    assert sum(row["bytes"] == 64 * MIB for row in traffic(program, "reload")) == 2
    kept = [hbm_bytes(program, size * MIB) for size in (16, 32, 64, 256)]
    assert kept == sorted(kept, reverse=True)
    assert hbm_bytes(program, 1024 * MIB) == program.compulsory_bytes
    np.testing.assert_allclose(kept[0] - kept[1], 3 * 16 * MIB, rtol=0.1)  # one store and two loads of what fits now


def test_row_by_row_work_passes_through_in_tiles():
    program = trace(jax.nn.softmax, shape(8192, 4096))  # 128 MiB
    assert hbm_bytes(program, 4 * MIB) == program.compulsory_bytes == 2 * 8192 * 4096 * 4


def test_a_sum_over_all_rows_ends_the_pass_over_tiles():
    def f(x):
        y = jnp.sin(x)
        return y / jnp.broadcast_to(y.sum(0), y.shape)

    program = trace(f, shape(8192, 4096))
    assert hbm_bytes(program, 4 * MIB) > 1.9 * program.compulsory_bytes


@settings(deadline=None, max_examples=10)
@given(st.lists(st.floats(0.5, 4096.0), min_size=2, max_size=6))
def test_more_sbuf_never_moves_more_bytes(sizes):
    program = _train_step()
    moved = [hbm_bytes(program, size * MIB) for size in sorted(sizes)]
    assert moved == sorted(moved, reverse=True)
    assert moved[-1] >= program.compulsory_bytes


_PROGRAMS: list = []


def _train_step():
    if not _PROGRAMS:
        _PROGRAMS.append(trace(mlp_step, *mlp_shapes(batch=4096, width=2048, hidden=8192)))
    return _PROGRAMS[0]


def test_large_products_read_operands_again_unless_one_of_them_fits():
    big = trace(jnp.matmul, shape(8192, 8192), shape(8192, 8192))
    assert len(traffic(big, "reread")) == len(KNOTS_BYTES)
    assert hbm_bytes(big, 24 * MIB) > 2 * big.compulsory_bytes
    assert hbm_bytes(big, 1024 * MIB) == big.compulsory_bytes
    product, reader = (next(row for row in big.to_table() if row["kind"] == kind) for kind in ("nc_matmul", "tensor_copy"))
    last = traffic(big, "reread")[-1]["row"]
    assert last not in product["waits"]  # the operands are read again while the product goes on
    assert last in reader["waits"]
    thin = trace(jnp.matmul, shape(128, 8192), shape(8192, 8192))
    assert hbm_bytes(thin, 24 * MIB) == thin.compulsory_bytes


@pytest.mark.parametrize("work", [Work(m=4096, k=8192, n=8192), Work(m=512, k=65536, n=512), Work(batch=8, m=4096, k=4096, n=4096)])
def test_reread_pieces_follow_the_curve(work):
    lhs, rhs = 4 * work.batch * work.m * work.k, 4 * work.batch * work.k * work.n
    pieces = reread_pieces(work, lhs, rhs, np.inf)

    def moved(sbuf_bytes):
        return sum(min(size, room.slope * max(0.0, room.size_bytes - sbuf_bytes)) for size, room in pieces)

    for sbuf_bytes in KNOTS_BYTES:
        np.testing.assert_allclose(moved(sbuf_bytes), reread_bytes(work, lhs, rhs, sbuf_bytes), rtol=1e-9)
    np.testing.assert_allclose(moved(28 * MIB), reread_bytes(work, lhs, rhs, 28 * MIB), rtol=0.05)
    assert moved(min(lhs, rhs) / work.batch / BLOCK_SHARE) == 0
    assert reread_pieces(work, lhs, rhs, resident_bytes=2 * MIB) == []


def test_products_choose_the_better_way_to_block():
    block = BLOCK_SHARE * 24 * MIB
    flat = reread_bytes(Work(m=16384, k=1024, n=16384), 64 * MIB, 64 * MIB, 24 * MIB)
    np.testing.assert_allclose(flat, 64 * MIB * (64 * MIB / block - 1))  # rows of one operand stay
    deep = reread_bytes(Work(m=2048, k=65536, n=2048), 512 * MIB, 512 * MIB, 24 * MIB)
    np.testing.assert_allclose(deep, 2 * 512 * MIB * (2048 / (block / 4) ** 0.5 - 1))  # a square of sums stays


def test_gathers_read_rows_of_a_table_in_hbm_not_the_table():
    program = trace(lambda table, ids: jnp.tanh(table.at[ids].get(mode="clip")), shape(100_000, 512), shape(64, dtype=jnp.int32))
    assert program.compulsory_bytes < 1.1 * (64 * 512 * 4 * 2)


def test_a_cache_is_updated_in_place():
    def decode(cache, new, position, query):
        cache = jax.lax.dynamic_update_slice(cache, new, (position, 0))
        return cache, cache @ query

    program = trace(decode, shape(4096, 1024), shape(1, 1024), shape(dtype=jnp.int32), shape(1024, 1))
    assert [row["bytes"] for row in traffic(program, "load") if row["bytes"] > 1e5] == [4096 * 1024 * 4]  # for the product
    assert sum(row["bytes"] for row in traffic(program, "store")) == 4096 * 4
    (update,) = traffic(program, "dynamic_update_slice")
    (product,) = [row for row in program.to_table() if row["kind"] == "nc_matmul"]
    load = program.to_table()[product["waits"][-1]]
    assert (update["bytes"], load["label"], load["waits"]) == (4096, "dma_copy load", (update["row"],))


def test_an_output_is_stored_after_its_last_change():
    def f(x, row):
        return jax.lax.dynamic_update_slice(jnp.sin(x), row, (0, 0))

    table = trace(f, shape(256, 1024), shape(1, 1024)).to_table()
    (store,) = [row for row in table if row["label"] == "dma_copy store"]
    (update,) = [row["row"] for row in table if "update" in row["label"]]
    assert store["waits"] == (update,)


def test_a_cache_that_a_loop_carries_is_updated_in_place():
    def decode(cache, tokens):
        def step(cache, x):
            position, row = x
            cache = jax.lax.dynamic_update_slice(cache, row[None], (position, 0))
            return cache, cache @ row

        return jax.lax.scan(step, cache, (jnp.arange(32), tokens))

    program = trace(decode, shape(16384, 1024), shape(32, 1024))  # 64 MiB
    assert not traffic(program, "spill")
    assert sum(row["bytes"] * row["repeats"] for row in traffic(program, "store")) == 32 * 16384 * 4
    per_token = hbm_bytes(program, 24 * MIB) / 32
    np.testing.assert_allclose(per_token, 40 * MIB, rtol=0.1)  # what SBUF cannot keep is read again for every token
    assert hbm_bytes(program, 128 * MIB) == program.compulsory_bytes


def test_slices_of_slices_are_loaded_once():
    def f(xs):
        inner = lambda carry, x: (carry + x, None)
        return jax.lax.scan(lambda carry, x: jax.lax.scan(inner, carry, x), jnp.zeros((8, 8)), xs)[0]

    np.testing.assert_allclose(trace(f, shape(20, 10, 8, 8)).compulsory_bytes, (200 + 1) * 8 * 8 * 4, rtol=1e-12)


def test_stacked_weights_are_loaded_slice_by_slice():
    def f(x, w):
        for layer in range(3):
            x = jnp.tanh(x @ w[layer])
        return x, w.sum()

    program = trace(f, shape(256, 1024), shape(3, 1024, 1024))
    assert [row["bytes"] for row in traffic(program, "load") if row["bytes"] > MIB][1:] == [4 * MIB] * 2
    assert program.compulsory_bytes == (2 * 256 * 1024 + 3 * 1024 * 1024 + 1) * 4  # the sum finds the slices loaded
    np.testing.assert_allclose(hbm_bytes(program, 4 * MIB) - program.compulsory_bytes, 8 * MIB)  # or most of them gone


def test_tiny_inputs_and_outputs_share_a_row():
    def f(scalars, x):
        return [jnp.sin(s) for s in scalars], x * sum(scalars)

    program = trace(f, [shape() for _ in range(20)], shape(256, 256))
    assert len(traffic(program, "load")) <= 2
    assert len(traffic(program, "store")) == 2
    assert program.compulsory_bytes == 40 * 4 + 2 * 256 * 256 * 4


def test_rows_of_whole_arrays_fill_partitions_and_those_of_parts_are_as_long_as_the_part():
    def f(x, y, z):
        return jnp.sin(x), jnp.cos(y), jnp.tan(z[:, :256]), jnp.exp(z[8:16])

    rows = {row["bytes"]: row["row_bytes"] for row in traffic(trace(f, shape(1024, 256), shape(16, 1 << 20), shape(512, 1024)), "load")}
    assert rows == {2.0**20: 8192, 2.0**26: 65536, 2.0**19: 1024, 2.0**15: 4096}


def test_loads_go_out_one_step_ahead_and_stores_wait_for_their_data():
    def f(x, ws):
        for w in ws:
            x = jnp.tanh(x @ w)
        return x

    rows = trace(f, shape(256, 512), [shape(512, 512) for _ in range(4)]).to_table()
    loads = [row["row"] for row in rows if row["label"] == "dma_copy load"]
    products = [row["row"] for row in rows if row["kind"] == "nc_matmul"]
    assert all(load < product for load, product in zip(loads[1:], products, strict=False))
    assert all(rows[load]["waits"] == () for load in loads)
    (store,) = [row for row in rows if row["label"] == "dma_copy store"]
    assert rows[store["waits"][0]]["label"] == "activation evacuate+tanh"
