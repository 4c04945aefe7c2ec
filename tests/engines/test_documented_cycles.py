"""Every formula of AWS's cost tables, one row each: what is documented, and that our engines say the same.

N is columns: elements per partition. An instruction takes its documented cycles and the engine's fixed overhead (60, GpSimd 150), and no
less than the shortest interval (64), which the documentation writes as max(64, N). Sources:

    isa     NKI instruction reference, SDK 2.26, estimated cost; of topk SDK 2.32
    v2      NKI guide, Trainium/Inferentia2 architecture        v3      Trainium2 architecture        v4      Trainium3 architecture
    dma     AWS Neuron docs, DMA bandwidth guide and DMA overview
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import pytest
from stream_costs import cost

from trn_jax import load_chip
from trn_jax.engines import KINDS, Static
from trn_jax.graph.instruction import Work

TRN1, TRN2, TRN3 = chips = [load_chip(name) for name in ("trainium1", "trainium2", "trainium3")]
BF16, FP32, FP8, MX = ("bf16", "bf16"), ("fp32", "fp32"), ("fp8_e4m3", "fp8_e4m3"), ("mxfp8_e4m3fn", "mxfp8_e4m3fn")


class Row(NamedTuple):
    """One instruction under one condition; `cycles` is the documented formula."""

    name: str  # NKI's
    source: str
    engine: str
    kind: str
    cycles: object
    function: str = ""
    narrow: bool = False
    operands: float = 1.0
    chips: tuple = (TRN1, TRN2, TRN3)


N = lambda n: n
HALF, QUARTER, TWICE, EIGHT = (lambda n, c=c: c * n for c in (0.5, 0.25, 2, 8))
LATER = (TRN2, TRN3)

STREAMING = [
    # Scalar Engine
    Row("activation", "isa", "scalar", "activation", N, "exp"),
    Row("activation out of PSUM", "isa", "scalar", "activation", N, "evacuate"),
    Row("activation_reduce", "isa: max(64, N) + 64", "scalar", "activation_reduce", lambda n: n + 64),
    Row("activation reciprocal", "isa", "scalar", "activation", N, "reciprocal"),
    Row("tensor_scalar on Scalar", "isa", "scalar", "activation", N, "multiply"),
    Row("tensor_copy on Scalar", "isa", "scalar", "tensor_copy", N),
    Row("tensor_copy on Scalar, 16 bit", "v2, v3: 128 per cycle", "scalar", "tensor_copy", N, narrow=True, chips=(TRN1, TRN2)),
    Row("tensor_copy on Scalar, 16 bit", "v4: 256 per cycle", "scalar", "tensor_copy", HALF, narrow=True, chips=(TRN3,)),
    Row("tensor_copy on Scalar, 16 bit out of PSUM", "isa", "scalar", "tensor_copy", N, "evacuate", narrow=True),
    # Vector Engine
    Row("tensor_scalar", "isa", "vector", "tensor_scalar", N),
    Row("tensor_scalar, 16 bit", "isa", "vector", "tensor_scalar", N, narrow=True, chips=(TRN1,)),
    Row("tensor_scalar, 16 bit", "v3: 4 times", "vector", "tensor_scalar", QUARTER, narrow=True, chips=LATER),
    Row("tensor_scalar, fp32 out of PSUM", "isa", "vector", "tensor_scalar", N, "evacuate"),
    Row("tensor_scalar_reduce", "isa: max(64, N) + 64", "vector", "tensor_scalar_reduce", lambda n: n + 64),
    Row("tensor_tensor, one in PSUM", "isa", "vector", "tensor_tensor", N, "add"),
    Row("tensor_tensor, both in SBUF", "isa", "vector", "tensor_tensor", TWICE, "add", operands=2.0),
    *(
        Row(f"tensor_tensor {op}, 16 bit in SBUF", "isa", "vector", "tensor_tensor", N, op, narrow=True, operands=2.0)
        for op in ("add", "subtract", "multiply")
    ),
    Row("tensor_tensor maximum, 16 bit", "isa: otherwise", "vector", "tensor_tensor", TWICE, "maximum", True, 2.0, (TRN1,)),
    Row("tensor_tensor maximum, 16 bit", "v3: twice v2", "vector", "tensor_tensor", N, "maximum", True, 2.0, LATER),
    Row("scalar_tensor_tensor, otherwise", "isa", "vector", "tensor_tensor", TWICE, "multiply+add", operands=2.0),
    Row("tensor_reduce", "isa", "vector", "tensor_reduce", N, "add"),
    Row("tensor_reduce add, 16 bit", "isa", "vector", "tensor_reduce", HALF, "add", narrow=True),
    Row("tensor_reduce max, 16 bit", "isa", "vector", "tensor_reduce", HALF, "maximum", narrow=True),
    Row("tensor_reduce min, 16 bit", "isa: otherwise", "vector", "tensor_reduce", N, "minimum", narrow=True),
    Row("tensor_copy", "isa", "vector", "tensor_copy", N),
    Row("tensor_copy, 16 bit", "isa", "vector", "tensor_copy", N, narrow=True, chips=(TRN1,)),
    Row("tensor_copy, 16 bit", "v3: 4 times", "vector", "tensor_copy", QUARTER, narrow=True, chips=LATER),
    Row("tensor_copy, fp32 out of PSUM", "isa", "vector", "tensor_copy", N, "evacuate"),
    Row("tensor_copy, 16 bit out of PSUM", "isa", "vector", "tensor_copy", N, "evacuate", narrow=True, chips=(TRN1,)),
    Row("tensor_copy, 16 bit out of PSUM", "v3: 2 times", "vector", "tensor_copy", HALF, "evacuate", narrow=True, chips=LATER),
    Row("tensor_copy_predicated, both in SBUF", "isa", "vector", "select", TWICE),
    Row("tensor_copy_predicated, split over SBUF and PSUM", "isa", "vector", "select", N, "evacuate"),
    Row("memset", "isa", "vector", "memset", N),
    Row("memset, not zero, 16 bit", "isa", "vector", "memset", N, narrow=True),
    Row("memset, zero, 16 bit", "isa", "vector", "memset", HALF, "zero", narrow=True),
    Row("reciprocal", "isa", "vector", "reciprocal", EIGHT),
    Row("bn_stats", "isa", "vector", "bn_stats", N),
    Row("tensor_tensor_scan", "isa", "vector", "tensor_tensor_scan", TWICE),
    Row("max8, nc_find_index8", "isa", "vector", "max8", N),
    Row("quantize_mx", "v4: four elements per cycle", "vector", "quantize_mx", QUARTER, chips=(TRN3,)),
    # GpSimd
    Row("affine_select", "isa: 150 + N", "gpsimd", "affine_select", N),
    Row("iota", "isa: 150 + N", "gpsimd", "iota", N),
    Row("rsqrt on GpSimd", "isa: a quarter of Scalar", "gpsimd", "custom", lambda n: 4 * n),
]

# Documented, but no rule and no `trn_jax.kernel` issues it, so no engine has it.
NOT_ISSUED = {
    "nc_transpose on Vector: max(64, N)": "32 x 32 blocks only; transposes go through the Tensor Engine or DMA",
    "scalar_tensor_tensor, 16-bit subtract then multiply: N": "the passes leave 16-bit steps apart, whose own fast modes are as fast",
    "tensor_scalar, tensor_copy, 16 bit not contiguous: 2 times": "access patterns are taken to be contiguous, as a good layout makes them",
    "tensor_copy on GpSimd: max(64, N)": "copies go to Vector or Scalar",
    "tensor_tensor on GpSimd: no figure of its own": "32-bit integers only, assumed N per operand",
    "tensor_copy_dynamic_src, _dst: max(600, N)": "dynamic slices go by DMA",
    "bn_aggr: max(64, 13 N / 3)": "norms are traced as the reductions that JAX writes",
    "range_select: max(64, N)": "masks are select, or affine_select in kernels",
    "nc_stream_shuffle: max(64, N)": "no primitive moves data between partitions in this way",
    "dropout: max(64, N)": "random bits are JAX's own, drawn on GpSimd",
    "nc_match_replace8: N": "top_k is the topk of GpSimd",
    "local_gather: 150 + num_valid num_elem / C": "gathers are indirect DMA from HBM",
    "exponential (v4): N / 4": "exp is an activation in all generations",
    "rand2 (v4): N / 4": "random bits are JAX's own, drawn on GpSimd",
    "fp32 matmul with an operand of ones and zeros: up to 2 times": "operands are unknown when a program is traced",
    "background transposes (v4): close to 2 times": "no figure for a chain of a given length",
}


def cycles(row, chip, columns):
    function = row.function if row.function in KINDS[row.engine][row.kind].functions else ""
    options = {"chip": chip, "function": function, "narrow": row.narrow, "operands": row.operands}
    unit = getattr(chip, row.engine)
    return cost(row.engine, row.kind, elements=columns * unit.lanes, **options)[0] * unit.clock_hz


@pytest.mark.parametrize("columns", [1, 100, 512])
@pytest.mark.parametrize("row", STREAMING, ids=lambda row: f"{row.name} [{row.source}]")
def test_an_instruction_takes_its_documented_cycles(row, columns):
    for chip in row.chips:
        unit = getattr(chip, row.engine)
        expected = max(row.cycles(columns) + unit.overhead_cycles, getattr(unit, "min_cycles", 0.0))
        assert cycles(row, chip, columns) == pytest.approx(expected, rel=1e-9), chip.name


def test_every_kind_of_a_streaming_engine_is_in_the_table():
    """What is not has no published figure, and says so."""
    listed = {(row.engine, row.kind) for row in STREAMING}
    for engine in ("vector", "scalar", "gpsimd"):
        for name, kind in KINDS[engine].items():
            if (engine, name) not in listed:
                assert kind.basis.startswith(("assumed", "measured")) or name == "topk", name


def test_topk_takes_4_n_and_k():
    """[isa] n bf16 elements in the sixteen partitions of a core."""
    for chip in chips:
        elements = 8 * 16 * 100.0
        busy = cost("gpsimd", "topk", chip=chip, elements=elements, k=8.0)[0] * chip.gpsimd.clock_hz
        assert busy == pytest.approx(4 * 16 * 100 + 8 + chip.gpsimd.overhead_cycles)


def tensor_cycles(chip, kind, formats, function="", **sizes):
    """Columns' worth of cycles: at the rate at which they really issue."""
    with jax.enable_x64(True):
        work = Work(**{name: jnp.float64(size) for name, size in sizes.items()})
        seconds = KINDS["tensor"][kind].cost(work, chip, 0.0, Static(operand_formats=formats, function=function)).occupancy_s
        return float(seconds * chip.tensor.clock_hz * chip.tensor.rate)


