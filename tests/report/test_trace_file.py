import json
from collections import defaultdict

import jax
import jax.numpy as jnp
import pytest

import trn_jax
from trn_jax.graph.instruction import ENGINES


@pytest.fixture(scope="session")
def trace_of(tmp_path_factory):
    def read(report):
        return json.loads(report.save_trace(tmp_path_factory.mktemp("trace") / "trace.json").read_text())["traceEvents"]

    return read


def tracks(events):
    """Track name to its slices as (begin, end) in microseconds, in the order of the file."""
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    slices = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            slices[names[event["tid"]]].append(event)
    return slices


def test_slices_of_an_engine_never_overlap(any_report, trace_of):
    slices = tracks(trace_of(any_report))
    for engine in ENGINES:
        spans = [(event["ts"], event["ts"] + event["dur"]) for event in slices[engine]]
        assert all(end <= begin for (_, end), (begin, _) in zip(spans, spans[1:], strict=False)), engine
        assert all(begin >= 0 for begin, _ in spans)


def test_slices_of_an_engine_add_up_to_its_busy_time(any_report, trace_of):
    slices = tracks(trace_of(any_report))
    for engine in ENGINES:
        total_s = sum(event["dur"] for event in slices[engine]) * 1e-6
        assert total_s == pytest.approx(any_report.engines[engine].busy_s, rel=1e-9, abs=1e-18), engine


def test_the_last_slice_ends_at_the_latency(any_report, trace_of):
    slices = tracks(trace_of(any_report))
    latency_us = any_report.latency_s * 1e6
    (whole,) = slices["program"]
    assert (whole["ts"], whole["dur"]) == (0.0, latency_us)
    last = max(event["ts"] + event["dur"] for engine in ENGINES for event in slices[engine])
    assert last == pytest.approx(latency_us, rel=1e-9)


def test_busy_and_waiting_fill_an_engine_up_to_its_last_slice(any_report, trace_of):
    slices = tracks(trace_of(any_report))
    for engine in ENGINES:
        if slices[engine]:
            end = max(event["ts"] + event["dur"] for event in slices[engine])
            total = sum(event["dur"] for event in slices[engine] + slices[f"{engine} waiting"])
            assert total == pytest.approx(end, rel=1e-6), engine


def test_a_slice_says_what_it_is(layer, chip, trace_of):
    from trn_jax.report.estimate import estimate

    slices = tracks(trace_of(estimate(layer, chip)))
    (product,) = slices["tensor"]
    assert product["name"] == product["cat"] == product["args"]["kind"] == "nc_matmul"
    assert product["args"]["source"] == "hand.py:1 (f)"
    assert (product["args"]["m"], product["args"]["k"], product["args"]["n"]) == (512.0, 512.0, 2048.0)
    assert [event["args"]["moved_bytes"] for event in slices["dma"]] == [2e6, 4e6]
    assert {event["name"] for event in slices["vector waiting"]} == {"waits for activation"}


def test_a_loop_is_one_iteration_and_one_slice_for_the_others(nested, chip, trace_of):
    from trn_jax.report.estimate import estimate

    slices = tracks(trace_of(estimate(nested, chip)))
    first, inner, outer = slices["tensor"]
    assert first["cat"] == "nc_matmul"
    assert inner["dur"] == pytest.approx(11 * first["dur"])
    assert outer["dur"] == pytest.approx(19 * 12 * first["dur"])
    assert outer["args"]["iterations"] == 19
    assert len(slices["loops"]) == 2


def test_counters_return_to_zero_and_hold_the_rates(layer, chip, trace_of):
    from trn_jax.report.estimate import estimate

    report = estimate(layer, chip)
    values = defaultdict(list)
    for event in trace_of(report):
        if event["ph"] == "C":
            values[event["name"]].append(event["args"]["value"])
    bandwidth, utilisation = values["HBM bandwidth (GB/s)"], values["Tensor Engine utilisation (%)"]
    assert bandwidth[1::2] == [0.0, 0.0]
    assert utilisation[1::2] == [0.0]
    assert 100 < bandwidth[0] < 368
    assert utilisation[0] == pytest.approx(100 * report.mfu * report.latency_s / report.engines["tensor"].busy_s)


def test_busy_counters_have_the_mean_utilisation(any_report, trace_of):
    values = defaultdict(list)
    for event in trace_of(any_report):
        if event["ph"] == "C" and event["name"].endswith("busy (%)"):
            values[event["name"].split()[0]].append(event["args"]["value"])
    for engine, found in values.items():
        assert found[-1] == 0
        assert sum(found[:-1]) / len(found[:-1]) == pytest.approx(100 * any_report.engines[engine].utilisation, rel=1e-6)
        assert -1e-9 <= min(found) <= max(found) <= 100 + 1e-6


def test_a_kernel_has_a_track_for_each_queue(chip, trace_of):
    @trn_jax.kernel
    def add(nc, x, y):
        out = nc.ndarray(x.shape, x.dtype, buffer="hbm")
        for i in nc.affine_range(x.shape[1] // 256):
            part = slice(i * 256, (i + 1) * 256)
            nc.store(out[:, part], nc.tensor_tensor(nc.load(x[:, part]), nc.load(y[:, part], queue="scalar"), "add"))
        return out

    size = jax.ShapeDtypeStruct((128, 8192), jnp.float32)
    report = trn_jax.estimate(trn_jax.trace(add, size, size), chip)
    slices = tracks(trace_of(report))
    queues = [name for name in slices if name in report.program.structure.issued.lanes and name not in ENGINES]
    assert len(queues) >= 2
    for queue in queues:
        spans = [(event["ts"], event["ts"] + event["dur"]) for event in slices[queue]]
        assert all(end <= begin for (_, end), (begin, _) in zip(spans, spans[1:], strict=False))
    total_s = sum(event["dur"] for queue in queues for event in slices[queue]) * 1e-6
    assert total_s >= report.engines["dma"].busy_s  # queues issue their transfers side by side, and share the engines that move them
