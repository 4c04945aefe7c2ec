"""Workloads: which JAX function a published name stands for, and the shapes of its arguments.

A row of `WORKLOADS` is a pattern on the published name and a builder; the first pattern that is found counts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from trn_jax.graph.instruction import PARTITIONS
from trn_jax.validation import functions as f
from trn_jax.validation.attention import attention_of
from trn_jax.validation.figure import SECONDS
from trn_jax.validation.measurement import Measurement
from trn_jax.validation.sizes import Missing, Sizes, numbers_of, sizes_of
from trn_jax.validation.workload import Workload, dtype_of, made

FFN_STEP = 256  # of Llama's feed-forward widths


def workload_of(row: Measurement) -> Workload:
    """The workload of a row.

    Raises:
        Missing: With the missing figure, or the reason why there is no workload of one core.
    """
    for pattern, build in WORKLOADS:
        if re.search(pattern, row.workload, re.IGNORECASE):
            return build(row, sizes_of(row))
    raise Missing(f"a definition of the workload {row.workload!r}")


def _matmul(row: Measurement, s: Sizes) -> Workload:
    m, k, n = s["M"], s["K"], s["N"]
    function = f.matmul_int8 if dtype_of(row) == jnp.int8 else f.matmul
    return made(row, "matmul", function, (m, k), (k, n), operations=2.0 * m * k * n)


def _batched(name: str, function: Callable[..., Any], row: Measurement, s: Sizes) -> Workload:
    b, m, k, n = s["B"], s["M"], s["K"], s["N"]
    return made(row, name, function, (b, m, k), (b, k, n), operations=2.0 * b * m * k * n)


def _product(name: str, function: Callable[..., Any], shapes: str, row: Measurement, s: Sizes) -> Workload:
    """Arguments by the letters of their axes, e.g. "MK KN 1N"."""
    dims = [tuple(1 if letter == "1" else s[letter] for letter in letters) for letters in shapes.split()]
    return made(row, name, function, *dims)


def _rmsnorm_qkv(row: Measurement, s: Sizes) -> Workload:
    """(batch, tokens, hidden)xoutputs."""
    numbers = numbers_of(row)
    if len(numbers) != 4:
        raise Missing("the shape (batch, tokens, hidden)xoutputs")
    batch, tokens, hidden, outputs = numbers
    return made(row, "rmsnorm_matmul", f.rmsnorm_matmul, (batch * tokens, hidden), (hidden, outputs))


def _elementwise(name: str, function: Callable[..., Any], count: int, row: Measurement, s: Sizes) -> Workload:
    return made(row, name, function, *[(s["M"], s["N"])] * count)


def _rows(name: str, function: Callable[..., Any], extra: int, row: Measurement, s: Sizes) -> Workload:
    """An operation along rows, with `extra` arguments of one row; the shape is M and N, tokens S and hidden H, or (rows, columns)."""
    if "lnc2" in f"{row.text('shape')} {row.text('instance')} {row.text('flag')} {row.text('metric')}".lower():
        raise Missing("a model of one logical core made of two (LNC2)")
    if "S" in s and "H" in s:
        m, n = s.either(["B"], 1) * s["S"], s["H"]
    elif "M" not in s and len(numbers_of(row)) == 2:
        m, n = numbers_of(row)
    else:
        m, n = s["M"], s["N"]
    return made(row, name, function, (m, n), *[(1, n)] * extra)


def _rope(row: Measurement, s: Sizes) -> Workload:
    tokens = s.either(["B"], 1) * s["H"] * s["N"]
    if s["D"] % 2:
        raise Missing(f"a meaning of rotary positions of {s['D']} numbers, which are no pairs")
    return made(row, "rope", f.rope, (s["D"], tokens), (s["D"] // 2, tokens), (s["D"] // 2, tokens))


def _mamba(row: Measurement, s: Sizes) -> Workload:
    channels, tokens, states = s.first("channels", "C"), s.first("seq", "seq_len", "M"), s.first("state", "S")
    batch = s.either(["batch"], 1)
    blocks, width = -(-batch * channels // PARTITIONS), min(PARTITIONS, batch * channels)
    shapes = [(blocks, width, tokens)] * 2 + [(blocks, width, states)] + [(states, tokens)] * 2
    return made(row, "mamba", f.mamba, *shapes)


def _convolution(name: str, function: Callable[..., Any], row: Measurement, s: Sizes) -> Workload:
    """N1 Cin256 Cout256 224x224 k3."""
    image = re.search(r"(\d+)x(\d+)", row.text("shape"))
    if image is None:
        raise Missing("the size of the image, such as 224x224")
    height, width = int(image[1]), int(image[2])
    n, c_in, c_out, k = s["N"], s["Cin"], s["Cout"], s["k"]
    if k > min(height, width):
        raise Missing(f"a meaning of a window of {k} over an image of {height}x{width}")
    operations = 2.0 * n * c_in * c_out * k * k * (height - k + 1) * (width - k + 1)
    return made(row, name, function, (n, c_in, height, width), (c_out, c_in, k, k), operations=operations)


def _conv1d(row: Measurement, s: Sizes) -> Workload:
    return made(row, "depthwise_conv1d", f.depthwise_conv1d, (s["N"], s["C"], s["W"]), (s["C"], s["k"]))


def _vector_add(row: Measurement, s: Sizes) -> Workload:
    n = s.first("n", "N")
    across = PARTITIONS if n % PARTITIONS == 0 else 1
    return made(row, "vector_add", f.vector_add, *[(across, n // across)] * 2)


def _block(row: Measurement, s: Sizes) -> Workload:
    """A width of the feed-forward that is not given is Llama's, 8/3 of the hidden one: operations per second hardly depend on it."""
    hidden, heads, tokens = s["hidden"], s["heads"], s["seq_len"]
    ffn = s["ffn"] if "ffn" in s or row.unit in SECONDS else FFN_STEP * math.ceil(8 * hidden / (3 * FFN_STEP))
    shapes = [(tokens, hidden), (hidden, 3 * hidden), (hidden, hidden), (hidden, ffn), (hidden, ffn), (ffn, hidden)]
    operations = 2.0 * tokens * (4 * hidden**2 + 3 * hidden * ffn) + 4.0 * tokens**2 * hidden
    return made(row, "transformer_block", partial(f.transformer_block, heads=heads), *shapes, operations=operations)


