"""MX and scaled operands, cotangents in their own format, and PSUM in bf16: every fidelity against float64 oracles."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import trn_jax as trn

T2, T3 = trn.load_chip("trainium2"), trn.load_chip("trainium3")
SMALL = T3.replace({"tensor.rows": 32.0, "tensor.cols": 32.0})
FIDELITIES = ("fused", "tiled", pytest.param("systolic", marks=pytest.mark.slow))
MX = trn.AutoCast("matmult", "mxfp8_e4m3fn")


def normals(seed, shape, spread=0):
    rng = np.random.default_rng(seed)
    return jnp.asarray(rng.normal(size=shape) * np.exp2(rng.integers(-spread, spread + 1, shape)), jnp.float32)


def in_blocks(x, function, size):
    """`function` of every stretch of `size` along the last axis, in float64."""
    x = np.asarray(x, np.float64)
    parts = [function(x[..., start : start + size]) for start in range(0, x.shape[-1], size)]
    return np.concatenate(parts, axis=-1)


def mx_block(x):
    """Trainium3's rule for E4M3FN."""
    exponent = np.frexp(np.abs(x).max(-1, keepdims=True))[1] - 8
    return np.ldexp(np.ldexp(x, -exponent).astype(np.float32).astype(ml_dtypes.float8_e4m3fn).astype(np.float64), exponent)


def scaled_block(x, dtype=ml_dtypes.float8_e4m3, largest=240.0):
    """One scale for the whole array along the last axis."""
    scale = np.float32(np.abs(x).max(-1, keepdims=True).astype(np.float32) / np.float32(largest))
    return (x.astype(np.float32) / scale).astype(dtype).astype(np.float64) * scale


@pytest.mark.parametrize("fidelity", FIDELITIES)
def test_mx_blocks_lie_along_the_contraction(fidelity):
    lhs, rhs = normals(0, (3, 70), 6), normals(1, (70, 5), 6)
    want = in_blocks(lhs, mx_block, 32) @ in_blocks(rhs.T, mx_block, 32).T
    bound = 2**-20 * (np.abs(lhs) @ np.abs(rhs))
    for product in (
        trn.emulate(jnp.matmul, SMALL, autocast=MX, fidelity=fidelity)(lhs, rhs),
        trn.engines.tensor.matmul(lhs, rhs, SMALL, "mxfp8_e4m3fn", fidelity),
        trn.emulate(lambda a, b: jnp.einsum("kxm,kxn->mn", a, b), SMALL, autocast=MX, fidelity=fidelity)(
            lhs.T.reshape(7, 10, 3), rhs.reshape(7, 10, 5)
        ),
    ):
        assert (np.abs(product - want) <= bound).all()
    assert (np.abs(np.asarray(lhs @ rhs) - want) > 100 * bound).any()


def test_mx_convolutions_batches_and_bf16_operands_are_cast_too():
    x, w = normals(0, (2, 40, 6, 6)), normals(1, (4, 40, 1, 1))
    convolution = lambda x, w: jax.lax.conv_general_dilated(x, w, (1, 1), "VALID")
    pointwise = jnp.einsum("nchw,oc->nohw", trn.round_to(x, MX.to, axis=1), trn.round_to(w[:, :, 0, 0], MX.to))
    np.testing.assert_allclose(trn.emulate(convolution, SMALL, autocast=MX)(x, w), pointwise, rtol=1e-5, atol=1e-4)
    a, b = normals(2, (2, 3, 64)).astype(jnp.bfloat16), normals(3, (2, 64, 4)).astype(jnp.bfloat16)
    got = trn.emulate(lambda a, b: jnp.einsum("bmk,bkn->bmn", a, b, preferred_element_type=jnp.float32), SMALL, autocast=MX)(a, b)
    rounded = [trn.round_to(x.astype(jnp.float32), MX.to, axis=axis) for x, axis in ((a, 2), (b, 1))]
    np.testing.assert_allclose(got, jnp.einsum("bmk,bkn->bmn", *rounded), rtol=1e-5, atol=1e-5)


