"""Functions of jax.nn, jax.numpy, jax.lax, jax.scipy and jax.random, one program each or a few together."""

from functools import partial

import jax
import jax.numpy as jnp
import jax.scipy as jsp
from corpus import Case, arrays
from jax import lax, nn, random

X = arrays((3, 8))[0]
POSITIVE = jnp.abs(X) + 0.1
MATRIX = arrays((4, 4))[0] + 4 * jnp.eye(4)
SYMMETRIC = MATRIX + MATRIX.T + 4 * jnp.eye(4)
COLUMNS, ROWS = jnp.array([1, 3, 3]), arrays((5, 4))[0]

ONE_ARGUMENT = (
    "celu elu gelu glu hard_sigmoid hard_silu hard_swish hard_tanh identity leaky_relu log_sigmoid log_softmax logmeanexp logsumexp mish "
    "relu relu6 selu sigmoid silu soft_sign softmax softplus sparse_plus sparse_sigmoid squareplus standardize swish tanh"
).split()


def attention(**options):
    q, k, v = arrays((2, 5, 2, 4), (2, 5, 1, 4), (2, 5, 1, 4))
    return Case(fn=partial(nn.dot_product_attention, **options), args=(q, k, v), wrt=(0, 1, 2))


# Every public function of jax.nn; a test keeps this list complete.
NEURAL = {
    **{name: partial(Case, fn=getattr(nn, name), args=(X,)) for name in ONE_ARGUMENT if name != "identity"},
    "identity": lambda: Case(fn=lambda x: nn.identity(x) * 2, args=(X,)),
    "log1mexp": lambda: Case(fn=nn.log1mexp, args=(POSITIVE,)),
    "one_hot": lambda: Case(fn=lambda x: nn.one_hot(jnp.argmax(x, -1), 8) * x, args=(X,)),
    "dot_product_attention": partial(attention, is_causal=True, scale=0.3),
    "scaled_dot_general": lambda: Case(
        fn=lambda a, b: nn.scaled_dot_general(a, b, (((2,), (2,)), ((0,), (0,)))), args=arrays((1, 3, 32), (1, 4, 32)), wrt=None, maps=False
    ),
}

# Of jax.nn, but not run on every backend or not a function of arrays.
NEURAL_ELSEWHERE = {"scaled_matmul", "get_scaled_dot_general_config"}

LINEAR_ALGEBRA = {
    "solve": lambda: Case(fn=lambda a: jnp.linalg.solve(a, jnp.ones((4, 2))), args=(MATRIX,)),
    "inv det slogdet": lambda: Case(fn=lambda a: (jnp.linalg.inv(a), jnp.linalg.det(a), jnp.linalg.slogdet(a)), args=(MATRIX,)),
    "cholesky": lambda: Case(fn=lambda a: jsp.linalg.cho_solve(jsp.linalg.cho_factor(a), jnp.ones(4)), args=(SYMMETRIC,)),
    "eigh": lambda: Case(fn=lambda a: jnp.linalg.eigh(a)[0], args=(SYMMETRIC,)),
    "svd norms": lambda: Case(fn=lambda a: (jnp.linalg.norm(a, "nuc"), jnp.linalg.norm(a, 2), jnp.linalg.cond(a)), args=(MATRIX,)),
    "qr lstsq pinv": lambda: Case(fn=lambda a: (jnp.linalg.lstsq(a, jnp.ones(4))[0], jnp.linalg.pinv(a)), args=(MATRIX,)),
    "lu eig schur": lambda: Case(
        fn=lambda a: (jsp.linalg.lu_factor(a)[0], jnp.abs(jnp.linalg.eigvals(a)), jsp.linalg.schur(a), jsp.linalg.hessenberg(a)),
        args=(MATRIX,),
        wrt=None,
        error=None,
    ),
    "expm": lambda: Case(fn=lambda a: jsp.linalg.expm(a / 8), args=(MATRIX,), trips=4),
    "triangular": lambda: Case(fn=lambda a: jsp.linalg.solve_triangular(a, jnp.ones(4), lower=True), args=(MATRIX,)),
    "tridiagonal": lambda: Case(
        fn=lambda d, b: lax.linalg.tridiagonal_solve(jnp.zeros(5), jnp.abs(d) + 4, jnp.zeros(5), b), args=arrays((5,), (5, 2)), wrt=(0, 1)
    ),
    "conjugate gradients": lambda: Case(fn=lambda a: jsp.sparse.linalg.cg(a, jnp.ones(4), maxiter=6)[0], args=(SYMMETRIC,)),
}

