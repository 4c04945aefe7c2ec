"""The ring inside an emulated function: the chip's arithmetic around it, the ring's own formats in it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import trn_jax
from trn_jax.network import ring_all_reduce


@pytest.mark.parametrize("check_vma", [True, False], ids=["vma", "no_vma"])
def test_emulation_keeps_the_bits_and_the_gradient_of_the_ring(replicated_out, check_vma):
    chip = trn_jax.load_chip("trainium2")
    x = np.random.default_rng(0).standard_normal((2, 5)).astype(np.float32)
    ring = replicated_out(lambda v: ring_all_reduce(v, "r", "bf16"), 2, check_vma=check_vma)

    def loss(v):
        return jnp.sum(ring(v) ** 2)

    assert (jax.jit(trn_jax.emulate(ring, chip))(x) == jax.jit(ring)(x)).all()
    want = jax.jit(jax.grad(loss))(x)
    assert (jax.jit(trn_jax.emulate(jax.grad(loss), chip))(x) == want).all()
    assert (jax.jit(jax.grad(trn_jax.emulate(loss, chip)))(x) == want).all()
