"""Loops, branches, custom rules, transformations inside, dtypes, trees and effects."""

import dataclasses
from functools import partial

import jax
import jax.experimental
import jax.numpy as jnp
import numpy as np
from corpus import Case, arrays
from jax import lax
from jax.ad_checkpoint import checkpoint_name

VECTOR, MATRIX = arrays((4,), (3, 4))
SQUARE = arrays((4, 4), seed=1)[0] / 2


def reverse_unrolled(x, w):
    step = lambda c, w_layer: (jnp.tanh(c @ w_layer), {"sum": c.sum(), "none": None})
    return lax.scan(step, x, w, reverse=True, unroll=2)


def keys_carried(key, x):
    def step(carry, _):
        key, total = carry
        key, now = jax.random.split(key)
        return (key, total + jax.random.normal(now, x.shape) * x), jax.random.uniform(now)

    return lax.scan(step, (key, jnp.zeros_like(x)), None, length=3)


def while_in_scan(x):
    def step(carry, row):
        count, value = lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] * 0.9 + row), (0, carry))
        return value, count

    return lax.scan(step, jnp.zeros(4), x)


def until_large(x):
    return lax.while_loop(lambda v: jnp.abs(v).sum() < 20, lambda v: v * 1.5 + 0.1, x)


LOOPS = {
    "scan reversed unrolled": lambda: Case(fn=reverse_unrolled, args=(MATRIX, jnp.stack([SQUARE] * 4)), wrt=(0, 1)),
    "scan without slices": lambda: Case(fn=lambda x: lax.scan(lambda c, _: (jnp.sin(c) + x, None), x, None, length=12)[0], args=(VECTOR,)),
    "scan of keys": lambda: Case(fn=keys_carried, args=(jax.random.key(0), VECTOR), wrt=(1,)),
    "while in scan": lambda: Case(fn=while_in_scan, args=(MATRIX,), wrt=None),
    "while until": lambda: Case(fn=until_large, args=(VECTOR,), wrt=None, error=1.0),
    "fori static": lambda: Case(fn=lambda x: lax.fori_loop(0, 3, lambda i, c: c.at[i].set(c[i] * 2 + i), x), args=(MATRIX,)),
    "fori dynamic": lambda: Case(
        fn=lambda n, x: lax.fori_loop(0, n, lambda i, c: jnp.sin(c) + i, x), args=(jnp.int32(3), VECTOR), wrt=None
    ),
    "map": lambda: Case(fn=lambda x: (lax.map(jnp.tanh, x), lax.map(lambda r: r.sum(), x, batch_size=2)), args=(MATRIX,)),
    "associative scan": lambda: Case(
        fn=lambda a, b: lax.associative_scan(lambda l, r: (l[0] * r[0], r[0] * l[1] + r[1]), (jax.nn.sigmoid(a), b)),
        args=arrays((6, 3), (6, 3)),
        wrt=(0, 1),
    ),
    "cond with closures": lambda: Case(fn=lambda x: lax.cond(x.sum() > 0, lambda: x * 2, lambda: jnp.sin(x)), args=(VECTOR,)),
    "cond mapped": lambda: Case(fn=jax.vmap(lambda r: lax.cond(r.sum() > 0, jnp.sin, jnp.cos, r)), args=(MATRIX,)),
    "switch": lambda: Case(fn=lambda i, x: lax.switch(i, [jnp.sin, jnp.cos, lambda x: x * 3], x), args=(jnp.int32(2), VECTOR), wrt=(1,)),
    "root": lambda: Case(
        fn=lambda x: lax.custom_root(
            lambda y: y - jnp.cos(y) * 0.5 - x,
            jnp.zeros(4),
            lambda f, y: lax.fori_loop(0, 20, lambda _, y: y - f(y) / 1.2, y),
            lambda g, y: y / g(jnp.ones_like(y)),
        ),
        args=(VECTOR,),
    ),
}