def test_only_chips_that_list_a_block_format_take_it():
    with pytest.raises(trn.FormatError, match=r"trainium2 has no mxfp8_e4m3fn operands; it takes "):
        trn.emulate(jnp.matmul, T2, autocast=MX)
    with pytest.raises(trn.FormatError, match="trainium1 has no fp8_e3m4 operands"):
        trn.emulate(jnp.matmul, trn.load_chip("trainium1"), autocast=trn.AutoCast("matmult", "fp8_e4m3", backward="fp8_e3m4"))
    for pair in (("fp8_e4m3", "fp8_e4m3fn"), ("mxfp8_e4m3fn", "fp8_e5m2"), ("bf16", "fp32")):
        with pytest.raises(trn.FormatError, match="cannot meet in one product"):
            trn.AutoCast("matmult", pair[0], backward=pair[1])
    with pytest.raises(trn.FormatError, match="operands of products only"):
        trn.AutoCast("all", "mxfp8_e5m2")
    with pytest.raises(trn.FormatError, match="scales of its own"):
        trn.AutoCast("matmult", "mxfp8_e5m2", scaling="tensor")
    with pytest.raises(trn.FormatError, match="Did you mean 'tensor'"):
        trn.AutoCast("matmult", "fp8_e4m3", scaling="tensors")
    ragged = lambda x, w: jax.lax.ragged_dot(x, w, jnp.array([2, 2]))
    with pytest.raises(trn.UnsupportedError, match="one dot per group"):
        trn.emulate(ragged, T3, autocast=MX)(jnp.ones((4, 32)), jnp.ones((2, 32, 3)))


def test_mx_products_take_a_quarter_of_the_time_and_their_quantisation_is_priced():
    shapes = jax.ShapeDtypeStruct((4096, 4096), jnp.float32), jax.ShapeDtypeStruct((4096, 4096), jnp.float32)

    def busy_s(autocast):
        report = trn.estimate(trn.trace(trn.emulate(jnp.matmul, T3, autocast=autocast), *shapes), T3)
        return report.engines["tensor"].busy_s

    assert busy_s(trn.AutoCast("matmult", "bf16")) / busy_s(MX) == pytest.approx(4, rel=0.01)
    program = trn.trace(trn.emulate(jnp.matmul, T3, autocast=MX), *shapes)
    assert "quantize_mx" in program.structure.kinds
    assert "quantize_mx" not in trn.trace(jnp.matmul, *shapes).structure.kinds


@pytest.mark.parametrize("fidelity", FIDELITIES)
@pytest.mark.parametrize("scaling", ["tensor", "block"])
def test_scales_come_from_the_largest_magnitude_and_are_multiplied_back(fidelity, scaling):
    lhs, rhs = normals(0, (3, 70), 8) * 1e6, normals(1, (70, 5), 8) * 1e-7
    cast = trn.AutoCast("matmult", "fp8_e4m3", scaling=scaling)
    got = trn.emulate(jnp.matmul, SMALL, autocast=cast, fidelity=fidelity)(lhs, rhs)
    if scaling == "tensor":
        whole = lambda x: scaled_block(np.asarray(x).reshape(1, -1)).reshape(x.shape)
        want = whole(lhs) @ whole(rhs)
    else:  # a block is a K tile: 32 on this array
        want = in_blocks(lhs, scaled_block, 32) @ in_blocks(rhs.T, scaled_block, 32).T
    bound = 2**-19 * (np.abs(lhs) @ np.abs(rhs))
    assert (np.abs(got - want) <= bound).all()
    unscaled = trn.emulate(jnp.matmul, SMALL, autocast=trn.AutoCast("matmult", "fp8_e4m3"), fidelity=fidelity)(lhs, rhs)
    assert not np.isfinite(unscaled).all()


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
@pytest.mark.parametrize("scaling", ["tensor", "block"])
def test_zero_and_tiny_operands_stay_finite(scaling, rounding):
    cast = trn.AutoCast("matmult", "fp8_e4m3", scaling=scaling)
    options = {"rounding": rounding, "seed": 3} if rounding == "stochastic" else {}
    product = jax.jit(trn.emulate(jnp.matmul, SMALL, autocast=cast, **options))
    eye = jnp.eye(64)
    assert not product(jnp.zeros((3, 64)), eye).any()
    for size in (1e-38, 1e-45, 3e38):
        x = jnp.full((3, 64), size).at[:, 1].set(-size)
        out = np.asarray(product(x, eye))
        assert np.isfinite(out).all()
        np.testing.assert_allclose(out, x, rtol=1e-6, atol=1.2e-38)
    slope = jax.grad(lambda x: product(x, eye).sum())(jnp.zeros((3, 64)))
    assert (slope == 1).all()
    assert np.isnan(np.asarray(product(jnp.ones((3, 64)).at[0, 0].set(jnp.nan), eye))).any()


