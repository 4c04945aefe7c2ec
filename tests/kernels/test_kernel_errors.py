"""What a kernel may not do is refused when it is traced, with the arithmetic and what to do instead."""

import jax
import jax.numpy as jnp
import pytest

import trn_jax as trn

F32 = jnp.float32


def trace(body, *shapes, dtype=F32, **options):
    """Traces a kernel with this body."""

    @trn.kernel(**options)
    def broken(nc, *arrays):
        out = body(nc, *arrays)
        return out

    return trn.trace(broken, *(jax.ShapeDtypeStruct(shape, dtype) for shape in shapes))


def refused(body, *shapes, error=trn.ShapeError, match="", dtype=F32, **options):
    with pytest.raises(error, match=match):
        trace(body, *shapes, dtype=dtype, **options)


def test_more_than_128_partitions():
    refused(lambda nc, x: nc.load(x), (300, 4), match=r"300 partitions, but SBUF and PSUM have 128.*= 3 of them")


def test_a_vector_has_no_partitions():
    refused(lambda nc, x: nc.load(x), (300,), match=r"partitions first and free axes behind.*Reshape")


def test_product_operands_that_do_not_fit():
    wide = lambda nc, x, y: nc.nc_matmul(nc.load(x), nc.load(y))
    refused(wide, (128, 128), (128, 600), match=r"at most 512 moving columns.*has 600: cut it into -\(-600 // 512\) = 2 pieces")
    refused(wide, (128, 200), (128, 512), match=r"at most 128 stationary columns.*has 200")
    refused(wide, (128, 128), (64, 512), match=r"contracts over partitions.*128 and moving.*64")
    hbm = lambda nc, x, y: nc.nc_matmul(x, nc.load(y))
    refused(hbm, (128, 128), (128, 512), match=r"reads its operands from SBUF, but stationary is.*in HBM\)")


def test_operand_formats_that_do_not_meet():
    def mixed(nc, x):
        return nc.nc_matmul(nc.load(x), nc.tensor_copy(nc.load(x), dtype=jnp.bfloat16))

    refused(mixed, (128, 128), error=trn.FormatError, match=r"two fp32 operands, or two of 16 bits or less")


def test_a_result_must_stay_in_its_bank():
    def crossing(nc, x):
        big = nc.ndarray((128, 2, 512), buffer="psum")
        return nc.nc_matmul(nc.load(x[:, 0:128]), nc.load(x), dst=big)

    refused(crossing, (128, 512), match=r"gives \[128, 512\], but dst is")

    def wide(nc, x):
        big = nc.ndarray((128, 1024), buffer="psum")
        nc.nc_matmul(nc.load(x[:, 0:128]), nc.load(x), dst=big)

    refused(wide, (128, 1024), match="at most 512 moving columns")


def test_sbuf_overflows_with_the_arithmetic():
    def big(nc, x):
        tiles = [nc.load(x) for _ in range(3)]
        out = nc.ndarray(x.shape, buffer="hbm")
        nc.store(out, nc.tensor_tensor(tiles[0], nc.tensor_tensor(tiles[1], tiles[2], "add"), "add"))
        return out

    refused(big, (128, 20_000), match=r"needs 320,000 bytes of SBUF.*trainium1 has 196,608: .*\[128, 20000\] 80,000 \+")
    refused(big, (128, 20_000), chip="trainium2", match=r"trainium2 has 229,376")


def test_copies_of_rotating_tiles_count():
    def rotating(nc, x):
        out = nc.ndarray(x.shape, buffer="hbm")
        for i in nc.affine_range(4):
            nc.store(out[:, i, :], nc.load(x[:, i, :]))
        return out

    assert trace(rotating, (128, 4, 20_000), buffers=2).structure.issued.sbuf_bytes == 128 * 2 * 80_000
    refused(rotating, (128, 4, 20_000), buffers=3, match=r"needs 240,000 bytes")


def test_psum_has_eight_banks():
    def greedy(nc, x):
        tile = nc.load(x)
        sums = [nc.nc_matmul(tile, tile) for _ in range(9)]
        out = nc.ndarray((128, 128), buffer="hbm")
        for total in sums:
            nc.store(out, nc.tensor_copy(total))
        return out

    refused(greedy, (128, 128), match=r"needs 9 PSUM banks of 2048 bytes.*there are 8")


def test_tiles_out_of_bounds_say_what_all_iterations_cover():
    def beyond(nc, x):
        for i in nc.affine_range(4):
            nc.load(x[i * 128 : (i + 1) * 128, :])

    refused(beyond, (500, 4), match=r"from 128 i to 128 i \+ 128, which covers 0 to 512.*it has 0 to 500")
    refused(lambda nc, x: nc.load(x[::2, :]), (128, 4), match="step 2")
    refused(lambda nc, x: nc.load(x[0, 0, 0]), (128, 4), match="has 2 axes, but is indexed with 3")