def policies(x, w):
    block = lambda x, w: jnp.sin(checkpoint_name(jnp.sin(x @ w), "hidden") @ w)
    kept = jax.checkpoint_policies
    chosen = (kept.dots_saveable, kept.nothing_saveable, kept.save_only_these_names("hidden"), kept.save_any_names_but_these("hidden"))
    return sum(jax.checkpoint(block, policy=policy)(x, w) for policy in chosen)


@jax.custom_vjp
def tripled(x, i):
    return x[i]


tripled.defvjp(lambda x, i: (x[i], (x, i)), lambda saved, ct: (jnp.zeros_like(saved[0]).at[saved[1]].set(3 * ct), None))


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def applied(function, x):
    return function(x)


applied.defjvp(lambda function, primals, tangents: (function(primals[0]), 2 * tangents[0]))


def inner_jit(x):
    @partial(jax.jit, static_argnames=("count", "mode"), donate_argnums=0)
    def scaled(x, count, mode="multiply"):
        return x * count if mode == "multiply" else x

    return scaled(x * 1, 3) + scaled(x + 0, 2, mode="keep")


TRANSFORMED = {
    "hessian": lambda: Case(fn=jax.hessian(lambda x: jnp.sum(jnp.tanh(x) ** 3)), args=(VECTOR,)),
    "jacobians": lambda: Case(fn=lambda x: (jax.jacfwd(jnp.sin)(x), jax.jacrev(lambda x: x / x.sum())(x + 3)), args=(VECTOR,)),
    "linearize": lambda: Case(fn=lambda x: (jax.linearize(jnp.tanh, x)[1](x), jax.linear_transpose(lambda v: 2 * v, x)(x)), args=(VECTOR,)),
    "jvp vjp": lambda: Case(fn=lambda x: (jax.jvp(jax.nn.gelu, (x,), (x,)), jax.vjp(jnp.sin, x)[1](x)), args=(VECTOR,)),
    "hessian vector": lambda: Case(
        fn=lambda x: jax.jvp(jax.grad(lambda x: jnp.sum(jax.nn.softplus(x) ** 2)), (x,), (x,))[1], args=(VECTOR,)
    ),
    "checkpoint policies": lambda: Case(fn=policies, args=(MATRIX, SQUARE), wrt=(0, 1)),
    "custom vjp of integers": lambda: Case(fn=lambda x: tripled(x, jnp.array([0, 2])), args=(VECTOR,)),
    "custom jvp of a function": lambda: Case(fn=lambda x: applied(jnp.sin, x), args=(VECTOR,)),
    "jit in jit": lambda: Case(fn=inner_jit, args=(VECTOR,)),
    "named call": lambda: Case(fn=lambda x: jax.named_call(jnp.sin, name="layer")(x), args=(VECTOR,)),
    "barrier": lambda: Case(fn=lambda x: lax.optimization_barrier((x * 2, x + 1)), args=(VECTOR,)),
    "vmap axes": lambda: Case(
        fn=lambda x, w: jax.vmap(jnp.matmul, in_axes=(1, None), out_axes=1)(x, w), args=arrays((3, 4), (3, 5)), wrt=(0, 1)
    ),
    "vmap collectives": lambda: Case(
        fn=jax.vmap(
            lambda a: (a - lax.pmean(a, "i"), lax.all_gather(a, "i"), lax.ppermute(a, "i", [(0, 1), (1, 2), (2, 0)])), axis_name="i"
        ),
        args=(MATRIX,),
    ),
    "emulate in emulate": lambda: Case(fn=lambda x: _nested(x) * 2, args=(MATRIX,)),
}


def _nested(x):
    from corpus import BF16, TRN2

    import trn_jax

    return trn_jax.emulate(lambda x: jnp.tanh(x @ x.T), TRN2, autocast=BF16, fidelity="fused")(x)


@partial(jax.tree_util.register_dataclass, data_fields=["array", "nothing"], meta_fields=["name"])
@dataclasses.dataclass
class Record:
    array: jax.Array
    nothing: None = None
    name: str = "record"


