"""Random programs: a list of steps, each an operation with three small integers that pick its operands and parameters.

A step that does not fit the values it picks does nothing, so every list is a program and hypothesis can shrink it.
"""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st
from jax import lax

DTYPES = (jnp.float32, jnp.bfloat16, jnp.float16, jnp.int32, jnp.uint8, jnp.bool_, jnp.complex64, jnp.int8, jnp.uint32)
SHAPES = ((), (3,), (4, 3), (2, 4, 3), (0, 3), (1, 5))


def is_float(x):
    return jnp.issubdtype(x.dtype, jnp.floating)


def as_float(x):
    return x if is_float(x) else jnp.abs(x).astype(jnp.float32) if jnp.iscomplexobj(x) else x.astype(jnp.float32)


def unary(*functions):
    return lambda x, y, i, j: functions[i % len(functions)](as_float(x))


def binary(*functions):
    def step(x, y, i, j):
        x, y = as_float(x), as_float(y)
        return functions[i % len(functions)](x, y.astype(x.dtype) if j % 2 else y)

    return step


def integers(*functions):
    def step(x, y, i, j):
        x, y = (v if v.dtype in (jnp.int32, jnp.uint8) else jnp.asarray(as_float(jnp.nan_to_num(v)) * 4).astype(jnp.int32) for v in (x, y))
        return functions[i % len(functions)](x, y)

    return step


def reduce(x, y, i, j):
    function = (jnp.sum, jnp.max, jnp.min, jnp.prod, jnp.mean, jnp.argmax, jnp.any, jnp.cumsum, jnp.sort, jnp.argsort, jnp.var)[i % 11]
    return function(as_float(x), axis=j % x.ndim) if x.ndim and x.shape[j % x.ndim] else None