def _stream(row: Measurement, s: Sizes) -> Workload:
    """A long read: the rate does not depend on the length any more."""
    if row.kind != "memory_bw":
        raise Missing("a workload: the fixed cost of a DMA is one number of the chip file")
    arg = jax.ShapeDtypeStruct((65536, 4096), jnp.float32)
    return Workload(name="stream_read", shape="1 GiB", function=f.stream_read, args=(arg,), moved_bytes=4.0 * 65536 * 4096)


def _no_workload(reason: str) -> Callable[[Measurement, Sizes], Workload]:
    def build(row: Measurement, s: Sizes) -> Workload:
        raise Missing(reason)

    return build


WORKLOADS: tuple[tuple[str, Callable[[Measurement, Sizes], Workload]], ...] = (
    (r"trnblas|dispatch", _no_workload("the dispatch overhead of the framework, which the figure includes")),
    (r"host-device", _no_workload("the rate of the host's link, which no chip file has")),
    (r"\d+ kernels", _no_workload("a workload: the figure is an average over several kernels")),
    (r"conv1d", _conv1d),
    (r"conv2d.*pool", partial(_convolution, "conv2d_maxpool", f.conv2d_maxpool)),
    (r"conv2d", partial(_convolution, "conv2d", f.conv2d)),
    (r"matmul_add_rmsnorm", partial(_product, "matmul_add_rmsnorm", f.matmul_add_rmsnorm, "MK KN MN 1N")),
    (r"add_rmsnorm_matmul", partial(_product, "add_rmsnorm_matmul", f.add_rmsnorm_matmul, "MK MK 1K KN")),
    (r"rmsnorm_matmul", partial(_product, "rmsnorm_matmul", f.rmsnorm_matmul, "MK KN")),
    (r"rmsnorm.?qkv", _rmsnorm_qkv),
    (r"transpose_matmul", partial(_product, "transpose_matmul", f.transpose_matmul, "KM KN")),
    (r"bmm_softmax", partial(_batched, "bmm_softmax", f.matmul_softmax)),
    (r"\bbmm\b", partial(_batched, "bmm", f.matmul)),
    (r"swiglu", partial(_product, "swiglu", f.swiglu, "MK KN KN NK")),
    (r"\blora\b", partial(_product, "lora", f.lora, "MK KN KR RN")),
    (r"transformer block", _block),
    (r"attention|\bgqa|\bsdpa?\b|flash|self.?attn", attention_of),
    (r"\bgemm\b|matmul", _matmul),
    (r"adamw", partial(_elementwise, "adamw", f.adamw, 4)),
    (r"\bsilu\b", partial(_elementwise, "silu", f.silu, 1)),
    (r"softmax", partial(_rows, "softmax", f.softmax, 0)),
    (r"layer.?norm", partial(_rows, "layer_norm", f.layer_norm, 2)),
    (r"rms.?norm", partial(_rows, "rms_norm", f.rms_norm, 0)),
    (r"\brope", _rope),
    (r"mamba", _mamba),
    (r"(vector|tensor).add", _vector_add),
    (r"read stream|^dma$", _stream),
)
