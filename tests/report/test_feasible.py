"""A program that cannot run on the chip is said so beside its time."""

import jax
import jax.numpy as jnp

import trn_jax

TRN2 = trn_jax.load_chip("trainium2")


def test_a_report_says_when_the_memories_are_too_small():
    size = jax.ShapeDtypeStruct((2**18, 2**18), jnp.bfloat16)
    report = trn_jax.estimate(trn_jax.trace(jnp.matmul, size, size), TRN2)
    assert not report.feasible
    assert report.slack_bytes["hbm"] < 0 < report.slack_bytes["sbuf"]
    assert "CANNOT RUN: HBM" not in trn_jax.estimate(trn_jax.trace(jnp.matmul, *[jnp.ones((256, 256))] * 2), TRN2).to_table()
    assert "CANNOT RUN: HBM is" in report.to_table()