def test_indices_are_not_numbers():
    def decides(nc, x):
        for i in nc.affine_range(4):
            if i == 0:
                nc.load(x)

    refused(decides, (128, 4), error=trn.ProgramError, match=r"index expression i cannot be compared.*Python's range\(\)")

    def divides(nc, x):
        for i in nc.affine_range(4):
            nc.load(x[:, i // 2 : i // 2 + 1])

    refused(divides, (128, 4), error=trn.ProgramError, match="cannot be divided")


def test_an_affine_range_cannot_carry():
    def carries(nc, x):
        total = nc.memset(nc.ndarray((128, 4)), 0.0)
        for _ in nc.affine_range(4):
            nc.tensor_tensor(total, nc.load(x), "add", dst=total)

    refused(carries, (128, 4), error=trn.ProgramError, match=r"reads what the one before left.*sequential_range")


def test_loops_that_end_early_and_tiles_that_outlive_their_loop():
    def leaves(nc, x):
        for _ in nc.affine_range(4):
            nc.load(x)
            break
        return x

    refused(leaves, (128, 4), error=trn.ProgramError, match=r"left by break")

    def outlives(nc, x):
        for _ in nc.affine_range(4):
            tile = nc.load(x)
        return nc.tensor_copy(tile)

    refused(outlives, (128, 4), error=trn.ProgramError, match=r"outside the loop at .*test_kernel_errors.py:\d+ \(outlives\)")


def test_unwritten_unread_and_unreturnable():
    refused(lambda nc: nc.tensor_copy(nc.ndarray((2, 2))), error=trn.ProgramError, match="nothing was written to it")
    refused(lambda nc, x: nc.store(x, nc.load(x)), (2, 2), error=trn.ProgramError, match="an argument of the kernel. Write to nc.ndarray")
    refused(lambda nc, x: x, (2, 2), error=trn.ProgramError, match="returns arrays that it allocated in HBM")
    refused(lambda nc, x: nc.ndarray((2, 2), buffer="hbm"), (2, 2), error=trn.ProgramError, match="never writes to it")
    refused(lambda nc, x: nc.tensor_copy(x), (2, 2), match="reads and writes SBUF and PSUM.*nc.load")


def test_names_have_a_closest_match():
    refused(lambda nc, x: nc.activation("expp", nc.load(x)), (2, 2), error=trn.ProgramError, match="Did you mean 'exp'")
    refused(lambda nc, x: nc.tensor_tensor(nc.load(x), nc.load(x), "ad"), (2, 2), error=trn.ProgramError, match="Did you mean 'add'")
    refused(lambda nc, x: nc.load(x, queue="scaler"), (2, 2), error=trn.ProgramError, match="Did you mean 'scalar'")
    refused(lambda nc, x: nc.ndarray((2, 2), buffer="sbuff"), (2, 2), error=trn.ProgramError, match="Did you mean 'sbuf'")
    refused(
        lambda nc, x: nc.tensor_tensor(nc.load(x), nc.load(x), "add", engine="scalar"),
        (2, 2),
        error=trn.ProgramError,
        match="scalar engine has no tensor_tensor. Engines that have it: vector, gpsimd",
    )


def test_options_and_settings_are_checked():
    with pytest.raises(trn.ProgramError, match="buffers=0"):
        trn.kernel(buffers=0)
    with pytest.raises(trn.ProgramError, match="kernel takes a function"):
        trn.kernel(3)

    @trn.kernel
    def fine(nc, x):
        out = nc.ndarray(x.shape, buffer="hbm")
        nc.store(out, nc.load(x))
        return out

    with pytest.raises(trn.ProgramError, match="autocast= are for traced functions"):
        trn.trace(fine, jax.ShapeDtypeStruct((2, 2), F32), autocast=trn.AutoCast("matmult"))
    program = trn.trace(fine, jax.ShapeDtypeStruct((2, 2), F32))
    assert program.with_passes(()).structure == program.structure
    with pytest.raises(trn.ProgramError, match="fine is a kernel, which keeps its own schedule: passes such as 'epilogue'"):
        program.with_passes(("epilogue",))


def test_python_loops_that_are_too_long():
    def endless(nc, x):
        for _ in range(30_000):
            nc.load(x)

    refused(endless, (2, 2), error=trn.ProgramError, match=r"more than 20000 instructions.*nc.affine_range")


def test_a_traced_number_is_an_array_not_a_setting():
    def scaled(nc, x, factor):
        return nc.tensor_scalar(nc.load(x), "multiply", factor)

    refused(scaled, (2, 2), (), match=r"one number per partition, \[2, 1\], but got arrays\[1\] \(float32\[\] in HBM\)")


def test_structured_sparsity_is_refused_with_the_reason():
    product = lambda nc, x: nc.nc_matmul(nc.load(x), nc.load(x), sparsity="4:16")
    refused(
        product, (128, 128), error=trn.UnsupportedError, match=r"sparsity='4:16'.*no time of the instruction.*zeros are then multiplied"
    )
