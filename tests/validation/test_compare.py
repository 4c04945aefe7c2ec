import json
import math
from pathlib import Path

import pytest
from test_workloads import row

from trn_jax import latency, load_chip, trace
from trn_jax.cli import main
from trn_jax.validation.compare import Compared, compare, summarise
from trn_jax.validation.counters import with_counters
from trn_jax.validation.frozen import frozen_rows
from trn_jax.validation.measurement import read_measurements
from trn_jax.validation.predict import Predictor
from trn_jax.validation.sizes import Missing
from trn_jax.validation.workloads import workload_of

HEADER = "id,kind,metric,chip,workload,M,K,N,dtype,value,unit,extra_json,flag"
DATA = Path(__file__).parents[2] / "data" / "measured.csv"


@pytest.fixture
def small(tmp_path):
    path = tmp_path / "small.csv"
    path.write_text(
        "\n".join(
            [
                HEADER,
                "product,kernel_latency,profile,trn1,GEMM,512,512,512,bf16,20,us,,",
                "launched,kernel_latency,nc_latency p99,trn1,GEMM,512,512,512,bf16,40,us,,",
                "rate,kernel_throughput,TFLOPS,trn1,GEMM,512,512,512,bf16,20,TFLOPS,,",
                "share,kernel_mfu,share,trn1,GEMM,512,512,512,bf16,20,%,,",
                'counted,kernel_latency,profile,trn1,GEMM,512,512,512,bf16,99,us,"{""hbm_read_bytes"": 1e9, ""hbm_write_bytes"": 1e6}",',
                "threshold,kernel_latency,profile,trn1,GEMM,512,512,512,bf16,9,us,,UPPER BOUND of a test",
                "sizeless,kernel_latency,profile,trn1,GEMM,512,512,,bf16,9,us,,",
                "foreign,kernel_latency,profile,A100,GEMM,512,512,512,bf16,9,us,,",
                "training,train_throughput,seq/s,trn1,BERT,,,,bf16,9,seq/s,,",
                "impossible,kernel_latency,profile,trn1,GEMM,512,512,512,bf16,0.1,us,,",
            ]
        )
    )
    return path


def test_every_kind_is_compared_in_its_own_unit(small):
    rows = {found.id: found for found in compare(read_measurements(small))}
    assert set(rows) == {line.split(",")[0] for line in small.read_text().splitlines()[1:]}
    seconds = rows["product"].predicted * 1e-6
    flops = 2 * 512**3
    assert rows["product"].error == pytest.approx(seconds / 20e-6 - 1)
    assert rows["product"].headroom == pytest.approx(20e-6 / seconds)
    assert rows["launched"].predicted == pytest.approx(seconds * 1e6 + 12)
    assert rows["rate"].predicted == pytest.approx(flops / seconds / 1e12)
    assert rows["rate"].headroom == pytest.approx(flops / 20e12 / seconds)
    assert rows["share"].predicted == pytest.approx(100 * flops / seconds / (2 * 128**2 * 2.8e9))
    assert rows["counted"].path == "counters"
    assert rows["counted"].predicted * 1e-6 >= 1e9 / (272e9 * 1.1)
    assert rows["counted"].function_error == pytest.approx(seconds / 99e-6 - 1)
    assert rows["impossible"].beats_bound
    assert rows["impossible"].tuned
    assert not rows["product"].tuned
    reasons = {name: found.reason for name, found in rows.items() if found.reason}
    assert reasons == {
        "sizeless": "missing: the size N",
        "foreign": "missing: a model of the chip 'A100'",
        "training": "missing: a workload of one core: train_throughput is not what one kernel takes",
    }
    summary = summarise(rows.values())
    assert (summary.rows, summary.predicted, summary.beat_bound) == (10, 6, 1)


def test_summaries_are_those_of_the_errors():
    rows = [
        Compared(id=str(e), kind="k", published=1.0, unit="s", group=group, error=e, headroom=1 / (1 + e))
        for e, group in ((0.1, "a"), (-0.3, "a"), (0.5, "b"))
    ]
    found = summarise(rows)
    assert found.median == pytest.approx(0.3)
    assert found.mean == pytest.approx(0.3)
    assert found.group_mean == pytest.approx((0.2 + 0.5) / 2)
    assert found.p90 == pytest.approx(0.5)
    assert found.bias == pytest.approx(0.1)
    assert found.not_faster == pytest.approx(2 / 3)
    assert summarise([]).mean is None


def test_counters_replace_the_bytes_and_nothing_else():
    chip = load_chip("trainium1")
    workload = workload_of(row("GEMM", M=512, K=512, N=512))
    program = trace(workload.function, *workload.args)
    own = {"hbm_read_bytes": 2 * 4 * 512**2, "hbm_write_bytes": 4 * 512**2}
    assert float(latency(with_counters(program, chip, own), chip)) == pytest.approx(float(latency(program, chip)), rel=1e-9)
    counted = with_counters(program, chip, {"hbm_read_bytes": 5e8, "hbm_write_bytes": 2e8})
    assert float(counted.compulsory_bytes) == pytest.approx(7e8)
    assert counted.structure == program.structure
    assert float(counted.flops) == float(program.flops)