PRODUCTS = [
    # (what, source, chips, formats, (stationary columns, K, moving columns), cycles)
    ("16 bit", "isa: max(min(64, stationary), moving)", chips, BF16, (128, 128, 512), 512),
    ("one moving column", "isa", chips, BF16, (128, 128, 1), 64),
    ("few of both", "isa", chips, BF16, (16, 128, 4), 16),
    ("a vector moves", "v2, worked example: about 64", chips, BF16, (128, 128, 1), 64),
    ("a vector is stationary", "v2, worked example: about 128", chips, BF16, (1, 128, 128), 128),
    ("a load of 128 columns takes 32", "v2: hidden behind 64 of its product", chips, BF16, (128, 128, 1), 64),
    ("fp32", "isa: 4 times", chips, FP32, (128, 128, 512), 4 * 512),
    ("fp32, one moving column", "isa: 4 times", chips, FP32, (128, 128, 1), 4 * 64),
    ("tf32", "isa", chips, ("tf32", "tf32"), (128, 128, 512), 512),
    ("fp16", "isa", chips, ("fp16", "fp16"), (128, 128, 512), 512),
    ("fp8", "v2: as bf16", [TRN1], FP8, (128, 256, 512), 2 * 512),
    ("fp8 double row", "v3: K = 256 in the time of 128", LATER, FP8, (128, 256, 512), 512),
    ("fp8 double row, K = 128", "v3: nothing in the second row", LATER, FP8, (128, 128, 512), 512),
    ("fp8_e3m4", "v3: at the 16-bit rate", LATER, ("fp8_e3m4", "fp8_e3m4"), (128, 256, 512), 2 * 512),
    ("MX", "v4: K = 512 in the time of 128", [TRN3], MX, (128, 512, 512), 512),
    ("MXFP4", "v4: as MXFP8", [TRN3], ("mxfp4_e2m1fn", "mxfp4_e2m1fn"), (128, 512, 512), 512),
]


