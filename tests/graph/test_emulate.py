"""emulate: plain JAX on the ideal chip, the chip's rounding elsewhere, under every JAX transformation."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from programs import PROGRAMS, arrays, mlp_arguments, mlp_loss, scanned

import trn_jax
from trn_jax.graph.graph import Op, walk
from trn_jax.graph.run import observe

IDEAL, TRN2 = trn_jax.load_chip("ideal"), trn_jax.load_chip("trainium2")
BF16 = trn_jax.AutoCast("matmult", "bf16")
ALL_BF16 = trn_jax.AutoCast("all", "bf16")


def bits(tree):
    return [np.asarray(x).tobytes() for x in jax.tree.leaves(tree)]


def distance(a, b):
    """Largest relative distance in norm over the leaves."""
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return max(float(jnp.linalg.norm((x - y).astype(jnp.float32)) / (jnp.linalg.norm(y.astype(jnp.float32)) + 1e-30)) for x, y in pairs)


@pytest.mark.parametrize("name", PROGRAMS)
def test_ideal_chip_at_fused_fidelity_is_plain_jax_bit_for_bit(name):
    fn, args = PROGRAMS[name]
    seen = []
    with jax.numpy_rank_promotion("allow"), observe(lambda op, instruction, changes: seen.append((instruction, changes))):
        emulated = jax.jit(trn_jax.emulate(fn, IDEAL, fidelity="fused"))(*args)
        plain = jax.jit(fn)(*args)
    assert bits(emulated) == bits(plain)
    assert seen, "the walker met no instruction"
    assert not any(changes for _, changes in seen)


def test_the_walker_meets_every_operation_of_the_graph():
    from trn_jax._compat import trace_graph
    from trn_jax.graph.rules import VIEWS

    fn, args = PROGRAMS["mlp_gradient"]
    seen = []
    with observe(lambda op, instruction, changes: seen.append(op.name)):
        jax.make_jaxpr(trn_jax.emulate(fn, IDEAL, fidelity="fused"))(*args)
    met = sorted(set(seen))
    expected = sorted({node.name for node in walk(trace_graph(fn, *args).graph) if isinstance(node, Op)} - VIEWS - {"transpose"})
    assert set(expected) <= {*met, "transpose"}
    assert met.count("dot_general") == 1
    assert seen.count("dot_general") == 2 * 5  # nc_matmul and evacuation of two forward and three backward products


@pytest.mark.parametrize("fidelity", ["fused", "tiled"])
def test_ideal_chip_in_bf16_keeps_plain_jax_values_when_fused(fidelity):
    args = mlp_arguments(jnp.bfloat16)
    emulated = jax.jit(trn_jax.emulate(mlp_loss, IDEAL, fidelity=fidelity))(*args)
    np.testing.assert_allclose(np.float32(emulated), np.float32(jax.jit(mlp_loss)(*args)), rtol=2**-7)


@pytest.mark.parametrize("fidelity", ["fused", "tiled", "systolic"])
def test_matmul_operands_are_rounded_once_and_accumulated_in_fp32(fidelity):
    a, b = arrays((5, 300), (300, 7))
    expected = trn_jax.round_to(a, "bf16") @ trn_jax.round_to(b, "bf16")
    got = trn_jax.emulate(jnp.matmul, TRN2, autocast=BF16, fidelity=fidelity)(a, b)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
    assert distance(got, a @ b) > 1e-4


def test_autocast_none_bf16_tf32_and_fp16_show_in_one_product():
    a, b = jnp.array([[1 + 2**-8]]), jnp.array([[256.0]])
    product = lambda cast: float(trn_jax.emulate(jnp.matmul, TRN2, autocast=cast)(a, b)[0, 0])
    formats = [None, *(trn_jax.AutoCast("matmult", fmt) for fmt in ("bf16", "tf32", "fp16"))]
    assert [product(cast) for cast in formats] == [257.0, 256.0, 257.0, 257.0]


def test_bf16_operands_accumulate_in_fp32_and_round_on_evacuation():
    ones = jnp.ones((1, 70000), jnp.bfloat16)
    dot = trn_jax.emulate(lambda a, b: a @ b.T, TRN2)(ones, ones)
    assert dot.dtype == jnp.bfloat16
    assert float(dot[0, 0]) == 70144.0


def test_a_transposed_bf16_operand_meets_a_middle_axis():
    x, w = arrays((4, 6), (3, 4, 2), dtype=jnp.bfloat16)
    product = lambda x, w: jnp.einsum("km,bkn->bmn", x, w, preferred_element_type=jnp.float32)
    expected = np.einsum("km,bkn->bmn", np.float32(x), np.float32(w))
    np.testing.assert_allclose(jax.jit(trn_jax.emulate(product, TRN2))(x, w), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("activation", [jnp.exp, jnp.tanh, jax.nn.sigmoid, jax.nn.gelu, jax.nn.silu])
def test_bf16_functions_compute_in_fp32_and_round_on_write(activation):
    x = arrays((64,), dtype=jnp.bfloat16)[0]
    got = trn_jax.emulate(activation, TRN2, writes="instruction")(x)
    once = activation(x.astype(jnp.float32)).astype(jnp.bfloat16)
    assert bits(got) == bits(once) or activation is jax.nn.gelu
    assert distance(got, once) < 2**-7


def test_writes_value_rounds_each_step_and_writes_instruction_only_the_last():
    x = jnp.bfloat16(1.0)
    chain = lambda x: (x + jnp.bfloat16(2**-8)) + jnp.bfloat16(2**-8)
    assert float(trn_jax.emulate(chain, TRN2)(x)) == 1.0
    assert float(trn_jax.emulate(chain, TRN2, writes="instruction")(x)) == 1 + 2**-7
    assert float(jax.jit(trn_jax.emulate(chain, TRN2, writes="instruction"))(x)) == 1 + 2**-7


def test_an_explicit_cast_rounds_even_inside_a_chain():
    x = jnp.float32(1 + 2**-9)
    there_and_back = lambda x: x.astype(jnp.bfloat16).astype(jnp.float32) + 0.0
    for writes in ("value", "instruction"):
        assert float(jax.jit(trn_jax.emulate(there_and_back, TRN2, writes=writes))(x)) == 1.0


def test_autocast_all_rounds_what_every_engine_writes():
    x = arrays((33,))[0]
    out = trn_jax.emulate(lambda x: jnp.sin(x) * 1.1 + x, TRN2, autocast=ALL_BF16)(x)
    assert out.dtype == jnp.float32
    assert bits(out) == bits(trn_jax.round_to(out, "bf16"))


@pytest.mark.parametrize(("dtype", "bound"), [(jnp.float32, 2**-6), (jnp.bfloat16, 2**-6)])
@pytest.mark.parametrize("fidelity", ["fused", "tiled"])
def test_gradient_of_the_emulation_agrees_with_emulation_of_the_gradient(dtype, bound, fidelity):
    args = mlp_arguments(dtype)
    inside = jax.jit(trn_jax.emulate(jax.grad(mlp_loss), TRN2, autocast=BF16, fidelity=fidelity))(*args)
    outside = jax.jit(jax.grad(trn_jax.emulate(mlp_loss, TRN2, autocast=BF16, fidelity=fidelity)))(*args)
    assert distance(outside, inside) < bound
    assert distance(inside, jax.grad(mlp_loss)(*mlp_arguments())) < 2 * bound


def test_fp8_gradients_agree_within_a_quarter():
    args, fp8 = mlp_arguments(), trn_jax.AutoCast("matmult", "fp8_e4m3")
    inside = trn_jax.emulate(jax.grad(mlp_loss), TRN2, autocast=fp8)(*args)
    outside = jax.grad(trn_jax.emulate(mlp_loss, TRN2, autocast=fp8))(*args)
    assert distance(outside, inside) < 2**-2


@pytest.mark.slow
def test_stochastic_gradients_have_equal_means():
    args = mlp_arguments()
    options = {"autocast": ALL_BF16, "rounding": "stochastic"}
    seeds = jnp.arange(200, dtype=jnp.uint32)
    inside = jax.vmap(lambda s: trn_jax.emulate(jax.grad(mlp_loss), TRN2, seed=s, **options)(*args)[1])(seeds)
    outside = jax.vmap(lambda s: jax.grad(trn_jax.emulate(mlp_loss, TRN2, seed=s, **options))(*args)[1])(seeds)
    one_run = distance(inside[0], jax.grad(mlp_loss)(*args)[1])
    assert one_run > 2**-9
    assert distance(inside.mean(0), outside.mean(0)) < one_run * 3 * (2 / len(seeds)) ** 0.5


def test_a_users_custom_vjp_keeps_its_rule_and_is_emulated():
    @jax.custom_vjp
    def tripled(a, b):
        return a @ b

    tripled.defvjp(lambda a, b: (a @ b, (a, b)), lambda saved, g: (3 * g @ saved[1].T, 3 * saved[0].T @ g))
    x, w = arrays((8, 140), (140, 6))
    f = lambda w: jnp.mean(tripled(x, w) ** 2)
    plain = jax.grad(f)(w)
    for options in ({"autocast": BF16}, {"autocast": ALL_BF16, "rounding": "stochastic", "seed": jnp.uint32(5)}):
        inside = trn_jax.emulate(jax.grad(f), TRN2, **options)(w)
        outside = jax.jit(jax.grad(trn_jax.emulate(f, TRN2, **options)))(w)
        assert distance(outside, inside) < 2**-5
        assert 1e-4 < distance(outside, plain) < 2**-5


def test_a_users_custom_jvp_keeps_its_rule_in_both_modes():
    @jax.custom_jvp
    def doubled_slope(x):
        return jnp.sin(x)

    doubled_slope.defjvp(lambda primals, tangents: (jnp.sin(primals[0]), 2 * jnp.cos(primals[0]) * tangents[0]))
    x = jnp.array([0.3, 0.7])
    emulated = trn_jax.emulate(lambda x: doubled_slope(x).sum(), TRN2, autocast=ALL_BF16)
    np.testing.assert_allclose(jax.grad(emulated)(x), 2 * jnp.cos(x), rtol=2**-7)
    np.testing.assert_allclose(jax.jvp(emulated, (x,), (jnp.ones(2),))[1], 2 * jnp.cos(x).sum(), rtol=2**-7)


def test_relu_has_slope_zero_at_zero():
    slope = jax.grad(trn_jax.emulate(lambda x: jax.nn.relu(x).sum(), TRN2))(jnp.array([-1.0, 0.0, 2.0]))
    assert slope.tolist() == [0.0, 0.0, 1.0]


def test_jit_vmap_scan_and_eager_give_the_same_bits():
    fn = trn_jax.emulate(lambda x: jnp.tanh(x @ x.T) + x.sum(), TRN2, autocast=ALL_BF16)
    batch = arrays((3, 4, 130))[0]
    one_by_one = jnp.stack([fn(x) for x in batch])
    scanned_over = jax.lax.scan(lambda _, x: (None, fn(x)), None, batch)[1]
    np.testing.assert_allclose(jax.jit(jax.vmap(fn))(batch), one_by_one, rtol=2**-7)
    np.testing.assert_allclose(scanned_over, one_by_one, rtol=2**-7)


def test_seeds_decide_the_bits_and_vmap_shares_them():
    x = arrays((40,))[0]
    draw = lambda seed, x: trn_jax.emulate(lambda x: x * 1.1, TRN2, autocast=ALL_BF16, rounding="stochastic", seed=seed)(x)
    assert bits(draw(3, x)) == bits(jax.jit(draw)(jnp.uint32(3), x))
    assert bits(draw(3, x)) != bits(draw(4, x))
    lanes = jax.vmap(lambda x: draw(jnp.uint32(3), x))(jnp.stack([x, x]))
    assert bits(lanes[0]) == bits(lanes[1]) == bits(draw(3, x))


def test_every_iteration_and_every_instruction_draws_its_own_bits():
    x = jnp.full((1000,), 1 + 2**-9)
    step = lambda c, _: (c, c + 0.0)
    rounded = trn_jax.emulate(lambda x: jax.lax.scan(step, x, None, length=3)[1], TRN2, autocast=ALL_BF16, rounding="stochastic", seed=1)(x)
    assert len({row.tobytes() for row in np.asarray(rounded)}) == 3
    first, second = trn_jax.emulate(lambda x: (x + 0.0, x + 0.0), TRN2, autocast=ALL_BF16, rounding="stochastic", seed=1)(x)
    assert bits(first) != bits(second)


@pytest.mark.parametrize("check_vma", [True, False])
def test_shard_map_programs_run_forward_and_backward(check_vma):
    mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    x, w = arrays((8, 140), (140, 6))
    local = lambda x, w: jax.lax.psum(jnp.sum(jnp.tanh(x @ w)), "x")
    f = lambda w: jax.shard_map(local, mesh=mesh, in_specs=(jax.P("x"), jax.P()), out_specs=jax.P(), check_vma=check_vma)(x, w)
    value, gradient = jax.jit(jax.value_and_grad(f))(w)
    for options in ({"autocast": BF16}, {"autocast": ALL_BF16, "rounding": "stochastic", "seed": jnp.uint32(2)}):
        np.testing.assert_allclose(jax.jit(trn_jax.emulate(f, TRN2, **options))(w), value, rtol=2**-5, atol=0.05)
        assert distance(jax.jit(trn_jax.emulate(jax.grad(f), TRN2, **options))(w), gradient) < 2**-4
        assert distance(jax.jit(jax.grad(trn_jax.emulate(f, TRN2, **options)))(w), gradient) < 2**-4
    np.testing.assert_allclose(trn_jax.emulate(f, TRN2, autocast=BF16)(w), value, rtol=2**-5, atol=0.05)  # not compiled as a whole
    inside = jax.shard_map(
        lambda x, w: trn_jax.emulate(local, TRN2, autocast=BF16)(x, w), mesh=mesh, in_specs=(jax.P("x"), jax.P()), out_specs=jax.P(),
        check_vma=check_vma,
    )(x, w)  # fmt: skip
    np.testing.assert_allclose(inside, value, rtol=2**-6, atol=0.05)


def test_scan_over_layers_equals_the_unrolled_loop():
    x, w = arrays((4, 16), (5, 16, 16))

    def unrolled(x, w):
        total = 0.0
        for w_layer in w:
            x = jnp.tanh(x @ w_layer)
            total = total + x.sum()
        return x.mean() + total

    for fn in (lambda f: trn_jax.emulate(f, TRN2, autocast=BF16), lambda f: trn_jax.emulate(jax.grad(f, argnums=1), TRN2, autocast=BF16)):
        np.testing.assert_allclose(jax.jit(fn(scanned))(x, w), jax.jit(fn(unrolled))(x, w), rtol=1e-5, atol=1e-6)


def test_static_arguments_keywords_and_pytrees_pass_through():
    def f(tree, *, flag, name):
        assert isinstance(flag, bool)
        return {name: tree["a"] * 2 if flag else tree["a"], "none": None}

    out = trn_jax.emulate(f, TRN2)({"a": jnp.ones(2)}, flag=True, name="b")
    assert out["none"] is None
    assert out["b"].tolist() == [2.0, 2.0]


def test_debug_prints_pass_through_in_order(capfd):
    def f(x):
        jax.debug.print("first {}", x)
        jax.debug.print("second {}", x + 1)
        return x

    jax.block_until_ready(jax.jit(trn_jax.emulate(f, TRN2))(jnp.float32(1)))
    jax.effects_barrier()
    out = capfd.readouterr().out
    assert re.search("first 1.*second 2", out, re.DOTALL)


def test_a_constant_seed_in_a_jitted_update_warns():
    update = lambda w: trn_jax.emulate(lambda w: w - jnp.bfloat16(1e-3), TRN2, rounding="stochastic", seed=0)(w)
    with pytest.warns(trn_jax.ConstantSeedWarning, match=r"Pass the step: seed=jnp\.uint32\(step\)"):
        jax.jit(update)(jnp.ones(4, jnp.bfloat16))


def test_updates_far_below_half_an_ulp_survive_when_the_step_is_the_seed():
    def run(seed_of):
        def step(w, i):
            return trn_jax.emulate(lambda w: w - jnp.bfloat16(1e-3), TRN2, rounding="stochastic", seed=seed_of(i))(w), None

        return float(jax.lax.scan(step, jnp.ones(20000, jnp.bfloat16), jnp.arange(400, dtype=jnp.uint32))[0].astype(jnp.float32).mean())

    assert abs(run(lambda i: i) - 0.6) < 0.01
    assert run(lambda i: jnp.uint32(12345) + 0 * i) > 0.7


def test_samplers_of_jax_random_stay_inside_their_interval_under_autocast_all():
    draw = lambda: (jax.random.normal(jax.random.key(0), (20000,)), jax.random.uniform(jax.random.key(1), (20000,)))
    normal, uniform = trn_jax.emulate(draw, TRN2, autocast=ALL_BF16, rounding="stochastic", seed=1)()
    assert bits((normal, uniform)) == bits(draw())
    assert jnp.isfinite(normal).all()


def test_a_users_function_named_like_a_sampler_is_cast():
    @jax.jit
    def _normal(a, b):
        return a @ b

    a, b = jnp.array([[1 + 2**-8]]), jnp.array([[256.0]])
    assert float(trn_jax.emulate(_normal, TRN2, autocast=BF16)(a, b)[0, 0]) == 256.0


def test_literal_results_are_arrays():
    doubled, one, flag = trn_jax.emulate(lambda x: (x * 2, 1.0, True), TRN2)(jnp.ones(2))
    assert (one.dtype, one.weak_type, flag.dtype) == (jnp.float32, True, jnp.bool_)
    assert doubled.shape == (2,)


def test_integer_products_stay_integers_at_every_fidelity():
    a = jnp.arange(600, dtype=jnp.int32).reshape(2, 300)
    assert bits(trn_jax.emulate(lambda a: a @ a.T, TRN2)(a)) == bits(a @ a.T)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"fidelity": "tile"}, trn_jax.FormatError, "fidelity='tile' is not known. Did you mean 'tiled'"),
        ({"rounding": "stochastic"}, trn_jax.FormatError, "needs seed="),
        ({"autocast": "bf16"}, TypeError, "give trn_jax.AutoCast"),
        ({"writes": "always"}, trn_jax.FormatError, "writes='always'"),
        ({"autocast": trn_jax.AutoCast("matmult", "fp8_e4m3fn")}, trn_jax.FormatError, "has no fp8_e4m3fn operands"),
    ],
)
def test_bad_options_are_named(options, error, message):
    with pytest.raises(error, match=re.escape(message)):
        trn_jax.emulate(jnp.sin, TRN2, **options)


def test_autocast_names_its_closest_match():
    with pytest.raises(trn_jax.FormatError, match="Did you mean 'matmult'"):
        trn_jax.AutoCast("matmul", "bf16")
    with pytest.raises(trn_jax.FormatError, match="Did you mean 'bf16'"):
        trn_jax.AutoCast("all", "bf61")
    with pytest.raises(trn_jax.FormatError, match=r"format \['bf16'\] is not known"):
        trn_jax.AutoCast("all", ["bf16"])


def test_a_shape_has_no_values_to_run_on():
    with pytest.raises(TypeError, match=r"Argument 0\['x'\] is ShapeDtypeStruct.*trn_jax\.trace"):
        trn_jax.emulate(lambda tree: tree["x"] + 1, TRN2)({"x": jax.ShapeDtypeStruct((2,), jnp.float32)})
    with pytest.raises(TypeError, match=r"Argument 0 is ShapeDtypeStruct"):
        trn_jax.find_nonfinite(jnp.sin, TRN2)(jax.ShapeDtypeStruct((2,), jnp.float32))
    assert jax.eval_shape(trn_jax.emulate(jnp.sin, TRN2), jax.ShapeDtypeStruct((2,), jnp.float32)).shape == (2,)


def test_a_traced_chip_and_a_broken_array_are_refused():
    rows = lambda r: trn_jax.emulate(jnp.sin, TRN2.replace({"tensor.rows": r}))(1.0)
    with pytest.raises(TypeError, match=r"concrete chip, but tensor\.rows is traced"):
        jax.grad(rows)(128.0)
    with pytest.raises(TypeError, match=r"tensor\.rows is 100\.5"):
        rows(100.5)
    with pytest.raises(TypeError, match="load_chip"):
        trn_jax.emulate(jnp.sin, "trainium2")
    with pytest.raises(TypeError, match="Give the function itself"):
        trn_jax.emulate(1.0, TRN2)


def test_mutable_references_are_refused_with_the_way_out():
    def f(x):
        ref = jax.new_ref(x)
        ref[...] = ref[...] + 1
        return ref[...]

    with pytest.raises(trn_jax.UnsupportedError, match="split the module outside"):
        trn_jax.emulate(f, TRN2)(jnp.ones(3))


def test_a_seed_is_a_whole_number_and_a_chip_is_one_chip():
    draw = lambda seed: trn_jax.emulate(jnp.sin, TRN2, autocast=ALL_BF16, rounding="stochastic", seed=seed)(jnp.ones(2))
    with pytest.raises(trn_jax.FormatError, match=r"got 1\.5"):
        draw(1.5)
    with pytest.raises(trn_jax.FormatError, match=r"give jax\.random\.bits\(key\)"):
        draw(jax.random.key(0))
    with pytest.raises(TypeError, match=r"tensor\.rows has shape \(2,\)"):
        trn_jax.emulate(jnp.sin, TRN2.replace({"tensor.rows": jnp.array([64.0, 128.0])}))
