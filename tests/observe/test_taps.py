"""Taps give what the operations in a scope compute; the exact twin says where the error comes from."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import trn_jax

TRN2 = trn_jax.load_chip("trainium2")
MATMULT, ALL = trn_jax.AutoCast("matmult", "bf16"), trn_jax.AutoCast("all", "bf16")


def normal(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def two_layers(x, w):
    with jax.named_scope("attention"):
        scores = x @ w
        with jax.named_scope("softmax"):
            e = jnp.exp(scores)
            p = e / e.sum(1)[:, None]
    with jax.named_scope("mlp"):
        return jnp.tanh(p @ w)


@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
def test_values_by_scope_and_operation(jit):
    x, w = normal(0, 4, 4), normal(1, 4, 4)
    tapped = trn_jax.tap(two_layers, TRN2, scopes=["attention/softmax"], autocast=MATMULT)
    taps = (jax.jit(tapped) if jit else tapped)(x, w)
    e = np.asarray(trn_jax.emulate(lambda x, w: jnp.exp(x @ w), TRN2, autocast=MATMULT)(x, w))
    assert list(taps)[:2] == ["attention/softmax/exp", "attention/softmax/reduce_sum"]
    np.testing.assert_allclose(taps["attention/softmax/exp"], e, rtol=1e-6)
    np.testing.assert_allclose(taps["attention/softmax/div"].sum(1), 1, rtol=1e-6)
    np.testing.assert_array_equal(taps.outputs, trn_jax.emulate(two_layers, TRN2, autocast=MATMULT)(x, w))
    assert "test_taps.py" in repr(taps)


def test_patterns_take_scopes_below_and_the_unknown_is_named():
    x = normal(0, 4, 4)
    names = lambda scopes: set(trn_jax.tap(two_layers, TRN2, scopes=scopes)(x, x))
    assert names(["*/soft*"]) == names(["attention/softmax"])
    assert names(["attention"]) > names(["attention/softmax"])
    assert names(["mlp", "attention"]) == names(["*"])
    with pytest.raises(trn_jax.ProgramError, match=r"matches 'atention/softmax'. Did you mean 'attention/softmax'"):
        names(["atention/softmax"])
    with pytest.raises(TypeError, match=r"Write \['mlp'\]"):
        trn_jax.tap(two_layers, TRN2, scopes="mlp")
    with pytest.raises(TypeError, match=r"but got \[3\]. Give strings"):
        trn_jax.tap(two_layers, TRN2, scopes=[3])
    with pytest.raises(TypeError, match=r"Write \['mlp'\]"):
        trn_jax.compare_exact(two_layers, TRN2, scopes="mlp")
    with pytest.raises(KeyError, match="Did you mean 'mlp/tanh'"):
        trn_jax.tap(two_layers, TRN2)(x, x)["mlp/tan"]
    with pytest.raises(trn_jax.ProgramError, match="named_scope"):
        trn_jax.tap(jnp.sin, TRN2, scopes=["a"])(1.0 * x)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_stacks_every_iteration_in_the_order_of_its_slices(reverse):
    def f(x):
        def body(c, y):
            with jax.named_scope("body"):
                c = c * 2 + y
            return c, c

        return jax.lax.scan(body, x, jnp.arange(5.0), reverse=reverse)

    taps = jax.jit(trn_jax.tap(f, TRN2, scopes=["*body"]))(jnp.float32(1))
    np.testing.assert_array_equal(taps["body/add"], taps.outputs[1])
    assert taps.executions[taps.names.index("body/add")] == 5


def test_nested_loops_branches_and_while():
    def f(x):
        inner = lambda c, i: (jax.lax.cond(i > 1, jnp.sin, jnp.cos, c), None)
        outer = lambda c, _: (jax.lax.scan(inner, c, jnp.arange(3))[0], None)
        y = jax.lax.scan(outer, x, None, length=2)[0]
        return jax.lax.while_loop(lambda c: c < 10, lambda c: c * 3, y)

    taps = trn_jax.tap(f, TRN2)(jnp.float32(1))
    assert taps["sin"].shape == (2, 3)
    assert (np.asarray(taps["sin"]) != 0).tolist() == [[False, False, True]] * 2
    assert taps.executions[taps.names.index("sin")] == 2
    assert taps.executions[taps.names.index("cos")] == 4
    assert taps["mul"] == taps.outputs


def test_ranks_are_stacked_inside_loops_too():
    mesh = jax.make_mesh((4,), ("ring",), axis_types=(jax.sharding.AxisType.Auto,))

    def local(x):
        step = lambda c, _: (jnp.sin(c), None)
        return jax.lax.scan(step, x, None, length=3)[0]

    shard = jax.shard_map(local, mesh=mesh, in_specs=jax.P("ring"), out_specs=jax.P("ring"))
    f = lambda x: jax.lax.scan(lambda c, _: (shard(c), None), x, None, length=2)[0]
    x = jnp.linspace(0.1, 1, 8)
    taps = jax.jit(trn_jax.tap(f, TRN2))(x)
    assert taps["sin"].shape == (2, 4, 3, 2)
    expected = [x]
    for _ in range(6):
        expected.append(np.sin(expected[-1]))
    expected = np.stack(expected[1:]).reshape(2, 3, 4, 2).swapaxes(1, 2)
    np.testing.assert_allclose(taps["sin"], expected, rtol=1e-6)
    assert taps.executions[0] == 2 * 4 * 3


def test_movement_and_outputs_of_one_operation_have_names():
    taps = trn_jax.tap(lambda x: jax.lax.sort((jnp.flip(x), x), num_keys=1), TRN2)(normal(2, 4))
    assert {"rev", "sort.0", "sort.1"} <= set(taps)


def test_taps_differentiate_and_batch():
    f = lambda x: trn_jax.tap(lambda x: jnp.sin(x) * 3, TRN2)(x)["sin"]
    assert jax.grad(f)(jnp.float32(0)) == 1
    np.testing.assert_allclose(jax.vmap(f)(jnp.arange(3.0)), np.sin(np.arange(3.0)), rtol=1e-6)


def test_chains_kept_in_fp32_are_tapped_in_fp32():
    x = jnp.asarray(normal(3, 8), jnp.bfloat16)
    tapped = lambda writes: trn_jax.tap(lambda x: jnp.sin(x) * 2, TRN2, writes=writes)(x)["sin"]
    np.testing.assert_array_equal(tapped("value"), tapped("instruction").astype(jnp.bfloat16))
    assert tapped("instruction").dtype == jnp.float32


def test_the_exact_twin_names_where_the_error_is_made():
    x, w = normal(4, 8, 8), normal(5, 8, 8)

    def f(x, w):
        with jax.named_scope("first"):
            y = x + w
        with jax.named_scope("second"):
            z = y @ w
        with jax.named_scope("third"):
            return jnp.tanh(z / 8)

    comparison = jax.jit(trn_jax.compare_exact(f, TRN2, autocast=MATMULT))(x, w)
    errors = dict(zip(comparison.names, np.asarray(comparison.rel_error), strict=True))
    assert errors["first/add"] == 0
    exact = (x.astype(np.float64) + w) @ w.astype(np.float64)
    emulated = np.asarray(trn_jax.emulate(f, TRN2, autocast=MATMULT)(x, w))
    np.testing.assert_allclose(errors["second/dot_general"], 2e-3, rtol=1)
    np.testing.assert_allclose(
        errors["third/tanh"], np.linalg.norm(emulated - np.tanh(exact / 8)) / np.linalg.norm(np.tanh(exact / 8)), rtol=1e-2
    )
    assert comparison.worst(1) == ("second/dot_general",)
    assert "second/dot_general" in comparison.to_table()
    assert "test_taps.py" in comparison.to_table()


def test_infinite_masks_are_no_error():
    """A mask of -inf that both twins have is the same value."""
    mask = np.tril(np.ones((4, 4), bool))
    f = lambda x: jax.nn.softmax(x @ x, where=mask)
    comparison = trn_jax.compare_exact(f, TRN2, autocast=MATMULT)(normal(8, 4, 4))
    assert np.isfinite(comparison.rel_error).all()
    assert np.isfinite(comparison.max_abs_error).all()
    assert comparison.worst(1) == ("dot_general",)
    lost = trn_jax.compare_exact(lambda x: x * x, TRN2, autocast=trn_jax.AutoCast("all", "fp16"))(jnp.array([300.0, 1.0]))
    assert np.asarray(lost.max_abs_error).tolist() == [np.inf]
    again = trn_jax.compare_exact(lambda x: -(x * x), TRN2, autocast=trn_jax.AutoCast("all", "fp16"))(jnp.array([300.0, 1.0]))
    assert np.asarray(again.rel_error).tolist() == [np.inf, np.inf]
    assert again.worst(1) == ("mul",)


def through(wrap):
    """Error made by a product, then read inside `wrap`'s body and again behind it."""
    return lambda x: jnp.tanh(wrap(lambda y: y + 1.0)(x @ x))