EINSUMS = {
    f"einsum {spec}": partial(lambda spec, shapes: Case(fn=partial(jnp.einsum, spec), args=arrays(*shapes), wrt=(0, 1)), spec, shapes)
    for spec, shapes in {
        "ij,jk->ik": ((5, 13), (13, 7)),
        "bthd,bshd->bhts": ((2, 3, 2, 4), (2, 5, 2, 4)),
        "i,j->ij": ((3,), (4,)),
        "ij,ij->": ((3, 4), (3, 4)),
        "ijk,kji->": ((2, 3, 4), (4, 3, 2)),
        "...ij,jk": ((2, 2, 3, 4), (4, 5)),
        "iij,jk->ik": ((3, 3, 4), (4, 2)),
        "ab,cd->abcd": ((2, 3), (2, 2)),
        "ij,jk": ((3, 0), (0, 4)),
        "i,ij->j": ((7,), (7, 1)),
    }.items()
}

FOURIER = {
    "fft": lambda: Case(fn=lambda x: (jnp.fft.fft(x), jnp.fft.ifft2(x), jnp.fft.fftshift(x)), args=(X,)),
    "rfft irfft": lambda: Case(fn=lambda x: jnp.fft.irfft(jnp.fft.rfft(x) * 2), args=(X,)),
    "dct fftconvolve": lambda: Case(fn=lambda x: (jsp.fft.dct(x), jsp.signal.fftconvolve(x, x[:2, :3])), args=(X,)),
}


def convolution(shapes, **options):
    fn = partial(lax.conv_general_dilated, dimension_numbers=("NHWC", "HWIO", "NHWC"), **options)
    return Case(fn=fn, args=arrays(*shapes), wrt=(0, 1))


CONVOLUTIONS = {
    "strided": partial(convolution, ((1, 5, 5, 2), (3, 3, 2, 3)), window_strides=(2, 2), padding="SAME"),
    "grouped": partial(convolution, ((1, 5, 5, 4), (3, 3, 2, 6)), window_strides=(1, 1), padding="VALID", feature_group_count=2),
    "depthwise": partial(convolution, ((1, 5, 5, 4), (3, 3, 1, 4)), window_strides=(1, 1), padding="SAME", feature_group_count=4),
    "dilated": partial(convolution, ((1, 6, 6, 2), (3, 3, 2, 3)), window_strides=(1, 1), padding="SAME", rhs_dilation=(2, 2)),
    "transposed": lambda: Case(
        fn=lambda x, w: lax.conv_transpose(x, w, (2, 2), "SAME"), args=arrays((1, 4, 4, 2), (3, 3, 2, 3)), wrt=(0, 1)
    ),
    "1d 3d": lambda: Case(
        fn=lambda x, w: (jnp.convolve(x.reshape(-1), w.reshape(-1)), lax.conv(x[None, None], w[None, None], (1, 1, 1), "SAME")),
        args=arrays((3, 3, 3), (2, 2, 2)),
        wrt=(0, 1),
    ),
    "pools": lambda: Case(
        fn=lambda x: (
            lax.reduce_window(x, -jnp.inf, lax.max, (2, 2), (2, 2), "SAME"),
            lax.reduce_window(x, 0.0, lax.add, (2, 2), (1, 1), "VALID"),
            lax.reduce_window(x, jnp.inf, lax.min, (2, 2), (1, 1), "VALID"),
        ),
        args=arrays((4, 4)),
    ),
    "resize": lambda: Case(
        fn=lambda x: (jax.image.resize(x, (6, 6), "cubic"), jax.image.resize(x, (3, 3), "nearest")), args=arrays((4, 4))
    ),
}


def indexed(fn, **options):
    return partial(Case, fn=fn, args=(ROWS, COLUMNS), **options)


