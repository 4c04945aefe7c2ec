import pytest

from trn_jax import ValidationError
from trn_jax.validation.measurement import read_measurements

HEADER = "id,kind,chip,workload,value,unit"


def table(tmp_path, *lines):
    path = tmp_path / "rows.csv"
    path.write_text("\n".join(lines))
    return path


def test_rows_keep_their_columns_and_know_their_chip(tmp_path):
    first, second, third = read_measurements(
        table(
            tmp_path,
            HEADER + ",M,extra_json",
            'a,kernel_latency,trn1,GEMM,2.5,ms,64,"{""hbm_read_bytes"": 3}"',
            "b,kernel_latency,A100,GEMM,2.5,ms,,",
            "c,memory_bw,inferentia2,DMA,2.5,GB/s,,",
        )
    )
    assert (first.preset, second.preset, third.preset) == ("trainium1", "", "inferentia2")
    assert first.value == 2.5
    assert first.text("M") == "64"
    assert first.text("K") == ""
    assert first.extra == {"hbm_read_bytes": 3}


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([""], r"is empty.*at least id, kind, chip"),
        (["id,kind,chip,value"], r"has no column workload, unit\. It needs"),
        ([HEADER], r"no rows"),
        ([HEADER, "a,kernel_latency,trn9,GEMM,1,ms"], r"line 2 \(a\): unknown chip 'trn9'.*Did you mean 'trn"),
        ([HEADER, "a,kernel_latency,trn1,GEMM,fast,ms"], r"line 2 \(a\): value is 'fast'; it has to be a positive number"),
        ([HEADER, "a,kernel_latency,trn1,GEMM,-1,ms"], r"value is '-1'"),
        ([HEADER, "a,kernel_latency,trn1,GEMM,1"], r"line 2: more or fewer fields"),
        ([HEADER, "a,kernel_latency,trn1,GEMM,1,ms"] + ["a,kernel_latency,trn1,GEMM,2,ms"], r"two rows with the id 'a'"),
        ([HEADER + ",extra_json", "a,kernel_latency,trn1,GEMM,1,ms,{"], r"extra_json is no JSON"),
        ([HEADER + ",extra_json", "a,kernel_latency,trn1,GEMM,1,ms,[]"], r"has to be a JSON object"),
    ],
)
def test_a_wrong_table_says_where_and_what(tmp_path, lines, message):
    with pytest.raises(ValidationError, match=message):
        read_measurements(table(tmp_path, *lines))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ValidationError, match=r"no file .*none\.csv.*data/measured\.csv"):
        read_measurements(tmp_path / "none.csv")
