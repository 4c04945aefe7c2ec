"""The schedule of a kernel is its own: waits as the buffers imply, queues in order, loops as if written out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kernels.example_kernels import matmul, softmax

import trn_jax as trn
from trn_jax.engines import KINDS, Static
from trn_jax.kernels import lower

CHIP = trn.load_chip("trainium2")


def shape(*sizes, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(sizes, dtype)


@trn.kernel
def copied(nc, x, tiles: int = 8, queue: str = "sync:1"):
    """Loads, doubles and stores one tile after the other."""
    width = x.shape[1] // tiles
    out = nc.ndarray(x.shape, x.dtype, buffer="hbm")
    for i in nc.affine_range(tiles):
        part = slice(i * width, (i + 1) * width)
        nc.store(out[:, part], nc.tensor_scalar(nc.load(x[:, part]), "multiply", 2.0), queue=queue)
    return out


def waits(program):
    """(kind and function, waits) of every row."""
    return [(row.label, row.waits) for row in program.structure.rows]


def alone_s(instruction):
    """Seconds of one instruction from start to visible result."""
    static = Static(narrow=instruction.narrow, function=instruction.function, operand_formats=instruction.operand_formats)
    kind = KINDS[instruction.engine][instruction.kind]
    if static.function not in kind.functions:
        static = Static(narrow=static.narrow, operand_formats=static.operand_formats)
    return float(kind.cost(instruction.work, CHIP, 0.0, static).latency_s)


def test_one_tile_after_the_other_is_the_sum_of_what_it_waits_for():
    program = trn.trace(matmul.basic, shape(128, 128), shape(128, 512))
    labels = ["dma_copy load", "dma_copy load", "nc_matmul", "tensor_copy evacuate", "dma_copy store"]
    assert waits(program) == list(zip(labels, [(), (), (1,), (2,), (3,)], strict=True))
    first, second, *chain = program.instructions
    busy = float(KINDS["dma"]["dma_copy"].cost(first.work, CHIP, 0.0, Static()).occupancy_s)
    expected = busy + alone_s(second) + sum(map(alone_s, chain))
    np.testing.assert_allclose(float(trn.latency(program, CHIP)), expected, rtol=1e-6)


def test_a_single_buffer_makes_the_load_wait_for_the_last_reader():
    single, double = (waits(trn.trace(copied.replace(buffers=buffers), shape(128, 64))) for buffers in (1, 2))
    load, compute, store = 0, 1, 2
    assert single[3 * 3 + load] == ("dma_copy load", (3 * 2 + compute,))
    assert double[3 * 3 + load] == ("dma_copy load", (3 * 1 + compute,))
    assert single[3 * 3 + compute][1] == (3 * 2 + store, 3 * 3 + load)
    assert double[3 * 3 + compute][1] == (3 * 1 + store, 3 * 3 + load)


def test_sums_in_psum_follow_each_other_without_a_wait():
    program = trn.trace(matmul.tiled, shape(512, 128), shape(512, 512))
    products = [(index, row.waits) for index, row in enumerate(program.structure.rows) if row.label == "nc_matmul"]
    assert len(products) == 4
    assert all(program.structure.engines[wait] == "dma" for _, found in products for wait in found)


def test_a_store_on_the_queue_of_the_loads_holds_them_up():
    chip = CHIP.replace({"vector.clock_hz": 1e8})
    times = {queue: float(trn.latency(trn.trace(copied, shape(128, 4096), queue=queue), chip)) for queue in ("sync:0", "sync:1")}
    assert times["sync:1"] < times["sync:0"]
    waiting = waits(trn.trace(copied, shape(128, 64), queue="scalar"))
    assert waiting[2] == ("dma_copy store", (1,))


def test_a_queue_of_an_engine_waits_for_what_the_engine_does():
    @trn.kernel
    def triggered(nc, x):
        tile = nc.activation("exp", nc.load(x[:, 0:4]))
        late = nc.load(x[:, 4:8], queue="scalar")
        out = nc.ndarray((128, 4), buffer="hbm")
        nc.store(out, nc.tensor_tensor(tile, late, "add"))
        return out

    found = waits(trn.trace(triggered, shape(128, 8)))
    assert [label for label, _ in found[:4]] == ["dma_copy load", "act_table_load exp_and_log", "activation exp", "dma_copy load"]
    assert found[3] == ("dma_copy load", (2,))


def test_queues_share_the_rate_of_the_dma_engines():
    @trn.kernel
    def spread(nc, x, queues: int):
        out = nc.ndarray(x.shape, x.dtype, buffer="hbm")
        for i in range(16):
            part = slice(i * 4096, (i + 1) * 4096)
            nc.store(out[:, part], nc.load(x[:, part], queue=f"sync:{i % queues}"), queue=f"sync:{i % queues}")
        return out

    for queues in (1, 4):
        program = trn.trace(spread, shape(128, 65536, dtype=jnp.bfloat16), queues=queues)
        report = trn.estimate(program, CHIP)
        assert report.engines["dma"].utilisation <= 1 + 1e-9
        assert report.latency_s >= 2 * 128 * 65536 * 2 / (float(CHIP.dma.bandwidth_bytes_per_s) * float(CHIP.dma.rate))


@pytest.mark.parametrize("buffers", [1, 2, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("kernel", "shapes"),
    [
        (matmul.tiled, (shape(2048, 256), shape(2048, 1024))),
        pytest.param(matmul.hoisted, (shape(1024, 1024), shape(1024, 2048)), marks=pytest.mark.slow),
        pytest.param(softmax.softmax, (shape(4096, 256),), marks=pytest.mark.slow),
        (copied, (shape(128, 51200),)),
    ],
    ids=["tiled", "hoisted", "softmax", "copied"],
)
def test_a_loop_takes_what_it_takes_written_out(kernel, shapes, buffers, monkeypatch):
    settings = {"tiles": 100} if kernel is copied else {}
    kernel = kernel.replace(buffers=buffers)
    monkeypatch.setattr(lower, "WRITTEN_OUT_ROWS", 24)
    looped = trn.trace(kernel, *shapes, **settings)
    monkeypatch.setattr(lower, "WRITTEN_OUT_ROWS", 10**6)
    written = trn.trace(kernel, *shapes, **settings)
    assert looped.structure.loops
    assert not written.structure.loops
    for column in ("bytes", "m"):
        totals = [float((program.table[column] * program.repeats).sum()) for program in (looped, written)]
        assert totals[0] == totals[1]
    tolerance = 0.03 if buffers > 1 else 0.08  # with one buffer, what follows an inner loop waits for all of its last iteration
    np.testing.assert_allclose(float(trn.latency(looped, CHIP)), float(trn.latency(written, CHIP)), rtol=tolerance)


def test_time_is_differentiable_in_the_chip_and_scales_with_the_unit_of_time():
    program = trn.trace(softmax.softmax, shape(1024, 512))
    elasticities = trn.elasticity(program, CHIP)
    assert abs(elasticities.time_power_sum - 1) < 1e-9
    assert elasticities["hbm.bandwidth_bytes_per_s"] < 0
    path, step = "vector.clock_hz", 1e-4
    at = lambda factor: float(trn.latency(program, CHIP.replace({path: factor * float(CHIP.get(path))})))
    numeric = (np.log(at(1 + step)) - np.log(at(1 - step))) / (2 * step)
    np.testing.assert_allclose(elasticities[path], numeric, atol=2e-3)


def test_report_bound_and_slack_know_the_kernel():
    program = trn.trace(matmul.tiled, shape(256, 256), shape(256, 512))
    report = trn.estimate(program, CHIP)
    assert report.latency_s == pytest.approx(float(trn.latency(program, CHIP)), rel=1e-6)
    assert report.latency_s == pytest.approx(report.concurrent_s)  # the schedule is given, so nothing is left to be serial
    assert float(trn.bound(program, CHIP)) < report.latency_s < report.serial_s
    held = program.structure.issued.sbuf_bytes
    assert report.slack_bytes["sbuf"] == float(CHIP.sbuf.size_bytes) - held
    assert report.footprint.arguments == {"lhsT": 256 * 256 * 4, "rhs": 256 * 512 * 4}
    assert report.footprint.results_bytes == 256 * 512 * 4
    assert report.slack_bytes["hbm"] == float(CHIP.hbm.size_bytes) - report.footprint.total_bytes
    small = CHIP.replace({"sbuf.size_bytes": held / 2})
    assert "CANNOT RUN: SBUF" in str(trn.estimate(program, small))
    assert report.flops == 2 * 256**2 * 512


def test_a_jitted_kernel_keeps_its_schedule():
    shapes = shape(128, 128), shape(128, 512)
    plain, jitted = trn.trace(matmul.basic, *shapes), trn.trace(jax.jit(matmul.basic), *shapes)
    assert plain.structure == jitted.structure
    assert plain.structure.issued is not None


@pytest.mark.slow
def test_smoothing_only_adds_and_shows_the_size_of_the_array():
    program = trn.trace(matmul.basic, shape(128, 128), shape(128, 512))
    times = [float(trn.latency(program, CHIP, smoothing=s)) for s in (0.0, 0.01, 0.05)]
    assert times[0] < times[1] < times[2] < times[0] * (1 + 8 * 0.05)
    assert trn.elasticity(program, CHIP, smoothing=0.05)["tensor.rows"] != 0


def test_issuing_is_every_queues_own_business():
    @trn.kernel
    def tiny(nc, x, queues: int):
        tiles = [nc.load(x[:, i : i + 1], queue=f"sync:{i % queues}") for i in range(32)]
        out = nc.ndarray((128, 1), buffer="hbm")
        nc.store(out, tiles[-1])
        return out

    one, four = (trn.estimate(trn.trace(tiny, shape(128, 32), queues=queues), CHIP) for queues in (1, 4))
    issue_s = float(CHIP.dma.issue_s)
    assert one.latency_s - four.latency_s == pytest.approx((32 - 8) * issue_s, rel=0.1)
    assert four.engines["dma"].utilisation < 1


@pytest.mark.slow
@pytest.mark.parametrize("queues", [1, 4])
def test_the_critical_path_adds_up_to_the_latency(queues):
    @trn.kernel
    def streamed(nc, x):
        out = nc.ndarray(x.shape, x.dtype, buffer="hbm")
        for i in nc.affine_range(200):
            part = slice(i * 512, (i + 1) * 512)
            nc.store(out[:, part], nc.load(x[:, part], queue="sync"), queue=f"sync:{queues - 1}")
        return out

    report = trn.estimate(trn.trace(streamed, shape(128, 200 * 512)), CHIP)
    assert report.program.structure.loops
    assert sum(row.seconds for row in report.critical_path) == pytest.approx(report.latency_s, rel=1e-5)


@pytest.mark.parametrize("path", ["vector.clock_hz", "sbuf.size_bytes", "dma.bandwidth_bytes_per_s"])
@pytest.mark.parametrize("overlap", [None, 0.5])
def test_a_batch_of_chips_may_differ_in_one_number_only(path, overlap):
    program, values = trn.trace(copied, shape(128, 4096)), [CHIP.get(path), 1.5 * CHIP.get(path)]
    batch = trn.latency(program, CHIP.replace({path: np.array(values)}), overlap=overlap)
    expected = [trn.latency(program, CHIP.replace({path: value}), overlap=overlap) for value in values]
    np.testing.assert_allclose(batch, expected, rtol=1e-6)