INDEXING = {
    "gather": indexed(lambda x, i: (x[i], jnp.take(x, i, axis=1, mode="clip"), jnp.take_along_axis(x, i[:, None], 0))),
    "scatter": indexed(lambda x, i: (x.at[i].set(0.0), x.at[i].add(x[:3]), x.at[i].multiply(2.0), x.at[i + 3].get(mode="fill"))),
    "scatter extremes": indexed(lambda x, i: (x.at[i].max(0.1), x.at[i, 1].min(-0.1)), wrt=None),
    "segments": indexed(lambda x, i: jax.ops.segment_sum(x[:3], i, 5)),
    "dynamic slices": indexed(
        lambda x, i: (lax.dynamic_slice(x, (i[0], 0), (2, 3)), lax.dynamic_update_slice(x, x[:2, :2] * 2, (i[0], 1)))
    ),
    "sorts": indexed(lambda x, i: (jnp.sort(x, 0), lax.top_k(x, 2), lax.sort((x, -x), num_keys=1), jnp.median(x, 0)), error=None),
    "searches": indexed(
        lambda x, i: (jnp.searchsorted(x[0], x[1]), jnp.histogram(x, 4), jnp.unique(i, size=3), jnp.nonzero(i, size=3)),
        wrt=None,
        error=None,
    ),
    "shapes": indexed(
        lambda x, i: (
            jnp.stack([x, x]),
            jnp.split(x, [2]),
            jnp.unstack(x),
            jnp.repeat(x, 2, 0),
            jnp.rot90(x),
            jnp.pad(x, 1, mode="reflect"),
        )
    ),
    "reductions": indexed(
        lambda x, i: (x.prod(1), x.std(), x.var(0), jnp.argmax(x, 1), (x > 0).all(0), x.min(), nn.logsumexp(x, 1)), error=None
    ),
    "running": indexed(lambda x, i: (jnp.cumsum(x, 0), jnp.cumprod(x, 1), lax.cummax(x), lax.cumlogsumexp(x), jnp.diff(x, axis=0))),
    "interpolation": indexed(lambda x, i: (jnp.interp(x[:, 0], jnp.arange(5.0), x[:, 1]), jnp.quantile(x, 0.3, axis=0))),
    "ragged dot": indexed(lambda x, i: lax.ragged_dot(x, jnp.stack([x.T, x.T * 2]), jnp.array([2, 3])), maps=False),
}

SPECIAL = {
    "error functions": lambda: Case(fn=lambda x: (jsp.special.erf(x), jsp.special.erfc(x), jsp.special.ndtri(nn.sigmoid(x))), args=(X,)),
    "gamma": lambda: Case(fn=lambda x: (jsp.special.gammaln(x + 1), jsp.special.digamma(x + 1)), args=(POSITIVE,)),
    "incomplete gamma beta": lambda: Case(
        fn=lambda x: (jsp.special.gammainc(2.0, x), jsp.special.betainc(2.0, 3.0, nn.sigmoid(x))), args=(POSITIVE,), trips=5
    ),
    "bessel zeta": lambda: Case(
        fn=lambda x: (jsp.special.i0e(x), jsp.special.i1e(x), jsp.special.zeta(x + 2, 1.5)), args=(POSITIVE,), wrt=None
    ),
    "trigonometry": lambda: Case(
        fn=lambda x: (
            jnp.sin(x),
            jnp.tan(x / 2),
            jnp.arctan2(x, x + 2),
            jnp.sinh(x),
            jnp.arctanh(x / 9),
            jnp.cbrt(x),
            jnp.exp2(x),
            jnp.expm1(x),
        ),
        args=(POSITIVE,),
    ),
    "rounding": lambda: Case(
        fn=lambda x: (jnp.round(x), jnp.floor(x), jnp.nextafter(x, 2.0), jnp.fmod(x, 0.7), jnp.frexp(x), jnp.modf(x), jnp.divmod(x, 0.7)),
        args=(X,),
        wrt=None,
        error=None,
    ),
}


def sampled(fn, **options):
    return partial(Case, fn=fn, args=(random.key(1), X), wrt=None, error=None, trips=5, **options)


SAMPLING = {
    "categorical": sampled(lambda k, x: random.categorical(k, x)),
    "top k": sampled(lambda k, x: random.categorical(k, jnp.where(x < lax.top_k(x, 3)[0][:, -1:], -1e9, x))),
    "nucleus": sampled(lambda k, x: jnp.cumsum(nn.softmax(jnp.sort(x)[:, ::-1]), -1) < random.uniform(k)),
    "gumbel": sampled(lambda k, x: jnp.argmax(x + random.gumbel(k, x.shape), -1)),
    "permutations": sampled(lambda k, x: (random.permutation(k, x), random.choice(k, 6, (3,), replace=False))),
    "gamma beta": sampled(lambda k, x: (random.gamma(k, jnp.exp(x)), random.beta(k, jnp.exp(x), 2.0))),
    "counts": sampled(lambda k, x: (random.poisson(k, jnp.exp(x)), random.binomial(k, 5, nn.sigmoid(x)), random.bits(k, (3,))), maps=False),
    "keys": sampled(lambda k, x: (random.split(k), random.key_data(k), random.wrap_key_data(random.key_data(k)), random.fold_in(k, 3))),
}

CASES = {
    f"{group} {name}": make
    for group, programs in {
        "nn": NEURAL,
        "linalg": LINEAR_ALGEBRA,
        "dot": EINSUMS,
        "fft": FOURIER,
        "conv": CONVOLUTIONS,
        "index": INDEXING,
        "special": SPECIAL,
        "random": SAMPLING,
    }.items()
    for name, make in programs.items()
}
