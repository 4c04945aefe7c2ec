"""The cast report lists every rounding, and only those."""

import jax
import jax.numpy as jnp

import trn_jax

from programs import arrays, mlp_arguments, mlp_loss  # isort: skip

TRN2 = trn_jax.load_chip("trainium2")
BF16 = trn_jax.AutoCast("matmult", "bf16")


def test_matmult_autocast_rounds_both_operands_of_every_product():
    params, x = mlp_arguments()
    report = trn_jax.cast_report(jax.grad(mlp_loss), TRN2, autocast=BF16)(params, x)
    assert {(c.instruction, c.to_format) for c in report} == {("nc_matmul", "bf16")}
    h, y = 6 * 24, 6 * 10
    forward = x.size + params[0].size + h + params[1].size
    backward = (y + params[1].size) + (y + h) + (h + x.size)
    assert report.total_elements == forward + backward
    assert all("programs.py" in c.source for c in report)


def test_nothing_is_listed_where_nothing_is_rounded():
    params, x = mlp_arguments()
    assert not trn_jax.cast_report(mlp_loss, TRN2)(params, x)
    assert not trn_jax.cast_report(mlp_loss, trn_jax.load_chip("ideal"), autocast=BF16)(params, x)
    assert "nothing is rounded" in repr(trn_jax.cast_report(mlp_loss, TRN2)(params, x))


def test_loops_multiply_and_chains_leave_out():
    (x,) = arrays((4, 8))
    looped = lambda x: jax.lax.scan(lambda c, _: (jnp.sin(c) * 2.0, None), x, None, length=5)[0]
    everything = trn_jax.AutoCast("all", "bf16")
    assert trn_jax.cast_report(looped, TRN2, autocast=everything)(x).total_elements == 2 * 5 * x.size
    assert trn_jax.cast_report(looped, TRN2, autocast=everything, writes="instruction")(x).total_elements == 5 * x.size


def test_the_table_names_formats_and_lines():
    table = trn_jax.cast_report(jnp.matmul, TRN2, autocast=BF16)(*arrays((3, 4), (4, 5))).to_table()
    assert "nc_matmul" in table
    assert "bf16" in table
    assert "12" in table


def test_scopes_of_calls_and_loops_hold_inside_them():
    def f(x):
        with jax.named_scope("layer"):
            return jax.lax.scan(lambda c, _: (jax.nn.relu(c @ c), None), x, None, length=2)[0]

    report = trn_jax.cast_report(f, TRN2, autocast=trn_jax.AutoCast("all", "bf16"))(*arrays((3, 3)))
    assert len(report) == 4
    assert {c.scope.split("/")[0] for c in report} == {"layer"}