@pytest.mark.parametrize(
    "wrap",
    [
        jax.jit,
        jax.checkpoint,
        lambda f: lambda y: jax.lax.cond(True, f, lambda y: y, y),
        lambda f: lambda y: jax.lax.scan(lambda c, row: (c, f(row)), 0, y)[1],
        lambda f: lambda y: jax.lax.scan(lambda c, _: (f(c), None), y, None, length=2)[0],
        lambda f: lambda y: jax.lax.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + 1, f(c[1])), (0, y))[1],
    ],
    ids=["jit", "remat", "cond", "slices", "carry", "while"],
)
def test_errors_are_followed_into_bodies_and_out(wrap):
    comparison = trn_jax.compare_exact(through(wrap), TRN2, autocast=MATMULT)(normal(9, 4, 4) / 8)
    errors = dict(zip(comparison.names, zip(comparison.rel_error, comparison.operand_error, strict=True), strict=True))
    inside = next(name for name in errors if name.startswith("add"))
    assert errors[inside][1] >= errors["dot_general"][0] > 0
    assert errors["tanh"][1] >= errors[inside][0] > 0
    assert comparison.worst(1) == ("dot_general",)


def test_the_twin_of_a_bf16_program_is_fp32():
    x = jnp.asarray(normal(6, 16), jnp.bfloat16)

    def f(x):
        step = lambda c, _: (c * jnp.bfloat16(1.01) + 1, None)
        c = jax.lax.scan(step, x, None, length=4)[0]
        return jax.lax.cond(c.sum() > 0, jnp.sin, lambda c: c, c)

    comparison = jax.jit(trn_jax.compare_exact(f, TRN2))(x)
    exact = np.asarray(x, np.float64)
    for _ in range(4):
        exact = exact * float(jnp.bfloat16(1.01)) + 1
    emulated = np.asarray(trn_jax.emulate(f, TRN2)(x), np.float64)
    expected = np.linalg.norm(emulated - np.sin(exact)) / np.linalg.norm(np.sin(exact))
    np.testing.assert_allclose(comparison.rel_error[comparison.names.index("sin")], expected, rtol=1e-3)
    ideal = trn_jax.compare_exact(lambda x: jnp.tanh(x @ x), trn_jax.load_chip("ideal"), fidelity="fused")(normal(7, 4, 4))
    assert not np.any(ideal.rel_error)


def test_dropout_in_bf16_has_a_twin():
    f = lambda key, x: x * jax.random.normal(key, (4,), jnp.bfloat16)
    comparison = trn_jax.compare_exact(f, TRN2)(jax.random.key(0), jnp.ones(4, jnp.bfloat16))
    assert np.isfinite(comparison.rel_error).all()


def test_a_program_of_integers_has_nothing_to_compare():
    with pytest.raises(trn_jax.ProgramError, match="Nothing to compare"):
        trn_jax.compare_exact(lambda i: i + 1, TRN2)(jnp.arange(3))
