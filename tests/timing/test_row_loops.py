"""Steps that share a loop over tiles of rows: fusion of reductions, operands in PSUM, transposes, both engines, streamed attention."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trn_jax import estimate, load_chip
from trn_jax.timing.latency import latency
from trn_jax.timing.passes import DEFAULT
from trn_jax.timing.schedule import schedule
from trn_jax.timing.trace import trace

MIB = 2.0**20
CHIP = load_chip("trainium1")


def shape(*sizes, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(sizes, dtype)


def rows_of(program, *kinds):
    return [row for row in program.to_table() if row["kind"] in kinds]


def attention(q, k, v):
    return jax.nn.softmax(jnp.einsum("hsd,htd->hst", q, k), axis=-1) @ v


HEADS = [shape(4, 2048, 128)] * 3


def test_attention_is_streamed_and_its_scores_never_reach_hbm():
    program = trace(attention, *HEADS)
    assert not [row for row in program.to_table() if row["label"] in ("dma_copy spill", "dma_copy reload")]
    assert program.compulsory_bytes == 4 * 4 * 2048 * 128 * 4
    rows = [row for row in program.to_table() if row["kind"] != "act_table_load"]
    compute = [row["row"] for row in rows if row["engine"] in ("tensor", "vector", "scalar")]
    assert len({program.structure.groups[row] for row in compute}) == 1


def test_without_its_pass_attention_keeps_probabilities_in_hbm_and_the_report_says_what_streaming_bought():
    program = trace(attention, *HEADS)
    apart = program.with_passes([name for name in DEFAULT if name != "attention"])
    assert estimate(apart, CHIP).hbm_bytes > estimate(program, CHIP).hbm_bytes + 4 * 2048 * 2048 * 4
    bought_s = float(latency(apart, CHIP)) - float(latency(program, CHIP))
    assert bought_s > 0
    np.testing.assert_allclose(estimate(program, CHIP).passes["attention"], bought_s, rtol=1e-3)


def test_values_too_large_for_sbuf_are_not_streamed_past():
    program = trace(attention, *[shape(1, 16384, 128)] * 3)
    first, second = rows_of(program, "nc_matmul")
    assert program.structure.groups[first["row"]] != program.structure.groups[second["row"]]


def test_probabilities_are_transposed_on_the_array_and_scores_are_not():
    (transpose,) = rows_of(trace(attention, *HEADS), "nc_transpose")
    assert transpose["elements"] == 4 * 2048 * 2048
    assert not rows_of(trace(lambda x, w, v: jax.nn.gelu(x @ w) @ v, shape(512, 512), shape(512, 512), shape(512, 512)), "nc_transpose")


def test_the_row_maximum_is_taken_on_the_way_out_of_psum_and_the_row_sum_with_the_exponential():
    program = trace(attention, *HEADS)
    labels = {row["kind"]: row["label"] for row in rows_of(program, "tensor_scalar_reduce", "activation_reduce")}
    assert labels == {
        "tensor_scalar_reduce": "tensor_scalar_reduce evacuate+maximum",
        "activation_reduce": "activation_reduce subtract+exp+add",
    }
    assert len(rows_of(trace(attention, *HEADS, passes=()), "tensor_reduce")) == 2


def test_the_transposed_tiles_leave_psum_on_the_engine_with_less_to_do():
    program = trace(attention, *HEADS)
    table = program.to_table()
    columns = {engine: sum(r["elements"] for r in table if r["engine"] == engine) for engine in ("vector", "scalar")}
    assert 0.7 < columns["scalar"] / 1.25 / columns["vector"] < 1.4
    unbalanced = trace(attention, *HEADS, passes=("layout", "row_scalars", "row_vectors", "elementwise", "epilogue", "reductions"))
    assert float(latency(program, CHIP)) < float(latency(unbalanced, CHIP))


def test_rows_of_a_loop_take_turns_so_a_store_streams_beside_them():
    """Row by row work on one engine and a store take as long as the longer of the two, not their sum."""

    def f(x):
        y = jnp.maximum(x - x.max(-1, keepdims=True), -1.0)
        return y * y.sum(-1, keepdims=True)

    result = schedule(trace(f, shape(32768, 2048)), CHIP, overlap=1.0)
    busy = {engine: float(seconds) for engine, seconds in result.busy_s.items()}
    assert max(busy.values()) <= float(result.total_s) < 1.1 * max(busy.values())
    assert sum(busy.values()) > 1.5 * max(busy.values())


def test_an_operand_that_is_the_same_in_all_rows_takes_one_stream():
    for gain in (shape(1, 2048), shape(4096, 2048)):
        (product,) = rows_of(trace(lambda x, g: x * g, shape(4096, 2048), gain), "tensor_tensor")
        assert product["operands"] == (1.0 if gain.shape[0] == 1 else 2.0)
    halves = [shape(4096, 2048, dtype=jnp.bfloat16), shape(1, 2048, dtype=jnp.bfloat16)]
    (narrow,) = rows_of(trace(lambda x, g: x * g, *halves), "tensor_tensor")
    assert narrow["operands"] == 2.0  # N cycles as it is


def test_dependent_instructions_of_one_engine_follow_without_a_gap():
    def chain(x, y):
        for _ in range(12):
            x = jnp.maximum(x, y) * y
        return x

    result = schedule(trace(chain, shape(128, 2048), shape(128, 2048)), CHIP, overlap=1.0)
    alone = sum(float(seconds) for seconds in result.busy_s.values())
    assert float(result.total_s) < alone + 5e-6


@pytest.mark.slow
@pytest.mark.parametrize("smoothing", [0.0, 0.03])
def test_gradients_through_a_loop_over_tiles_equal_finite_differences(smoothing):
    program = trace(attention, *HEADS)
    paths = ("tensor.clock_hz", "vector.clock_hz", "scalar.clock_hz", "dma.bandwidth_bytes_per_s")
    with jax.enable_x64(True):

        def time_us(e):
            chip = CHIP.replace(
                {path: getattr(getattr(CHIP, path.split(".")[0]), path.split(".")[1]) * 2.0**x for path, x in zip(paths, e, strict=True)}
            )
            return 1e6 * latency(program, chip, smoothing=smoothing)

        gradient = jax.grad(time_us)(jnp.zeros(4))
        for index in range(4):
            step = 1e-5 * jnp.eye(4)[index]
            difference = (time_us(step) - time_us(-step)) / 2e-5
            np.testing.assert_allclose(gradient[index], difference, rtol=1e-4, atol=1e-4)


def test_a_row_maximum_of_rank_one_keeps_softmax_streaming():
    """`jax.nn.softmax` takes another maximum of each row's with -inf, as a vector; the loop over rows goes on."""

    def with_softmax(softmax):
        return lambda q, k, v: softmax(q @ k.T) @ v

    def by_hand(s):
        e = jnp.exp(s - s.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)

    qkv = [shape(4096, 128, dtype=jnp.bfloat16)] * 3
    with jax.numpy_rank_promotion("allow"):
        library, hand = (trace(with_softmax(softmax), *qkv) for softmax in (jax.nn.softmax, by_hand))
    chip = load_chip("trainium2")
    for overlap in (0.8, 1.0):
        assert float(latency(library, chip, overlap=overlap)) <= 1.02 * float(latency(hand, chip, overlap=overlap))
