import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trn_jax.validation import functions
from trn_jax.validation.measurement import Measurement
from trn_jax.validation.sizes import Missing
from trn_jax.validation.workloads import workload_of


def row(workload, shape="", **columns):
    columns = {"shape": shape, "dtype": "fp32", **{name: str(value) for name, value in columns.items()}}
    return Measurement(
        id="x", kind="kernel_latency", chip="trn1", preset="trainium1", workload=workload, value=1.0, unit="ms", columns=columns, extra={}
    )


@pytest.mark.parametrize(
    ("measurement", "name", "first", "outputs"),
    [
        (row("GEMM (best)", M=64, K=32, N=16), "matmul", (64, 32), [(64, 16)]),
        (row("NKIBench bmm", '{"B": 2, "K": 8, "M": 16, "N": 32}'), "bmm", (2, 16, 8), [(2, 16, 32)]),
        (row("NKIBench transpose_matmul", '{"K": 8, "M": 16, "N": 32}'), "transpose_matmul", (8, 16), [(16, 32)]),
        (row("NKIBench swiglu", '{"K": 8, "M": 16, "N": 32}'), "swiglu", (16, 8), [(16, 8)]),
        (row("NKIBench lora", '{"K": 8, "M": 16, "N": 32, "R": 4}'), "lora", (16, 8), [(16, 32)]),
        (row("fused rmsnorm+qkv", "(1,16,8)x24"), "rmsnorm_matmul", (16, 8), [(16, 24)]),
        (row("fused Mamba tutorial", "batch1 seq16 channels256 state4"), "mamba", (2, 128, 16), [(2, 128, 16)]),
        (row("NKIBench gqa_full", '{"B": 1, "N": 16, "QH": 4, "KH": 2, "D": 8}'), "attention", (4, 16, 8), [(2, 2, 16, 8)]),
        (row("fused self attention", "(16,8)"), "attention", (1, 16, 8), [(1, 1, 16, 8)]),
        (row("SD attention", "1x2x16x8"), "attention", (2, 16, 8), [(1, 2, 16, 8)]),
        (row("flash attention causal", "bs1 h2 seq64 d8"), "causal_attention", (2, 64, 8), [(1, 2, 8, 8)] * 8),
        (row("RMSNorm", "B1 H 32 S 2K"), "rms_norm", (2048, 32), [(2048, 32)]),
        (row("conv2d implicit GEMM", "N1 Cin4 Cout6 10x12 k3 valid (out 8x10)"), "conv2d", (1, 4, 10, 12), [(1, 6, 8, 10)]),
        (row("conv2d + 2x2 maxpool", "N1 Cin4 Cout6 10x12 k3"), "conv2d_maxpool", (1, 4, 10, 12), [(1, 6, 4, 5)]),
        (row("depthwise conv1d (step 1)", "N2 C4 W16 k3"), "depthwise_conv1d", (2, 4, 16), [(2, 4, 14)]),
        (row("vector add FREE_DIM=2", "n=256"), "vector_add", (128, 2), [(128, 2)]),
        (row("LayerNorm tutorial v1", "(30,16)"), "layer_norm", (30, 16), [(30, 16)]),
        (row("NKIBench rope_single_freq_apply", '{"B": 1, "H": 2, "N": 8, "D": 4}'), "rope", (4, 16), [(2, 16), (2, 16)]),
        (row("NKIBench matmul_add_rmsnorm", '{"K": 8, "M": 16, "N": 32}'), "matmul_add_rmsnorm", (16, 8), [(16, 32)]),
        (row("NKIBench add_rmsnorm_matmul", '{"K": 8, "M": 16, "N": 32}'), "add_rmsnorm_matmul", (16, 8), [(16, 32)]),
        (row("transformer block forward", hidden=16, heads=2, seq_len=8, ffn=32), "transformer_block", (8, 16), [(8, 16)]),
    ],
)
def test_a_published_name_and_its_sizes_become_a_function(measurement, name, first, outputs):
    workload = workload_of(measurement)
    assert workload.name == name
    assert workload.args[0].shape == first
    assert [x.shape for x in jax.tree.leaves(jax.eval_shape(workload.function, *workload.args))] == outputs


@pytest.mark.parametrize(
    ("measurement", "missing"),
    [
        (row("GEMM", M=64, K=32), "the size N"),
        (row("GEMM", M=64, K=32, N=8, dtype=""), "the dtype"),
        (row("GEMM", M=64, K=32, N="wide"), "'wide' is no positive number"),
        (row("transformer block forward", hidden=16, heads=2, seq_len=8), "the size ffn"),
        (row("bitonic sort"), "a definition of the workload 'bitonic sort'"),
        (row("RMSNorm-quant", "B1 H 32 S 2K LNC2"), "one logical core made of two"),
        (row("GEMM", M=64, K=32, N=8, dtype="int4"), "a format for the dtype 'int4'"),
        (row("NKIBench 14 kernels"), "average over several kernels"),
        (row("host-device transfer"), "host's link"),
    ],
)
def test_what_cannot_be_built_says_what_is_missing(measurement, missing):
    with pytest.raises(Missing, match=missing):
        workload_of(measurement)


def test_the_selective_scan_is_the_recurrence():
    rng = np.random.default_rng(0)
    delta, u = rng.uniform(0.1, 1, (2, 2, 3, 5)).astype(np.float32)
    a, b, c = (rng.normal(size=shape).astype(np.float32) for shape in ((2, 3, 4), (4, 5), (4, 5)))
    expected, state = np.zeros((2, 3, 5)), np.zeros((2, 3, 4))
    for t in range(5):
        now = (delta[:, :, t, None], u[:, :, t, None])
        state = np.exp(now[0] * a) * state + now[0] * now[1] * b[None, None, :, t]
        expected[:, :, t] = (c[None, None, :, t] * state).sum(-1)
    np.testing.assert_allclose(functions.mamba(*map(jnp.asarray, (delta, u, a, b, c))), expected, rtol=1e-4)


def test_grouped_attention_is_that_of_repeated_heads():
    q, k, v = (jax.random.normal(jax.random.key(i), (heads, 6, 4)) for i, heads in enumerate((4, 2, 2)))
    out = functions.attention(q, k, v).reshape(4, 6, 4)
    for head in range(4):
        weights = jax.nn.softmax(q[head] @ k[head % 2].T / 2.0, axis=-1)
        np.testing.assert_allclose(out[head], weights @ v[head % 2], rtol=1e-5, atol=1e-6)