@pytest.mark.parametrize(("what", "source", "on", "formats", "sizes", "expected"), PRODUCTS, ids=lambda x: x if isinstance(x, str) else "")
def test_a_product_of_a_kernel_takes_its_documented_cycles(what, source, on, formats, sizes, expected):
    m, k, n = sizes
    for chip in on:
        assert tensor_cycles(chip, "nc_matmul", formats, "nc_matmul", m=m, k=k, n=n) == pytest.approx(expected), chip.name


def test_a_traced_product_holds_the_better_of_its_operands():
    for sizes in ({"m": 1, "n": 128}, {"m": 128, "n": 1}):
        assert tensor_cycles(TRN2, "nc_matmul", BF16, "", k=128, **sizes) == pytest.approx(64)


@pytest.mark.parametrize(
    ("on", "formats", "sizes", "expected"),
    [
        (chips, BF16, (128, 128), 128),  # isa: max(P, min(64, F))
        (chips, BF16, (128, 1), 128),
        (chips, BF16, (16, 128), 64),
        (chips, BF16, (16, 32), 32),
        ([TRN1], FP32, (128, 128), 4 * 128),  # assumed: the passes of a product
        (LATER, FP32, (128, 128), 2 * 128),  # v3: transpose mode, twice as fast
    ],
)
def test_a_transpose_takes_its_documented_cycles(on, formats, sizes, expected):
    partitions, columns = sizes
    for chip in on:
        assert tensor_cycles(chip, "nc_transpose", formats, m=partitions, n=columns) == pytest.approx(expected), chip.name


