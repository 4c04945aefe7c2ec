"""A training step of any optax optimizer, forward, backward and update, runs on the chip and has a time."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest
from corpus import quick_jit

import trn_jax

from programs import arrays  # isort: skip

IDEAL, TRN2 = trn_jax.load_chip("ideal"), trn_jax.load_chip("trainium2")
NAMES = (
    "adabelief adadelta adafactor adagrad adam adamax adamaxw adamw adan amsgrad fromage lamb lars lbfgs lion nadam nadamw noisy_sgd "
    "novograd optimistic_adam_v2 optimistic_gradient_descent polyak_sgd radam rmsprop rprop sgd sign_sgd signum sm3 yogi"
).split()
CONTRIBUTED = (
    "muon schedule_free_adamw schedule_free_sgd cocob acprop dog dowg galore simplified_ademamix ademamix adopt dadapt_adamw madgrad momo "
    "momo_adam prodigy sophia"
).split()
# Not optimizers by themselves, an older name, or of per-example gradients.
ELSEWHERE = {"optimistic_adam", "dpsgd", "schedule_free"}


def train_step(name):
    factory = getattr(optax, name, None) or getattr(optax.contrib, name)
    learning_rate = inspect.signature(factory).parameters.get("learning_rate")
    options = {"noisy_sgd": {"key": jax.random.key(0)}}.get(name, {})
    needs_rate = learning_rate is not None and learning_rate.default is inspect.Parameter.empty
    optimizer = factory(1e-3, **options) if needs_rate else factory(**options)
    x, w, e = arrays((4, 5), (8, 6), (5, 8))
    params = {"w": w, "b": jnp.zeros((6,)), "e": e}
    loss = lambda p: jnp.mean(jnp.tanh(x @ p["e"] @ p["w"] + p["b"][None]) ** 2)

    def step(params, state):
        value, gradient = jax.value_and_grad(loss)(params)
        value_alone = dict.fromkeys(("polyak_sgd", "momo", "momo_adam"), {"value": value})
        others = {"lbfgs": {"value": value, "grad": gradient, "value_fn": loss}, "sophia": {"obj_fn": loss}}
        extra = {**value_alone, **others}.get(name, {})
        updates, state = optimizer.update(gradient, state, params, **extra)
        return optax.apply_updates(params, updates), state

    return step, params, optimizer.init(params)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*NAMES, *CONTRIBUTED])
def test_an_optimizers_step_is_plain_jax_on_the_ideal_chip_and_runs_and_is_timed_on_trainium2(name):
    with jax.numpy_rank_promotion("allow"):
        step, *args = train_step(name)
        plain = jax.jit(step)(*args)
        ideal = jax.jit(trn_jax.emulate(step, IDEAL, fidelity="fused"))(*args)
        rounded = quick_jit(trn_jax.emulate(step, TRN2, autocast=trn_jax.AutoCast("matmult", "bf16")))(*args)
        program = trn_jax.trace(step, *args, trip_count=3)
    numbers = lambda tree: [np.asarray(x) for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.number)]
    for a, b in zip(numbers(ideal), numbers(plain), strict=True):
        np.testing.assert_array_equal(a, b)
    assert all(np.isfinite(x).all() for x in numbers(rounded[0]))
    assert float(trn_jax.latency(program, TRN2)) > 0


def test_every_optimizer_of_optax_is_here():
    functions = {**vars(optax), **vars(optax.contrib)}
    public = {name for name, f in functions.items() if inspect.isfunction(f) and not name.startswith(("_", "scale_by"))}
    optimizers = {name for name in public if "learning_rate" in inspect.signature(functions[name]).parameters}
    assert optimizers <= {*NAMES, *CONTRIBUTED} | ELSEWHERE
