"""The kernels of examples/kernels, with small arguments and the plain function each must equal."""

import sys
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

EXAMPLES = Path(__file__).parents[2] / "examples" / "kernels"
sys.path.insert(0, str(EXAMPLES))

import attention  # noqa: E402
import conv2d  # noqa: E402
import mamba  # noqa: E402
import matmul  # noqa: E402
import rmsnorm_matmul  # noqa: E402
import softmax  # noqa: E402
import vector_add  # noqa: E402

MATMULS = ("tiled", "hoisted", "blocked_free", "blocked")


class Example(NamedTuple):
    kernel: Any
    plain: Any
    shapes: tuple[tuple[int, ...], ...]
    settings: dict[str, Any] = {}
    fp32_only: bool = False


_PRODUCT = ((256, 256), (256, 1024))
_BLOCKS = {"tiles_m": 2, "tiles_n": 1, "tiles_k": 2}
EXAMPLES_BY_NAME = {
    "vector_add": Example(vector_add.vector_add, vector_add.plain, ((128 * 70,), (128 * 70,)), {"width": 16}),
    "basic": Example(matmul.basic, matmul.plain, ((128, 64), (128, 512))),
    **{name: Example(getattr(matmul, name), matmul.plain, _PRODUCT, _BLOCKS if name == "blocked" else {}) for name in MATMULS},
    "softmax": Example(softmax.softmax, softmax.plain, ((256, 300),)),
    "rmsnorm_matmul": Example(rmsnorm_matmul.rmsnorm_matmul, rmsnorm_matmul.plain, ((256, 256), (256, 512))),
    "flash_attention": Example(attention.flash_attention, attention.plain, ((1, 64, 256), (1, 64, 1024), (1, 1024, 64))),
    "conv2d": Example(conv2d.conv2d, conv2d.plain, ((128, 10, 12), (3, 3, 128, 128)), {"rows_per_load": 4}),
    "selective_scan": Example(
        mamba.selective_scan, mamba.plain, ((128, 64), (128, 64), (128, 4), (4, 64), (4, 64)), {"steps": 32}, fp32_only=True
    ),
}


def arguments(name, dtype=jnp.float32):
    """Random arguments of an example; those of the scan keep it from growing."""
    arrays = [jax.random.normal(jax.random.key(i), shape).astype(dtype) for i, shape in enumerate(EXAMPLES_BY_NAME[name].shapes)]
    if name == "selective_scan":
        arrays[0], arrays[2] = jax.nn.softplus(arrays[0]), -jnp.exp(arrays[2])
    return arrays


def structs(name, dtype=jnp.float32):
    """The same without values."""
    return [jax.ShapeDtypeStruct(shape, dtype) for shape in EXAMPLES_BY_NAME[name].shapes]
