"""find_nonfinite names the first instruction that makes a NaN or an infinity, wherever it stands."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import trn_jax

TRN2 = trn_jax.load_chip("trainium2")
BF16 = trn_jax.AutoCast("all", "bf16")
LOWEST = jnp.finfo(jnp.float32).min


def find(f, *args, **options):
    return jax.jit(trn_jax.find_nonfinite(f, TRN2, **options))(*args)


def test_a_sound_program_makes_nothing_and_gives_its_outputs():
    x = jnp.linspace(0.1, 1, 12).reshape(3, 4)
    f = lambda x: jax.nn.log_softmax(jnp.tanh(x @ x.T))
    found = find(f, x, autocast=BF16)
    assert not found
    assert found.site is None
    assert found.input is None
    assert "Nothing non-finite" in repr(found)
    np.testing.assert_array_equal(found.outputs, jax.jit(trn_jax.emulate(f, TRN2, autocast=BF16))(x))


def test_line_scope_engine_ranges_and_iteration_of_a_logarithm_inside_a_scan():
    def f(x):
        with jax.named_scope("model"):

            def body(c, y):
                with jax.named_scope("step"):
                    c = jnp.log(c - 1) + y
                return c, c

            return jax.lax.scan(body, x, jnp.ones((5, 3)))

    x = np.array([10.0, 20, 30], np.float32)
    found, expected, iteration = find(f, x), x, 0
    while (expected - 1).min() >= 0:
        expected, iteration = np.log(expected - 1) + 1, iteration + 1
    assert found.site.primitive == "log"
    assert found.site.engine == "scalar"
    assert found.site.scope == "model/step"
    assert "test_nonfinite.py" in found.site.source
    assert found.iterations.tolist() == [iteration]
    np.testing.assert_allclose(found.operand_ranges[0], [(expected - 1).min(), (expected - 1).max()], rtol=1e-5)
    assert "NaN is made by log (scalar)" in repr(found)
    assert f"iteration {iteration} of the loop" in repr(found)


def test_the_first_in_order_of_execution_not_of_the_text():
    def body(c, _):
        a = 1 / (c - 2)  # infinite in iteration 2
        b = 1 / (c - 1)  # infinite in iteration 1
        return c + 1, a + b

    found = find(lambda x: jax.lax.scan(body, x, None, length=4), jnp.float32(0))
    assert found.iterations.tolist() == [1]
    assert "inf is made by div" in repr(found)


def test_iterations_of_nested_loops_and_of_while():
    def f(x):
        outer = lambda c, _: (
            jax.lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] / (s[1] - 5) * 0 + s[1] + 1), (0, c))[1],
            None,
        )
        return jax.lax.scan(outer, x, None, length=4)[0]

    found = find(f, jnp.float32(1))  # 5 is met after 4 steps of 3 in each outer iteration
    assert found.iterations.tolist() == [1, 1]
    assert len(found.site.loops) == 2


@pytest.mark.parametrize("taken", [True, False], ids=["taken", "not_taken"])
def test_only_the_branch_that_runs_counts(taken):
    f = lambda p, x: jax.lax.cond(p, lambda x: x / 0, lambda x: x + 1, x)
    assert find(f, jnp.bool_(taken), jnp.float32(1)).found == taken


def test_a_cast_that_overflows_and_the_sum_of_two_masks():
    cast = find(lambda m: (1 - m) * LOWEST, jnp.array([1.0, 0.0]), autocast=BF16)
    assert cast.site.primitive == "mul"
    assert "-inf is made by mul" in repr(cast)
    assert not find(lambda m: (1 - m) * LOWEST, jnp.array([1.0, 0.0]), autocast=BF16, overflow="saturate")
    lowest = jnp.full(3, jnp.finfo(jnp.bfloat16).min, jnp.bfloat16)
    masks = find(lambda a, b: jax.nn.softmax(a + b), lowest, lowest)
    assert masks.site.primitive == "add"


def test_a_mask_of_infinities_is_no_event_but_the_row_it_covers_whole_is():
    f = lambda keep: jax.nn.softmax(jnp.where(keep, 1.0, -jnp.inf))
    assert not find(f, jnp.array([True, False]))
    found = find(f, jnp.array([False, False]))
    assert found.site.primitive == "sub"
    assert "NaN" in repr(found)


def test_an_input_that_is_not_finite_is_named():
    found = find(lambda p, x: p["w"] * x, {"b": jnp.ones(2), "w": jnp.array([1.0, jnp.nan])}, jnp.ones(2))
    assert not found
    assert found.input == "args[0]['w']"
    assert "args[0]['w'] is not finite to begin with" in repr(found)


@pytest.mark.parametrize("differentiated", [False, True], ids=["forward", "gradient"])
def test_inside_custom_rules_remat_and_calls(differentiated):
    @jax.custom_vjp
    def root(x):
        return jnp.sqrt(x)

    root.defvjp(lambda x: (jnp.sqrt(x), x), lambda x, ct: (ct * 0.5 / jnp.sqrt(x),))
    f = lambda x: jax.jit(jax.checkpoint(root))(jax.nn.relu(x)).sum()
    found = find(jax.grad(f) if differentiated else f, jnp.array([-1.0, 4.0]))
    assert found.found == differentiated
    if differentiated:
        assert found.site.primitive == "div"
        assert found.operand_ranges[1].tolist() == [0, 2]


def test_the_gradient_of_what_is_watched_keeps_the_users_rule():
    @jax.custom_vjp
    def odd(x):
        return x * x

    odd.defvjp(lambda x: (x * x, None), lambda _, ct: (7 * ct,))
    body = lambda c, _: (odd(c) + jax.nn.relu(c), None)
    outputs = lambda x: trn_jax.find_nonfinite(lambda x: jax.lax.scan(body, x, None, length=1)[0], TRN2)(x).outputs
    batched = lambda x: jax.vmap(jax.grad(outputs))(x[None])[0]
    for gradient in (jax.grad(outputs), jax.jit(jax.grad(outputs)), jax.grad(jax.jit(outputs)), batched):
        assert gradient(jnp.float32(0)) == 7


@pytest.mark.parametrize("check_vma", [True, False], ids=["vma", "no_vma"])
def test_under_shard_map_the_rank_that_made_it_not_those_it_spread_to(check_vma):
    mesh = jax.make_mesh((4,), ("ring",), axis_types=(jax.sharding.AxisType.Auto,))
    local = lambda x: jax.lax.psum(jax.lax.scan(lambda c, _: (jnp.sqrt(c) * 3 - 2, None), x, None, length=3)[0], "ring")
    f = jax.shard_map(local, mesh=mesh, in_specs=jax.P("ring"), out_specs=jax.P(), check_vma=check_vma)
    found = find(f, jnp.array([4.0, 4, 0, 5]))
    assert found.site.primitive == "sqrt"
    assert found.rank == 2
    assert found.iterations.tolist() == [1]


def test_it_is_data_under_vmap_and_scan():
    look = trn_jax.find_nonfinite(lambda x: jnp.sqrt(jnp.log(x)), TRN2)
    assert jax.vmap(look)(jnp.array([2.0, 0.5, 0.0])).index.tolist() == [0, 1, 0]
    assert jax.vmap(look)(jnp.array([2.0, 0.5, 0.0])).found.tolist() == [False, True, True]
    steps = jax.lax.scan(lambda c, x: (c, look(x).found), 0, jnp.array([2.0, 0.5]))[1]
    assert steps.tolist() == [False, True]


def test_a_padded_row_in_a_loss():
    def loss(logits, valid):
        each = -jax.nn.log_softmax(logits)[:, 0]
        return (each * valid).sum(1) / valid.sum(1)

    logits, valid = jnp.ones((2, 3, 5)), jnp.array([[1.0, 1, 1], [0, 0, 0]])
    found = find(lambda l, v: loss(l.reshape(2, 3, 5).swapaxes(1, 2), v), logits, valid)
    assert found.site.primitive == "div"
    assert found.operand_ranges[1].tolist() == [0, 3]


def test_keys_and_samples_pass():
    f = lambda key: jax.lax.scan(lambda key, _: (jax.random.split(key)[0], jax.random.normal(key, (3,))), key, None, length=2)[1]
    assert not find(f, jax.random.key(0))
    found = find(lambda key, x: jnp.log(jax.random.normal(key, (64,)) * x), jax.random.key(0), jnp.float32(1))
    assert found.site.primitive == "log"


def test_shard_map_inside_a_scan_counts_both_loops():
    mesh = jax.make_mesh((2,), ("ring",), axis_types=(jax.sharding.AxisType.Auto,))
    local = lambda x: jax.lax.scan(lambda c, _: (jnp.sqrt(c - 1) + 0 * c, None), x, None, length=2)[0] + 20
    shard = jax.shard_map(local, mesh=mesh, in_specs=jax.P("ring"), out_specs=jax.P("ring"))
    found = find(lambda x: jax.lax.scan(lambda c, _: (shard(c) - 19, None), x, None, length=3)[0], jnp.array([50.0, 30.0]))
    c, expected = np.array([50.0, 30.0]), None
    for outer in range(3):
        for inner in range(2):
            if expected is None and (c - 1 < 0).any():
                expected = [outer, inner]
                rank = int(np.argmax(c - 1 < 0))
            c = np.sqrt(np.maximum(c - 1, 0))
        c = c + 1
    assert found.iterations.tolist() == expected
    assert found.rank == rank
