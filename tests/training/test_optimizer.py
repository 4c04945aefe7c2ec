import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trn_jax.errors import TrainingError
from trn_jax.training.optimizer import OptimizerConfig, make_optimizer

CONFIG = OptimizerConfig(learning_rate=1e-2, warmup_steps=2, decay_steps=10)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"beta2": 1.0}, r"beta2 is 1.0; .* below 1 in float32"),
        ({"beta2": 1.0 - 1e-9}, r"beta2 is 0.999999999; .* below 1 in float32"),
        ({"beta1": -0.1}, r"beta1 is -0.1"),
        ({"learning_rate": 0.0}, r"learning_rate is 0.0; it must be a positive number"),
        ({"learning_rate": float("nan")}, r"learning_rate is nan"),
        ({"clip_norm": float("inf")}, r"clip_norm is inf"),
        ({"weight_decay": -1.0}, r"weight_decay is -1.0"),
        ({"warmup_steps": 10}, r"warmup_steps is 10 and decay_steps 10"),
    ],
)
def test_scalars_out_of_range_are_refused(changes, message):
    with pytest.raises(TrainingError, match=message):
        OptimizerConfig(**{"learning_rate": 1e-2, "warmup_steps": 2, "decay_steps": 10, **changes})


def test_the_second_moment_moves_at_its_float32_rate():
    # In bf16, 0.99 is 0.98828 and 0.999 is 1.
    optimizer = make_optimizer(OptimizerConfig(learning_rate=1e-2, warmup_steps=2, decay_steps=10, beta2=0.999, clip_norm=1e9))
    weights = {"kernel_IO": jnp.ones((2, 2))}
    _, state = optimizer.update({"kernel_IO": jnp.full((2, 2), 3.0)}, optimizer.init(weights), weights)
    second = next(leaf for path, leaf in jax.tree_util.tree_leaves_with_path(state) if ".nu" in jax.tree_util.keystr(path))
    np.testing.assert_allclose(second, (1 - 0.999) * 9.0, rtol=1e-4)


def test_only_matrices_decay():
    optimizer = make_optimizer(CONFIG)
    weights = {"blocks": {"norm": {"scale_D": jnp.ones((3, 4))}, "up": {"kernel_IO": jnp.ones((3, 4, 4))}}, "table_VD": jnp.ones((5, 4))}
    state, still = optimizer.init(weights), jax.tree.map(jnp.zeros_like, weights)
    for _ in range(3):
        updates, state = optimizer.update(still, state, weights)
    assert (updates["blocks"]["up"]["kernel_IO"] < 0).all()
    assert not updates["blocks"]["norm"]["scale_D"].any()
    assert not updates["table_VD"].any()


def test_long_gradients_are_shortened_and_the_rate_warms_up_and_decays():
    optimizer = make_optimizer(OptimizerConfig(learning_rate=1e-2, warmup_steps=2, decay_steps=10, weight_decay=0.0))
    weights = {"table_VD": jnp.ones((4,))}
    state, sizes = optimizer.init(weights), []
    for _ in range(14):
        updates, state = optimizer.update({"table_VD": jnp.full((4,), 1e6)}, state, weights)
        sizes.append(float(jnp.abs(updates["table_VD"]).max()))
    # Adam's update is the rate itself while the gradient stays the same.
    np.testing.assert_allclose(sizes[:3], [0.0, 5e-3, 1e-2], rtol=1e-3)
    assert all(a > b for a, b in zip(sizes[2:10], sizes[3:11], strict=True))
    np.testing.assert_allclose(sizes[10:], 1e-3, rtol=1e-3)