def test_cotangents_have_their_own_format_in_both_orders_of_grad_and_emulate():
    """57344 is E5M2's largest value and past E4M3's."""
    x, w = jnp.eye(8) * 57344.0, jnp.ones((8, 4))
    loss = lambda w, x: jnp.sum(x * (jnp.eye(8) @ w @ jnp.ones((4, 8))))
    wide, narrow = (trn.AutoCast("matmult", "fp8_e4m3", backward=fmt) for fmt in ("fp8_e5m2", "fp8_e4m3"))
    for order in (lambda cast: trn.emulate(jax.grad(loss), T2, autocast=cast), lambda cast: jax.grad(trn.emulate(loss, T2, autocast=cast))):
        np.testing.assert_array_equal(order(wide)(w, x), np.full((8, 4), 57344.0))
        assert not np.isfinite(order(narrow)(w, x)).all()


def test_the_first_operand_of_backward_products_is_the_cotangent():
    """In loops, calls and remat; what remat computes again is no cotangent."""

    def layer(h, w):
        return jnp.tanh(h @ w)

    def loss(ws, w, x):
        h, _ = jax.lax.scan(lambda h, w: (jax.checkpoint(layer)(h, w), None), x, ws)
        return jnp.sum(jax.jit(layer)(h, w))

    cast = trn.AutoCast("matmult", "fp8_e4m3", backward="fp8_e5m2")
    report = trn.cast_report(jax.grad(loss, argnums=(0, 1)), T2, autocast=cast)(jnp.ones((3, 8, 8)), jnp.ones((8, 8)), jnp.ones((4, 8)))
    casts = tuple(report)
    pairs = [(a.to_format, b.to_format) for a, b in zip(casts[::2], casts[1::2], strict=True)]
    assert pairs.count(("fp8_e4m3", "fp8_e4m3")) == 3  # two forward, one computed again
    assert pairs.count(("fp8_e5m2", "fp8_e4m3")) == 4
    assert len(pairs) == 7


def test_a_rule_that_a_user_wrote_may_multiply_with_the_cotangent_second():
    @jax.custom_vjp
    def product(a, b):
        return a @ b

    product.defvjp(lambda a, b: (a @ b, (a, b)), lambda saved, g: (g @ saved[1].T, saved[0].T @ g))
    cast = trn.AutoCast("matmult", "fp8_e4m3", backward="fp8_e5m2")
    gradient = jax.grad(lambda a, b: product(a, b).sum(), argnums=(0, 1))
    casts = tuple(trn.cast_report(gradient, T2, autocast=cast)(jnp.ones((4, 8)), jnp.ones((8, 3))))
    assert [c.to_format[-4:] for c in casts] == ["e4m3", "e4m3", "e5m2", "e4m3", "e4m3", "e5m2"]
    given = trn.cast_report(lambda a, b, g: jax.vjp(jnp.matmul, a, b)[1](g), T2, autocast=cast)
    casts = tuple(given(jnp.ones((4, 8)), jnp.ones((8, 3)), jnp.ones((4, 3))))
    assert [c.to_format[-4:] for c in casts[-4:]] == ["e5m2", "e4m3", "e5m2", "e4m3"]


@pytest.mark.parametrize(
    "cast", [MX, trn.AutoCast("matmult", "fp8_e4m3", scaling="tensor"), trn.AutoCast("matmult", "fp8_e4m3", scaling="block")]
)
def test_gradients_pass_straight_through_at_the_rounded_operands(cast):
    lhs, rhs, weight = normals(0, (3, 40)), normals(1, (40, 5)), normals(2, (3, 5))
    product = jax.jit(trn.emulate(jnp.matmul, SMALL, autocast=cast))
    rounded_rhs = product(jnp.eye(40), rhs) if cast.scaling != "block" else None
    d_lhs, d_rhs = jax.jit(jax.grad(lambda a, b: (product(a, b) * weight).sum(), argnums=(0, 1)))(lhs, rhs)
    if rounded_rhs is not None:
        np.testing.assert_allclose(d_lhs, weight @ rounded_rhs.T, rtol=1e-5, atol=1e-5)
    assert np.linalg.norm(d_rhs - lhs.T @ weight) < 2**-3 * np.linalg.norm(d_rhs)
    ones, zeros = jnp.ones_like(lhs), jnp.zeros_like(rhs)
    tangent = jax.jit(lambda: jax.jvp(product, (lhs, rhs), (ones, zeros))[1])()
    np.testing.assert_allclose((tangent * weight).sum(), d_lhs.sum(), rtol=1e-4)
    batched = jax.vmap(product)(jnp.stack([lhs, 4 * lhs]), jnp.stack([rhs, rhs]))
    np.testing.assert_allclose(batched[1], 4 * batched[0], rtol=1e-6)


