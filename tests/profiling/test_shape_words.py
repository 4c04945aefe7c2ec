import jax
import jax.numpy as jnp
import pytest

from trn_jax.errors import ProgramError
from trn_jax.profiling.shapes import DTYPES, read_shape


@pytest.mark.parametrize(
    ("text", "shape", "dtype"),
    [
        ("4096x512:bf16", (4096, 512), jnp.bfloat16),
        ("7", (7,), "float32"),
        ("scalar:int32", (), "int32"),
        ("2x3x4:bool", (2, 3, 4), "bool"),
    ],
)
def test_a_shape_is_read(text, shape, dtype):
    assert read_shape(text) == jax.ShapeDtypeStruct(shape, dtype)


def test_every_dtype_traces_by_its_name():
    for name, dtype in DTYPES.items():
        assert read_shape(f"2x2:{name}").dtype == dtype


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("4x", "'4x' is no shape. Write sizes and a dtype, such as 4096x4096:bf16"),
        ("0x4:bf16", "'0x4:bf16' is no shape"),
        ("4,4", "'4,4' is no shape"),
        ("4:bf17", "unknown dtype 'bf17'. Did you mean 'bf16'"),
    ],
)
def test_what_is_no_shape_is_refused(text, message):
    with pytest.raises(ProgramError, match=message):
        read_shape(text)
