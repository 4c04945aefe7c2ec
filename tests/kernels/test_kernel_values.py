"""Values of kernels: slicing as NumPy's, loops as Python's, every instruction as its definition, and JAX's transformations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels.example_kernels import matmul, softmax

import trn_jax as trn
from trn_jax.kernels.arithmetic import ACTIVATIONS, ALU


def run(body, *arrays, shape=None, dtype=jnp.float32):
    """What `body(nc, *tiles in SBUF)` gives, stored to HBM."""

    @trn.kernel
    def one(nc, *arrays):
        result = body(nc, *(nc.load(array) for array in arrays))
        if result.memory == "psum":
            result = nc.tensor_copy(result)
        out = nc.ndarray(result.shape, result.dtype, buffer="hbm")
        nc.store(out, result)
        return out

    return np.asarray(one(*arrays))


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@settings(deadline=None, max_examples=15)
@given(st.data())
def test_tiles_are_cut_as_numpy_cuts(data):
    shape = data.draw(st.tuples(*[st.integers(1, 6)] * 3))
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    starts = [data.draw(st.integers(0, size - 1)) for size in shape]
    stops = [data.draw(st.integers(start + 1, size)) for start, size in zip(starts, shape, strict=True)]
    outer = tuple(slice(start, stop) for start, stop in zip(starts, stops, strict=True))
    inner = data.draw(st.integers(0, stops[1] - starts[1] - 1))

    @trn.kernel
    def cut(nc, x):
        part = nc.load(x[outer][:, inner, :])
        out = nc.ndarray(part.shape, buffer="hbm")
        nc.store(out, part)
        return out

    np.testing.assert_array_equal(cut(x), x[outer][:, inner, :])


def test_a_recorded_loop_does_what_a_python_loop_does():
    @trn.kernel
    def shifted(nc, x, recorded: bool):
        loop = nc.affine_range if recorded else range
        out = nc.ndarray((4, 6, 10), buffer="hbm")
        for i in loop(3):
            for j in loop(2):
                tile = nc.load(x[:, 2 * i + j, j + 1 : j + 11])
                nc.store(out[:, i + 3 * j, :], nc.tensor_scalar(tile, "multiply", 2.0))
        return out

    x = normal(4, 7, 12)
    np.testing.assert_array_equal(shifted(x, recorded=True), shifted(x, recorded=False))
    np.testing.assert_array_equal(shifted(x, recorded=True)[:, 4], 2 * x[:, 3, 2:12])


def test_a_sequential_loop_carries_what_is_in_tiles_before_it():
    @trn.kernel
    def running(nc, x):
        total = nc.memset(nc.ndarray((2, 3)), 0.0)
        out = nc.ndarray(x.shape, buffer="hbm")
        for i in nc.sequential_range(5):
            nc.tensor_tensor(total, nc.load(x[:, i, :]), "add", dst=total)
            nc.store(out[:, i, :], total)
        return out

    x = normal(2, 5, 3)
    np.testing.assert_allclose(running(x), np.cumsum(x, axis=1, dtype=np.float32), rtol=1e-6)


@pytest.mark.parametrize("op", sorted(ACTIVATIONS))
def test_activations_scale_and_add_before_the_function(op):
    x, bias = np.abs(normal(4, 6)) + 0.5, np.abs(normal(4, 1, seed=1))
    got = run(lambda nc, x, b: nc.activation(op, x, bias=b, scale=0.5), x, bias)
    np.testing.assert_allclose(got, ACTIVATIONS[op](jnp.asarray(x * np.float32(0.5) + bias)), rtol=2e-6, atol=1e-6)


def test_sums_come_with_an_activation():
    x = normal(4, 6)
    got = run(lambda nc, x: nc.activation_reduce("exp", x)[1], x)
    np.testing.assert_allclose(got, np.exp(x).sum(1, keepdims=True), rtol=1e-6)


@pytest.mark.parametrize("op", sorted(ALU))
def test_two_tensors_and_scalars_on_both_sides(op):
    x, y, column = np.abs(normal(4, 6)), normal(4, 6, seed=1), np.abs(normal(4, 1, seed=2))
    close = lambda got, a, b: np.testing.assert_allclose(got, np.asarray(ALU[op](a, b), np.float32), rtol=5e-7)  # XLA divides its own way
    close(run(lambda nc, x, y: nc.tensor_tensor(x, y, op), x, y), x, y)
    close(run(lambda nc, x, c: nc.tensor_scalar(x, op, c), x, column), x, np.repeat(column, 6, 1))
    got = run(lambda nc, x, c: nc.tensor_scalar(x, "add", 1.0, op, c, reverse1=True), x, column)
    close(got, np.repeat(column, 6, 1), x + np.float32(1))


def test_reductions_scans_choices_and_transposes():
    x, y = normal(4, 3, 5), normal(4, 3, 5, seed=1)
    np.testing.assert_array_equal(run(lambda nc, x: nc.tensor_reduce("maximum", x, negate=True), x), -x.max((1, 2))[:, None])
    np.testing.assert_array_equal(run(lambda nc, x: nc.tensor_reduce("minimum", x, axis=2), x), x.min(2, keepdims=True))
    np.testing.assert_array_equal(run(lambda nc, x, y: nc.select(nc.tensor_scalar(x, "greater", 0.0), x, y), x, y), np.where(x > 0, x, y))
    flat = x.reshape(4, 15)
    np.testing.assert_array_equal(run(lambda nc, x: nc.nc_transpose(x), flat), flat.T)
    got = run(lambda nc, a, b: nc.tensor_tensor_scan(a, b, 0.5, "multiply", "add"), flat, y.reshape(4, 15))
    before, expected = np.full(4, 0.5, np.float32), []
    for a, b in zip(flat.T, y.reshape(4, 15).T, strict=True):
        before = a * before + b
        expected.append(before)
    np.testing.assert_allclose(got, np.stack(expected, 1), rtol=1e-5, atol=1e-6)


def test_narrow_tiles_are_rounded_once_when_they_are_written():
    x, y = (jnp.asarray(normal(4, 64, seed=i), jnp.bfloat16) for i in (0, 1))
    got = run(lambda nc, x, y: nc.tensor_scalar(x, "multiply", 1.1, "add", 0.3), x, y)
    wide = np.asarray(x, np.float32) * np.float32(1.1) + np.float32(0.3)
    np.testing.assert_array_equal(got.view(np.uint16), wide.astype(jnp.bfloat16).view(np.uint16))


def test_a_row_is_copied_to_all_partitions_and_dma_transposes():
    @trn.kernel
    def spread(nc, x):
        rows, turned = nc.ndarray((8, 5), buffer="hbm"), nc.ndarray((5, 3), buffer="hbm")
        nc.store(rows, nc.load(x[1:2, :], partitions=8))
        nc.store(turned, nc.dma_transpose(x))
        return {"rows": rows, "turned": turned}

    x = normal(3, 5)
    got = spread(x)
    np.testing.assert_array_equal(got["rows"], np.repeat(x[1:2], 8, 0))
    np.testing.assert_array_equal(got["turned"], x.T)


def test_kernels_go_through_jit_grad_and_vmap():
    lhsT, rhs = normal(128, 128), normal(128, 512, seed=1)
    plain, kernel = matmul.plain, matmul.tiled
    np.testing.assert_array_equal(jax.jit(kernel)(lhsT, rhs), kernel(lhsT, rhs))
    loss = lambda f: lambda *args: jnp.sum(jnp.sin(f(*args)))
    for got, exact in zip(jax.grad(loss(kernel), (0, 1))(lhsT, rhs), jax.grad(loss(plain), (0, 1))(lhsT, rhs), strict=True):
        np.testing.assert_allclose(got, exact, rtol=1e-4, atol=1e-4)
    x = normal(2, 128, 40)
    np.testing.assert_allclose(jax.vmap(softmax.softmax)(x), jax.nn.softmax(x, axis=-1), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(
        trn.emulate(softmax.softmax, trn.load_chip("ideal"))(x[0]), jax.nn.softmax(x[0], axis=-1), rtol=1e-5, atol=1e-7
    )


def test_a_mask_follows_the_loop_index():
    @trn.kernel
    def causal(nc, x):
        out = nc.ndarray(x.shape, x.dtype, buffer="hbm")
        for i in nc.affine_range(2):
            for j in nc.affine_range(3):
                part = (slice(i * 8, (i + 1) * 8), slice(j * 6, (j + 1) * 6))
                masked = nc.affine_select(nc.load(x[part]), -1.0, offset=i * 8 - j * 6, partition_step=1, free_step=-1)
                nc.store(out[part], masked)
        return out

    x = np.abs(normal(16, 18))
    np.testing.assert_array_equal(causal(x), np.where(np.arange(16)[:, None] >= np.arange(18)[None, :], x, -1.0))