def test_collectives_have_their_closed_form(tmp_path):
    path = tmp_path / "collectives.csv"
    path.write_text(
        "id,kind,chip,workload,collective,ranks,n_nodes,bytes,value,unit\n"
        "time,collective,trn1,all_reduce,all_reduce,32,1,1048576,200,us\n"
        "far,collective,trn1,all_reduce,all_reduce,64,2,1048576,200,us\n"
        "odd,collective,trn1,scan,scan,32,1,1048576,200,us\n"
        "pair,collective,inf2,all_reduce,all_reduce,2,1,8388608,160,us\n"
        "message,collective,trn1,sendrecv,sendrecv,2,1,57200000,1,ms\n"
        "other,collective,trn2,all_reduce,all_reduce,2,1,8388608,160,us\n"
    )
    time, far, odd, pair, message, other = compare(read_measurements(path))
    assert 20 < time.predicted < 400
    assert time.group == "all_reduce 32 ranks"
    assert "EFA" in far.reason
    assert "'scan'" in odd.reason
    assert pair.predicted == pytest.approx(2.09 + 8388608 / 57.2e3)
    assert message.predicted == pytest.approx(1 + 2.09e-3)
    assert "calibrated links of 2 ranks on trn2" in other.reason


def test_json_is_one_object_with_rows_and_summary(small, capsys):
    main(["validate", str(small), "--json"])
    (line,) = capsys.readouterr().out.splitlines()
    found = json.loads(line)
    assert set(found) == {"rows", "summary"}
    keys = {"id", "kind", "group", "path", "predicted", "published", "error", "used_for_calibration", "reason"}
    assert all(keys <= set(entry) for entry in found["rows"])
    assert set(found["summary"]) == {"kernel_latency", "kernel_throughput", "kernel_mfu", "train_throughput"}
    assert {"median", "mean", "p90", "bias"} <= set(found["summary"]["kernel_latency"])


def test_text_lists_rows_reasons_and_kinds(small, capsys):
    main(["validate", str(small)])
    out = capsys.readouterr().out
    for text in ("matmul 512x512 512x512", "(threshold)", "sizeless  missing: the size N", "kernel_throughput", "beat bound"):
        assert text in out


@pytest.mark.parametrize(("content", "message"), [(None, "There is no file"), ("", "is empty"), ("id,kind\n", "has no column")])
def test_a_wrong_table_ends_with_one_line(tmp_path, capsys, content, message):
    path = tmp_path / "rows.csv"
    if content is not None:
        path.write_text(content)
    with pytest.raises(SystemExit) as caught:
        main(["validate", str(path)])
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_frozen_groups_are_those_of_the_table():
    frozen, groups = frozen_rows(), {}
    for measurement in read_measurements(DATA):
        if frozen[measurement.id].group and measurement.kind != "collective":
            workload = workload_of(measurement)
            assert frozen[measurement.id].group == f"{workload.name} {workload.shape}", measurement.id
        groups.setdefault(frozen[measurement.id].group, set()).add(frozen[measurement.id].half)
    assert all(len(halves) == 1 for halves in groups.values())
    assert {half for halves in groups.values() for half in halves} == {"a", "b", ""}


def test_rows_of_one_function_are_traced_once():
    predictor = Predictor()
    first = predictor.predict(row("GEMM", M=128, K=128, N=128))
    again = predictor.predict(row("GEMM (best)", M=128, K=128, N=128, metric="nki.benchmark p99"))
    assert len(predictor.programs) == 1
    assert again.latency_s - first.latency_s == pytest.approx(12e-6)
    assert math.isfinite(first.bound_s)


def test_the_report_has_the_protocol_the_tables_and_the_reasons(small, tmp_path, capsys):
    path = tmp_path / "accuracy.md"
    main(["validate", str(small), "--report", str(path)])
    report = path.read_text()
    for text in (
        "## Protocol",
        "byte and transpose counters given",
        "tensor.rate",
        "| 1 | missing: the size N |",
        "## Every kernel row",
        "| product |",
    ):
        assert text in report
    assert "threshold" not in report.partition("## Not predicted")[0].partition("## Predicted worse")[2]
    assert "Not explained." in report  # rows of our own have no reason on file
    assert str(tmp_path) not in report


def test_every_badly_predicted_published_row_has_a_reason():
    accuracy = (DATA.parents[1] / "docs" / "accuracy.md").read_text()
    assert "Not explained." not in accuracy
    assert "## Predicted worse than" in accuracy


@pytest.mark.slow
def test_published_kernels_are_within_what_the_documentation_says():
    rows = compare([row for row in read_measurements(DATA) if row.kind != "collective"])
    counted = summarise(row for row in rows if row.path == "counters")
    assert counted.mean < 0.06
    assert counted.p90 < 0.2  # bmm_softmax, whose counters do not give the length of the DMA rows of its spills
    assert counted.median < 0.04
    every = summarise(rows)
    assert every.beat_bound == 0
    assert every.not_faster >= 0.95
    bandwidth = summarise(row for row in rows if row.kind == "memory_bw")
    assert bandwidth.mean < 0.03
    full = {row.id for row in read_measurements(DATA) if row.text("completeness") == "full" and row.preset != "trainium3"}
    wanted = [row for row in rows if row.id in full and row.kind in ("kernel_latency", "kernel_throughput", "memory_bw")]
    assert sum(row.error is not None for row in wanted) >= 0.85 * len(wanted)


def test_a_row_that_gives_its_tiles_is_timed_as_a_kernel():
    predictor = Predictor()
    paths = {}
    for name in ("vector add ROW_CHUNK=1", "vector add ROW_CHUNK=128", "vector add FREE_DIM=4", "vector add"):
        found = predictor.predict(row(name, n=1024, shape="n=1024"))
        paths[name] = (found.path, found.latency_s)
    assert [path for path, _ in paths.values()] == ["kernel"] * 3 + ["function"]
    seconds = [seconds for _, seconds in paths.values()]
    assert seconds[0] > 10 * seconds[1] > 20 * seconds[2]
    with pytest.raises(Missing, match="the last tile"):
        predictor.predict(row("vector add FREE_DIM=3", shape="n=1024"))
