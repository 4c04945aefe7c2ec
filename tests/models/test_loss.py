import jax
import jax.numpy as jnp
import numpy as np

from trn_jax.models import IGNORED_TARGET, cross_entropy


def test_cross_entropy_is_the_mean_negative_log_probability_of_the_targets():
    logits = jax.random.normal(jax.random.key(0), (2, 3, 5)) * 3
    targets = jnp.asarray([[0, 4, 2], [1, 1, 3]])
    wanted = -np.mean(np.take_along_axis(np.asarray(jax.nn.log_softmax(logits)), np.asarray(targets)[..., None], -1))
    np.testing.assert_allclose(cross_entropy(logits, targets), wanted, rtol=1e-6)


def test_invalid_targets_count_for_nothing():
    logits = jax.random.normal(jax.random.key(1), (1, 4, 5))
    all_valid = cross_entropy(logits[:, :2], jnp.asarray([[3, 0]]))
    value, gradient = jax.value_and_grad(cross_entropy)(logits, jnp.asarray([[3, 0, IGNORED_TARGET, 5]]))
    np.testing.assert_allclose(value, all_valid, rtol=1e-6)
    assert not gradient[:, 2:].any()
    assert gradient[:, :2].all()


def test_a_batch_without_a_valid_target_has_loss_and_gradient_zero():
    logits = jnp.ones((2, 3, 5))
    value, gradient = jax.value_and_grad(cross_entropy)(logits, jnp.full((2, 3), IGNORED_TARGET))
    assert value == 0.0
    assert not gradient.any()


def test_huge_and_bf16_logits_give_a_finite_float32_loss():
    logits = jnp.asarray([[[3.0e38, -3.0e38, 0.0]]], jnp.bfloat16)
    loss = cross_entropy(logits, jnp.asarray([[0]]))
    assert loss.dtype == jnp.float32
    assert loss == 0.0


def test_the_gradient_is_probability_minus_target():
    logits = jax.random.normal(jax.random.key(2), (1, 1, 6))
    gradient = jax.grad(cross_entropy)(logits, jnp.asarray([[2]]))[0, 0]
    np.testing.assert_allclose(gradient, jax.nn.softmax(logits[0, 0]) - jax.nn.one_hot(2, 6), atol=1e-6)
