"""A value that is in a format already is not rounded to it again, which changes no bit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import trn_jax
from trn_jax.graph.run import observe

CHIP = trn_jax.load_chip("trainium2")
X = jax.random.normal(jax.random.key(0), (6, 5))


def roundings(fn, *args, scope="all", **options):
    """Formats that remain to be rounded to, by name of the operation."""
    seen = []

    def observer(op, instruction, changes):
        seen.extend((op.name, fmt) for fmt in (*instruction.operand_formats, *instruction.write_formats) if fmt and changes)

    with observe(observer):
        trn_jax.emulate(fn, CHIP, autocast=trn_jax.AutoCast(scope, "bf16"), **options)(*args)
    return seen


def test_an_operand_that_was_written_in_the_format_is_taken_as_it_is():
    assert roundings(lambda x: (x * x) @ x.T, X) == [
        ("mul", "bf16"),
        ("dot_general", "bf16"),
        ("dot_general", "bf16"),
    ]  # x.T, and the product


def test_data_that_moves_stays_what_it_was():
    moved = lambda x: lax.pad(lax.rev((x + x).T.reshape(3, 10), (0,)), 0.0, [(1, 1, 0), (1, 1, 0)]) @ jnp.ones((12, 2))
    assert roundings(moved, X) == [("add", "bf16")] + 2 * [("dot_general", "bf16")]  # the ones, which nobody rounded, and the product
    assert roundings(lambda x: jnp.concatenate([x + x, x]) @ jnp.ones((5, 5)), X).count(("dot_general", "bf16")) == 3


def test_choosing_between_rounded_values_rounds_nothing():
    assert roundings(lambda x: lax.select(x > 0, x + x, x * x), X) == [("add", "bf16"), ("mul", "bf16")]
    assert ("select_n", "bf16") in roundings(lambda x: lax.select(x > 0, x + x, x), X)  # one of them was not rounded
    assert ("max", "bf16") in roundings(lambda x: jnp.maximum(x + x, 0.1), X)  # 0.1 is no bf16 value


def test_values_inside_a_chain_were_not_rounded():
    assert roundings(lambda x: jnp.exp(x + x) @ x.T, X, writes="instruction").count(("exp", "bf16")) == 1
    assert roundings(lambda x: jnp.maximum(x + x, x * x), X, writes="instruction") == [("max", "bf16")]


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_no_bit_changes(rounding, monkeypatch):
    def fn(x):
        y = jax.nn.gelu(x @ x.T)
        return jnp.max(y, 0) @ jax.nn.softmax(y.T) @ jnp.flip(y)

    options = {"autocast": trn_jax.AutoCast("all", "bf16"), "rounding": rounding, "seed": jnp.uint32(1)}
    skipping = trn_jax.emulate(fn, CHIP, **options)(X)
    monkeypatch.setattr("trn_jax.graph.run.without_idle_roundings", lambda op, instructions, held: instructions)
    np.testing.assert_array_equal(trn_jax.emulate(fn, CHIP, **options)(X), skipping)
