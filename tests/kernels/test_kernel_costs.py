"""What a kernel's instructions cost where the kernel's own choice matters: fast modes, zeros, memories, the stationary side."""

import jax
import jax.numpy as jnp
import pytest

import trn_jax as trn
from trn_jax.timing.schedule import schedule

TRN1, TRN2, TRN3 = (trn.load_chip(name) for name in ("trainium1", "trainium2", "trainium3"))
X = jax.ShapeDtypeStruct((128, 512), jnp.bfloat16)


def busy_s(body, chip, kind):
    """Seconds of the rows of a kind in a kernel of one tile."""

    @trn.kernel
    def one_tile(nc, x):
        out = nc.ndarray((128, 512), jnp.bfloat16, buffer="hbm")
        nc.store(out, body(nc, nc.load(x)))
        return out

    program = trn.trace(one_tile, X)
    rows = [row for row, name in enumerate(program.structure.kinds) if name == kind]
    assert rows
    with jax.enable_x64(True):
        return float(schedule(program, chip).occupancy_s[rows[-1]])


def cycles(columns, unit):
    return max(columns + unit.overhead_cycles, unit.min_cycles) / unit.clock_hz


def filled(value, dtype):
    return lambda nc, x: nc.tensor_copy(nc.memset(nc.ndarray((128, 512), dtype), value), dtype=jnp.bfloat16)


@pytest.mark.parametrize(("value", "dtype", "columns"), [(0.0, jnp.bfloat16, 256), (1.0, jnp.bfloat16, 512), (0.0, jnp.float32, 512)])
def test_zeros_of_16_bits_are_written_two_per_cycle(value, dtype, columns):
    assert busy_s(filled(value, dtype), TRN2, "memset") == pytest.approx(cycles(columns, TRN2.vector))


@pytest.mark.parametrize(("chip", "columns"), [(TRN1, 512), (TRN2, 512), (TRN3, 256)])
def test_the_scalar_engine_of_trainium3_copies_16_bit_data_faster(chip, columns):
    copy = lambda nc, x: nc.tensor_copy(x, engine="scalar")
    assert busy_s(copy, chip, "tensor_copy") == pytest.approx(cycles(columns, chip.scalar))


def evacuated(nc, x):
    y = nc.ndarray((128, 512), jnp.bfloat16)
    nc.tensor_copy(x, dst=y)
    nc.tensor_copy(nc.nc_transpose(x[:, 0:128]), dst=y[:, 0:128])
    return y


@pytest.mark.parametrize(("chip", "columns"), [(TRN1, 128), (TRN2, 64), (TRN3, 64)])
def test_16_bit_transposes_leave_psum_at_twice_the_rate_after_v2(chip, columns):
    assert busy_s(evacuated, chip, "tensor_copy") == pytest.approx(cycles(columns, chip.vector))


def test_a_predicate_and_data_in_two_memories_are_one_stream():
    def split(nc, x):
        product = nc.nc_matmul(x[:, 0:128], x)
        return nc.tensor_copy(nc.select(x, product, product), dtype=jnp.bfloat16)

    def in_sbuf(nc, x):
        return nc.select(x, x, x)

    assert busy_s(split, TRN2, "select") == pytest.approx(cycles(512, TRN2.vector))
    assert busy_s(in_sbuf, TRN2, "select") == pytest.approx(cycles(1024, TRN2.vector))


@pytest.mark.parametrize(("stationary", "moving", "columns"), [(128, 1, 64), (1, 128, 128)])
def test_the_stationary_side_is_the_kernel_s(stationary, moving, columns):
    def product(nc, x):
        nc.nc_matmul(x[:, 0:stationary], x[:, 0:moving])
        return x

    t = TRN2.tensor
    assert busy_s(product, TRN2, "nc_matmul") == pytest.approx(columns / (t.clock_hz * t.rate))