def integer_functions(a, b):
    arithmetic = (a + b, a * b, a // b, a % b, a**2, jnp.gcd(a, b), jnp.clip(a, 1, 3))
    bitwise = (a & b, a | b, ~a, a ^ b, a << 2, a >> 1, lax.shift_right_logical(a, 1), lax.population_count(a), lax.clz(a))
    return arithmetic, bitwise, a < b, lax.bitcast_convert_type(a, jnp.float32), lax.bitcast_convert_type(a, jnp.uint8)


def complex_functions(x, y):
    z = lax.complex(x, y)
    return z * z, jnp.abs(z), jnp.conj(z), jnp.exp(z), jnp.angle(z), z / (z + 2), z.sum(), z @ z


VALUES = {
    "integers": lambda: Case(fn=integer_functions, args=(jnp.arange(1, 7), jnp.arange(2, 8)), wrt=None, trips=6),
    "int8 product": lambda: Case(
        fn=lambda a, b: lax.dot(a, b, preferred_element_type=jnp.int32),
        args=(jnp.ones((3, 4), jnp.int8), jnp.ones((4, 2), jnp.int8)),
        wrt=None,
    ),
    "booleans": lambda: Case(fn=lambda a: (a @ a.T, a.any(0), jnp.sort(a), a.astype(jnp.float32) * 2), args=(MATRIX > 0,), wrt=None),
    "complex": lambda: Case(fn=complex_functions, args=arrays((4,), (4,)), wrt=(0, 1)),
    "narrow floats": lambda: Case(
        fn=lambda x: (x.astype(jnp.float8_e5m2).astype(jnp.float32), jnp.exp(x.astype(jnp.float16)), x.astype(jnp.bfloat16) @ x.T),
        args=(MATRIX,),
    ),
    "weak types": lambda: Case(fn=lambda x: (x * 2, 2.0, 3, True, lax.cond(x[0] > 0, lambda: 1.0, lambda: 2.0)), args=(VECTOR,), wrt=None),
    "zero sized": lambda: Case(fn=lambda a, b: (a @ b, jnp.sin(a).sum(), jnp.concatenate([a, a])), args=arrays((0, 4), (4, 5)), wrt=(0, 1)),
    "scalars": lambda: Case(fn=lambda x, y: jnp.sin(x) * y + 1, args=(jnp.float32(0.3), jnp.float32(0.2)), wrt=(0, 1)),
    "trees with None": lambda: Case(
        fn=lambda record, pair: (Record(record.array * 2), {"b": pair[1], "none": None}), args=(Record(VECTOR), (None, VECTOR)), wrt=None
    ),
    "captured arrays": lambda: Case(fn=lambda x: (x + np.arange(4, dtype=np.float32), jnp.arange(3) + 1), args=(VECTOR,)),
    "tails": lambda: Case(fn=jnp.matmul, args=arrays((13, 131), (131, 9)), wrt=(0, 1)),
}


def printing(x):
    jax.debug.callback(lambda value: None, x, ordered=True)
    return lax.scan(lambda c, _: (jax.debug.callback(lambda value: None, c) or c * 2, None), x, None, length=2)[0]


def on_the_host(x):
    doubled = jax.pure_callback(lambda v: np.asarray(v) * 2, jax.typeof(x), lax.stop_gradient(x), vmap_method="sequential")
    return jnp.sin(x) * lax.stop_gradient(doubled)


EFFECTS = {
    "debug callbacks": lambda: Case(fn=printing, args=(VECTOR,), maps=False),
    "pure callback": lambda: Case(fn=on_the_host, args=(VECTOR,)),
    "io callback": lambda: Case(
        fn=lambda x: jax.experimental.io_callback(lambda v: np.asarray(v), jax.typeof(x), x, ordered=True) * jnp.cos(x),
        args=(VECTOR,),
        wrt=None,
        maps=False,
    ),
}

CASES = {
    f"{group} {name}": make
    for group, programs in {"loop": LOOPS, "transformed": TRANSFORMED, "values": VALUES, "effects": EFFECTS}.items()
    for name, make in programs.items()
}
