"""Tables as users bring them: wrong, incomplete, from other programs. Each ends in a clear error or in a reason beside its row."""

from collections import Counter
from pathlib import Path

import pytest

from trn_jax import ValidationError
from trn_jax.cli import main
from trn_jax.validation.compare import compare
from trn_jax.validation.measurement import read_measurements
from trn_jax.validation.sizes import Missing
from trn_jax.validation.workloads import workload_of

DATA = Path(__file__).parents[2] / "data" / "measured.csv"
COLUMNS = "id,kind,chip,workload,M,K,N,shape,dtype,value,unit,extra_json,collective,ranks,bytes,n_cores".split(",")
GOOD = {"id": "a", "kind": "kernel_latency", "chip": "trn1", "workload": "GEMM", "M": 128, "K": 128, "N": 128, "dtype": "bf16"}
GOOD |= {"value": 20, "unit": "us"}
HEADER = ",".join(COLUMNS)


def line(**changes):
    cells = (str((GOOD | changes).get(column, "")).replace('"', '""') for column in COLUMNS)
    return ",".join(f'"{cell}"' for cell in cells)


def table(tmp_path, *lines, header=HEADER):
    path = tmp_path / "rows.csv"
    path.write_text("\n".join([header, *lines, ""]), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"kind": "banana"}, "banana is not what one kernel takes"),
        ({"M": "-5"}, "the size M: '-5' is no positive number"),
        ({"M": "nan"}, "the size M: 'nan' is no positive number"),
        ({"M": "0.5"}, "the size M: 0 is not positive"),
        ({"M": "1e30"}, "the arguments take .* and HBM has 32 GiB"),
        ({"M": "", "shape": '{"M": NaN}'}, "the size M: 0 is not positive"),
        ({"M": "", "shape": '{"M": [1], "N": {}}'}, "the size M$"),
        ({"M": "", "shape": '{"M": 5'}, "is no JSON"),
        ({"unit": "furlongs"}, "a meaning of the unit 'furlongs'"),
        ({"unit": "%", "workload": "softmax"}, "number of operations that % of softmax counts"),
        ({"dtype": "posit8"}, "a format for the dtype 'posit8'"),
        ({"workload": ""}, "a definition of the workload ''"),
        ({"extra_json": '{"hbm_read_bytes": -1, "hbm_write_bytes": 0}'}, "a meaning of the counter hbm_read_bytes: -1"),
        ({"extra_json": '{"hbm_read_bytes": true, "hbm_write_bytes": 0}'}, "a meaning of the counter hbm_read_bytes: True"),
        ({"extra_json": '{"transpose_flops": "many"}'}, "a meaning of the counter transpose_flops: 'many'"),
        ({"workload": "conv2d", "shape": "N1 Cin4 Cout4 2x2 k3", "N": ""}, "a window of 3 over an image of 2x2"),
        ({"workload": "conv2d", "shape": "N1 Cin0 Cout4 8x8 k3", "N": ""}, "the size Cin: 0 is not positive"),
        ({"workload": "rope", "shape": "D3 H1 N5", "N": ""}, "3 numbers, which are no pairs"),
        ({"workload": "vector add free_dim=0", "shape": "n=256"}, "tiles of FREE_DIM=0"),
        ({"workload": "transformer block", "shape": "heads 3 hidden 64 seq_len 16 ffn 64"}, "a transformer_block of 16x64.*reshape"),
        ({"kind": "collective", "collective": "all_reduce", "ranks": 8, "bytes": "many"}, "the size bytes: 'many'"),
        ({"kind": "collective", "collective": "all_reduce", "ranks": 0, "bytes": 8}, "the size ranks: '0'"),
        ({"kind": "collective", "collective": "gossip", "ranks": 8, "bytes": 8}, "a closed form of the collective 'gossip'"),
        ({"kind": "memory_bw", "workload": "DMA", "unit": "GB/s", "n_cores": "two"}, "the size n_cores: 'two'"),
        ({"chip": "MI300X"}, "a model of the chip 'MI300X'"),
        ({"chip": "A10G"}, "a model of the chip 'A10G'"),
        ({"chip": ""}, "the chip"),
    ],
    ids=lambda value: str(value)[:60] if isinstance(value, dict) else "",
)
def test_a_row_that_cannot_be_built_has_its_reason_and_the_others_are_predicted(tmp_path, capsys, changes, reason):
    path, report = table(tmp_path, line(**changes), line(id="good")), tmp_path / "report.md"
    bad, good = compare(read_measurements(path))
    assert good.error is not None
    assert bad.error is None
    with pytest.raises(Missing, match=reason):
        raise Missing(bad.reason)
    if changes.get("bytes") == "many":
        main(["validate", str(path), "--report", str(report)])
        assert "'many' is no positive number" in report.read_text()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\n\n", "is empty"),
        (b"id;kind;chip;workload;value;unit\n", "has no column id, kind, chip"),
        (",".join([*COLUMNS, "M"]).encode() + b"\n", "has two columns M"),
        (HEADER.encode() + b"\n\xe9\xff\n", "is no UTF-8: invalid continuation byte at byte"),
        ("id,kind\n".encode("utf-16"), "is no UTF-8"),
        (b"id,kind,chip,workload,value,unit\n" + b"a" * 200_000 + b",k,trn1,GEMM,1,ms\n", "is no CSV: field larger than field limit"),
        (b"id,kind,chip,workload,value,unit\n,k,trn1,GEMM,1,ms\n", "line 2: the row has no id"),
        (b"id,kind,chip,workload,value,unit\na,k,trn1,GEMM,1e400,ms\n", r"value is '1e400'; it has to be a positive number"),
    ],
)
def test_a_file_that_is_no_table_is_refused_with_what_is_wrong(tmp_path, content, message):
    path = tmp_path / "rows.csv"
    path.write_bytes(content)
    with pytest.raises(ValidationError, match=message):
        read_measurements(path)


def test_other_columns_blank_lines_spaces_and_a_byte_order_mark_are_no_trouble(tmp_path):
    header = "\ufeff" + " , ".join([*COLUMNS, "mood"])
    (row,) = read_measurements(table(tmp_path, "", line() + ",good", "", header=header))
    assert (row.id, row.text("M"), row.text("mood")) == ("a", "128", "good")


def test_a_report_that_cannot_be_written_is_refused_before_anything_is_timed(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["validate", str(DATA), "--report", str(tmp_path / "nowhere" / "report.md")])
    assert "nowhere is no directory. Make it first." in capsys.readouterr().err


def test_text_of_others_does_not_break_the_tables_of_the_report(tmp_path, capsys):
    report = tmp_path / "report.md"
    main(["validate", str(table(tmp_path, line(id="a|b"), line(id="c", workload="x | y\nz"))), "--report", str(report)])
    text = report.read_text()
    assert "| a\\|b | function |" in text
    assert "| 1 | missing: a definition of the workload 'x \\| y\\nz' |" in text


def test_few_rows_of_known_kernels_are_left_out_and_for_different_reasons():
    kinds = ("kernel_latency", "kernel_throughput", "memory_bw")
    rows = [row for row in read_measurements(DATA) if row.kind in kinds and row.text("completeness") == "full"]
    rows = [row for row in rows if row.chip in ("trn1", "trn2", "inf2")]
    reasons = Counter()
    for row in rows:
        try:
            workload_of(row)
        except Missing as missing:
            reasons[str(missing)] += 1
    assert len(rows) > 40
    assert sum(reasons.values()) <= 0.15 * len(rows)
    assert all(count <= 10 for count in reasons.values())