GB = 1e9
HUGE = 2.0**34
TRANSFERS = [
    # (what, source, chip, kind, bytes, bytes of a row, crosses HBM, seconds)
    ("rate of a core", "dma: 272 GB/s", TRN1, "dma_copy", HUGE, HUGE, 1.0, HUGE / (272 * GB)),
    ("rate of a core, stack shared", "dma: 368 GB/s; HBM: 2.9 TB/s", TRN2, "dma_copy", HUGE, HUGE, 1.0, HUGE / (362.5 * GB)),
    ("rate of a core", "dma: 528 GB/s", TRN3, "dma_copy", HUGE, HUGE, 1.0, HUGE / (528 * GB)),
    ("a DMA instruction", "v3: about 600 ns", TRN2, "dma_copy", 4.0, 4.0, 1.0, 0.6e-6),
    ("transpose from HBM", "v3: up to 90 %", TRN2, "dma_transpose", HUGE, HUGE, 1.0, HUGE / (0.9 * 362.5 * GB)),
    ("transpose inside SBUF", "v3: up to 50 %", TRN2, "dma_transpose", HUGE, HUGE, 0.0, HUGE / (0.5 * 362.5 * GB)),
]


@pytest.mark.parametrize(("what", "source", "chip", "kind", "size_bytes", "row_bytes", "hbm", "seconds"), TRANSFERS)
def test_a_transfer_takes_its_documented_time(what, source, chip, kind, size_bytes, row_bytes, hbm, seconds):
    occupancy_s, latency_s, _ = cost("dma", kind, chip=chip, bytes=size_bytes, row_bytes=row_bytes, hbm=hbm)
    assert occupancy_s == pytest.approx(seconds, rel=0.01)
    assert latency_s - occupancy_s == pytest.approx(1.3e-6)  # dma: fixed cost of a transfer


@pytest.mark.parametrize(("row_bytes", "least", "most"), [(256.0, 0.1, 0.5), (512.0, 0.21, 0.7), (2048.0, 0.8, 0.95), (4096.0, 0.9, 1.0)])
def test_short_rows_are_slower(row_bytes, least, most):
    """[dma] 4 KiB saturate, 2 KiB are recommended, below 256 B overheads dominate; a single transfer is slower than queued ones."""
    long, short = (cost("dma", "dma_copy", chip=TRN2, bytes=HUGE, row_bytes=size)[0] for size in (HUGE, row_bytes))
    assert least < long / short <= most


def test_what_has_no_published_figure_says_so():
    for engine, kind in (("gpsimd", "sort"), ("gpsimd", "gather"), ("gpsimd", "scatter"), ("gpsimd", "rng"), ("vector", "rng")):
        assert KINDS[engine][kind].basis.startswith("assumed")
    assert all(reason for reason in NOT_ISSUED.values())
    missing = {"bn_aggr", "range_select", "dropout", "local_gather", "exponential", "rand2", "nc_match_replace8", "tensor_copy_dynamic_src"}
    assert missing.isdisjoint(kind for kinds in KINDS.values() for kind in kinds)