@pytest.mark.parametrize("shapes", [((2, 0), (0, 3)), ((0, 4), (4, 3)), ((2, 4), (4, 0))])
def test_empty_products_are_zeros(shapes):
    for cast in (MX, trn.AutoCast("matmult", "fp8_e4m3", scaling="tensor"), trn.AutoCast("matmult", "fp8_e4m3", scaling="block")):
        product = trn.emulate(jnp.matmul, SMALL, autocast=cast, psum="bf16")(*map(jnp.ones, shapes))
        np.testing.assert_array_equal(product, np.zeros((shapes[0][0], shapes[1][1])))


def test_the_cast_report_measures_scaled_and_mx_operands():
    lhs, rhs = normals(0, (3, 64)) * 1e6, normals(1, (64, 5))
    for cast in (MX, trn.AutoCast("matmult", "fp8_e4m3", scaling="tensor")):
        left, right = trn.cast_report(jnp.matmul, SMALL, autocast=cast)(lhs, rhs)
        assert (left.role, right.to_format) == ("lhs", cast.to)
        assert 0 < left.max_rel_error
        assert 2**-6 < right.max_abs_error < 0.25
        assert left.overflows == right.overflows == 0


@pytest.mark.parametrize("fidelity", FIDELITIES)
def test_a_bf16_psum_rounds_after_every_k_tile(fidelity):
    """256 + 1 is 256 in bf16, so ones beyond the 256th are lost; in fp32 they are not."""
    ones = jnp.ones((1, 32 * 16))
    product = lambda **options: float(trn.emulate(jnp.matmul, SMALL, fidelity=fidelity, **options)(ones, ones.T)[0, 0])
    assert product() == 512
    tiles = np.ones(16) * 33 / 32  # a tile adds 33: not all sums are bf16 values
    want = np.float32(0)
    for tile in tiles:
        want = (want + np.float32(tile * 32)).astype(ml_dtypes.bfloat16).astype(np.float32)
    got = trn.emulate(jnp.matmul, SMALL, fidelity=fidelity, psum="bf16")(ones, ones.T * 33 / 32)
    assert got[0, 0] == want
    assert want != 16 * 33


def test_a_bf16_psum_can_round_stochastically_and_has_the_derivative_of_the_product():
    lhs, rhs = normals(0, (1, 320)), normals(1, (320, 1))
    draw = lambda seed: trn.emulate(jnp.matmul, SMALL, psum="bf16", rounding="stochastic", seed=seed)(lhs, rhs)[0, 0]
    sums = jax.jit(jax.vmap(draw))(jnp.arange(500, dtype=jnp.uint32))
    assert len(np.unique(sums)) > 2
    assert abs(float(sums.mean()) - float((lhs @ rhs)[0, 0])) < 5 * float(sums.std()) / 500**0.5
    slope = jax.grad(lambda a: trn.emulate(jnp.matmul, SMALL, psum="bf16")(a, rhs)[0, 0])(lhs)
    np.testing.assert_allclose(slope, rhs.T, rtol=1e-6)


def test_a_bf16_psum_needs_a_chip_that_has_it():
    with pytest.raises(trn.FormatError, match=r"PSUM of trainium2 accumulates in fp32 only"):
        trn.emulate(jnp.matmul, T2, psum="bf16")
    with pytest.raises(trn.FormatError, match="Did you mean 'bf16'"):
        trn.emulate(jnp.matmul, T3, psum="bf61")
    with_it = T2.replace({"psum_formats": ["fp32", "bf16"]})
    assert trn.emulate(jnp.matmul, with_it, psum="bf16")(jnp.ones((2, 3)), jnp.ones((3, 2)))[0, 0] == 3
    ideal = trn.emulate(jnp.matmul, trn.load_chip("ideal"), psum="bf16")(jnp.ones((1, 1025)), jnp.ones((1025, 1)))
    assert ideal[0, 0] == 1025