def move(x, y, i, j):
    if not x.ndim:
        return x[None]
    axis = j % x.ndim
    return (
        lambda: x.T,
        lambda: x.reshape(-1),
        lambda: jnp.flip(x, axis),
        lambda: jnp.concatenate([x, x], axis),
        lambda: jnp.expand_dims(x, axis),
        lambda: jnp.pad(x, [(1, 0)] * x.ndim),
        lambda: jnp.moveaxis(x, axis, 0)[::2],
        lambda: jnp.tile(x, 2),
        lambda: jnp.stack([x, x], axis),
        lambda: lax.dynamic_slice_in_dim(x, j, x.shape[axis] // 2, axis),
        lambda: lax.dynamic_update_slice_in_dim(x, jnp.zeros_like(x), i, axis),
    )[i % 11]()


def index(x, y, i, j):
    if not x.ndim or not x.shape[0]:
        return None
    where = jnp.array([0, 1, 0]) % x.shape[0]
    if i % 4 == 0:
        return x[where]
    if x.dtype == jnp.bool_:
        return x.at[where].set(True)
    update = getattr(x.at[where], ("set", "add", "multiply", "max")[j % (3 if jnp.iscomplexobj(x) else 4)])
    return update(jnp.asarray(2).astype(x.dtype))


def product(x, y, i, j):
    if x.ndim == 0 or y.ndim == 0:
        return None
    if x.dtype == jnp.bool_ or y.dtype == jnp.bool_:
        return jnp.tensordot(as_float(x), as_float(y), 0) if x.size * y.size < 400 else None
    if i % 3 == 0:
        return jnp.einsum("...i,...i->...i" if x.shape == y.shape else "...i,j->...ij", x, y if x.shape == y.shape else y.reshape(-1)[:2])
    if i % 3 == 1:
        return x @ jnp.swapaxes(x, -1, -2) if x.ndim > 1 else jnp.dot(x, x)
    return jnp.tensordot(x, y, 1) if x.shape[-1] == y.shape[0] else None


def convolve(x, y, i, j):
    if x.size < 4:
        return None
    signal = as_float(x).reshape(1, -1, 1)
    kernel = jnp.ones((2, 1, 2), signal.dtype)
    return lax.conv_general_dilated(
        signal, kernel, (1 + i % 2,), "SAME", rhs_dilation=(1 + j % 2,), dimension_numbers=("NWC", "WIO", "NWC")
    )


def loop(x, y, i, j):
    x = as_float(x)
    body = lambda c, t: (jnp.sin(c) * t.astype(c.dtype) + jax.nn.relu(c), c.sum())
    times = jnp.arange(3.0)
    return (
        lambda: lax.scan(body, x, times, reverse=bool(j % 2))[0],
        lambda: lax.scan(body, x, times, unroll=1 + j % 3)[1],
        lambda: lax.fori_loop(0, 2, lambda n, c: jnp.cos(c) + n, x),
        lambda: lax.scan(jax.checkpoint(body), x, times)[0],
        lambda: lax.stop_gradient(lax.while_loop(lambda c: c[0] < j % 4, lambda c: (c[0] + 1, jnp.tanh(c[1]) * 2), (0, x))[1]),
        lambda: lax.associative_scan(jnp.add, x) if x.ndim and x.shape[0] else x,
        lambda: lax.map(lambda row: row * 2 + 1, x) if x.ndim else x,
    )[i % 7]()


def branch(x, y, i, j):
    x = as_float(x)
    positive = x.sum() > 0
    if i % 3 == 0:
        return lax.cond(positive, jnp.sin, lambda v: v * 2, x)
    if i % 3 == 1:
        return lax.switch(jnp.int32(j), [jnp.exp, jnp.tanh, jnp.abs], x)
    return jnp.where(x > 0, x, -x)


@jax.custom_vjp
def doubled(x):
    return x * 2


doubled.defvjp(lambda x: (x * 2, jnp.cos(x)), lambda cosine, cotangent: (cotangent * cosine,))


def call(x, y, i, j):
    x = as_float(x)
    return (
        lambda: jax.jit(lambda v: jnp.tanh(v) * 2)(x),
        lambda: jax.nn.softmax(x) if x.ndim else x,
        lambda: jax.nn.gelu(x),
        lambda: jax.vmap(lambda v: v / (1 + jnp.abs(v).sum()))(x) if x.ndim else x,
        lambda: jax.checkpoint(lambda v: jnp.sin(jnp.sin(v)))(x),
        lambda: jax.grad(lambda v: jnp.sum(jax.nn.silu(v.astype(jnp.float32))))(x),
        lambda: jax.nn.logsumexp(x, axis=0) if x.ndim and x.size else x,
        lambda: lax.stop_gradient(x) * x,
        lambda: doubled(x),
        lambda: lax.top_k(x, 1)[0] if x.ndim and x.shape[-1] else x,
        lambda: jax.jvp(jnp.sin, (x,), (x,))[1],
    )[i % 11]()


def draw(x, y, i, j):
    key = jax.random.fold_in(jax.random.key(3), j)
    shape = x.shape
    return (jax.random.normal, jax.random.uniform, lambda k, s: jax.random.bernoulli(k, 0.3, s), jax.random.bits)[i % 4](key, shape)


OPERATIONS = {
    "unary": unary(
        *(jnp.exp, jnp.log1p, jnp.sin, jnp.tanh, jnp.sqrt, lax.rsqrt, jnp.floor, jnp.round, jnp.sign, lax.erf, jnp.square, jnp.cbrt),
        *(jax.nn.sigmoid, jnp.isfinite, lambda x: x**3, lambda x: lax.reduce_precision(x, 5, 7), jnp.logical_not),
    ),
    "binary": binary(jnp.add, jnp.subtract, jnp.multiply, jnp.divide, jnp.maximum, jnp.minimum, jnp.power, jnp.arctan2, jnp.less, jnp.fmod),
    "integers": integers(jnp.add, jnp.multiply, jnp.bitwise_xor, jnp.left_shift, jnp.floor_divide, jnp.equal, lambda x, y: lax.clz(x)),
    "cast": lambda x, y, i, j: (x.real if jnp.iscomplexobj(x) else x).astype(DTYPES[i % len(DTYPES)]),
    "reduce": reduce,
    "move": move,
    "index": index,
    "product": product,
    "convolve": convolve,
    "loop": loop,
    "branch": branch,
    "call": call,
    "draw": draw,
}

small = st.integers(0, 11)
steps = st.lists(st.tuples(st.sampled_from(sorted(OPERATIONS)), small, small, small, small), min_size=2, max_size=10)
inputs = st.lists(st.tuples(st.sampled_from(SHAPES), st.sampled_from(DTYPES)), min_size=1, max_size=3)


def arguments(kinds):
    rng = np.random.default_rng(0)
    return tuple(jnp.asarray(rng.standard_normal(shape) * 2, jnp.float32).astype(dtype) for shape, dtype in kinds)


def program(recipe):
    """A function of any number of arrays; it returns all that the steps computed."""

    def fn(*args):
        pool = list(args)
        for name, first, second, i, j in recipe:
            x, y = pool[-1 - first % len(pool)], pool[second % len(pool)]
            try:
                result = OPERATIONS[name](x, y, i, j)
            except (TypeError, ValueError):  # shapes or dtypes that JAX itself refuses
                continue
            if result is not None and result.size < 2000:
                pool.append(result)
        return pool[len(args) :] or pool

    return fn
