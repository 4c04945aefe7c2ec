# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # The chip's numbers, in pictures
#
# Which values each format holds, what rounding does to a value, how sums grow in PSUM, what that means for training, and how to find the
# operation that spoilt a result. About a minute on two cores. `docs/numerics.md` has the rules.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

import trn_jax

trn2, trn3 = trn_jax.load_chip("trainium2"), trn_jax.load_chip("trainium3")

# %% [markdown]
# ## 1. Error by magnitude
#
# A format with m bits of mantissa is at most 2^-(m+1) off, relative to the value, as long as its exponent lasts. Below its smallest normal
# number the error grows until the value is lost (100 %); above its largest it becomes infinite, and the curve ends.

# %%
x = jnp.asarray(np.geomspace(1e-9, 1e9, 40_000), jnp.float32)
figure, axes = plt.subplots(figsize=(8, 3.5))
for fmt in ("tf32", "bf16", "fp16", "fp8_e5m2", "fp8_e4m3", "fp8_e3m4"):
    error = np.abs(np.asarray(trn_jax.round_to(x, fmt)) / np.asarray(x) - 1)
    largest_in_bin = np.where(np.isfinite(error), error, np.nan).reshape(200, -1).max(1)
    axes.loglog(np.asarray(x).reshape(200, -1).mean(1), largest_in_bin, label=fmt)
axes.set(xlabel="value", ylabel="largest relative error")
axes.legend(ncols=2)
axes.grid(alpha=0.3)
plt.show()

# %% [markdown]
# ## 2. Codes on the number line
#
# Every value between 0 and 8 that a format holds. `fp8_e4m3` and `fp8_e4m3fn` agree here and differ at the top: Trainium2's ends at 240 and
# overflows to infinity, OCP's (Trainium3) at 448 and to NaN.

# %%
fine = jnp.arange(0, 8, 2**-12, dtype=jnp.float32)
formats = ("mxfp4_e2m1fn", "fp8_e5m2", "fp8_e4m3", "fp8_e3m4")
figure, axes = plt.subplots(figsize=(8, 2.2))
for place, fmt in enumerate(formats):
    # 32 values share a scale in an MX block; a 4 among them makes it 1, and the picture that of the elements alone.
    blocks = jnp.concatenate([fine.reshape(-1, 1), jnp.full((fine.size, 31), 4.0)], axis=1)
    values = trn_jax.round_to(blocks, fmt, axis=-1)[:, 0] if fmt.startswith("mx") else trn_jax.round_to(fine, fmt)
    values = np.unique(np.asarray(values))
    axes.plot(values, np.full(values.size, -place), "|", markersize=14, color=f"C{place}")
axes.set_yticks([-place for place in range(len(formats))], formats)
axes.set_xlabel("value")
plt.show()
print(
    "at the top: ",
    {fmt: [float(trn_jax.round_to(jnp.float32(v), fmt)) for v in (240, 250, 448, 500)] for fmt in ("fp8_e4m3", "fp8_e4m3fn")},
)

# %% [markdown]
# ## 3. To nearest, or stochastically
#
# Nearest rounding is a staircase: whatever is less than half a step is gone. Stochastic rounding goes up with a probability equal to the
# distance, so its mean is the value itself. The bits are a function of the seed: the same seed, the same roundings.

# %%
x = jnp.linspace(1.0, 1.0 + 2**-5, 200)
nearest = trn_jax.round_to(x, "bf16")
stochastic = jax.vmap(lambda seed: trn_jax.round_to(x, "bf16", rounding="stochastic", seed=seed))(jnp.arange(256, dtype=jnp.uint32))
figure, axes = plt.subplots(figsize=(6, 3.5))
axes.plot(x, nearest, label="to nearest")
axes.plot(x, stochastic[0], ".", markersize=3, label="stochastically, one seed")
axes.plot(x, stochastic.mean(0), label="mean of 256 seeds")
axes.plot(x, x, "k--", linewidth=0.8)
axes.set(xlabel="value", ylabel="in bf16")
axes.legend()
plt.show()

# %% [markdown]
# Why it matters: a bf16 weight of 1, lowered by 0.001 a thousand times. The next bf16 below is 1 - 2^-8, so nearest rounding never moves.


# %%
def lowered(dtype, rounding, fresh=True):
    def lower(w, step):
        seed = step if fresh else step * jnp.uint32(0)
        after = trn_jax.emulate(lambda w: w - jnp.asarray(1e-3, w.dtype), trn2, rounding=rounding, seed=seed)(w)
        return after, after

    return jax.lax.scan(lower, jnp.ones(8, dtype), jnp.arange(1000, dtype=jnp.uint32))[1]


figure, axes = plt.subplots(figsize=(6, 3.5))
for label, colour, options in (
    ("bf16, to nearest", "tab:red", ("bfloat16", "nearest")),
    ("bf16, stochastically, the step as seed", "tab:green", ("bfloat16", "stochastic")),
    ("bf16, stochastically, always the same seed", "tab:olive", ("bfloat16", "stochastic", False)),
    ("fp32", "black", ("float32", "nearest")),
):
    lines = axes.plot(np.asarray(lowered(*options), np.float32), color=colour, linewidth=0.8)
    lines[0].set_label(label)
axes.set(xlabel="update", ylabel="weight (eight of each)")
axes.legend(fontsize=8)
plt.show()

# %% [markdown]
# ## 4. MX blocks
#
# 32 neighbours share a power of two. One large value therefore costs its 31 neighbours their small bits, and no others.

# %%
values = np.random.default_rng(0).normal(size=96).astype(np.float32)
values[40] = 300.0
figure, axes = plt.subplots(figsize=(8, 3))
for fmt in ("mxfp4_e2m1fn", "mxfp8_e4m3fn"):
    rounded = np.asarray(trn_jax.round_to(values, fmt, axis=-1))
    axes.semilogy(np.abs(rounded / values - 1) + 1e-4, ".-", linewidth=0.5, label=fmt)
for edge in (31.5, 63.5):
    axes.axvline(edge, color="grey", linewidth=0.8)
axes.set(xlabel="element (300 at 40, the others about 1)", ylabel="relative error")
axes.legend()
plt.show()

# %% [markdown]
# ## 5. Sums in PSUM
#
# The Tensor Engine adds K tile by K tile in fp32. Trainium3 may keep PSUM in bf16 instead. Once a sum is some 500 times a tile, nearest
# rounding loses the tile altogether; stochastic rounding loses nothing on average.

# %%
depths = (512, 8192, 131072)
figure, axes = plt.subplots(figsize=(6, 3.5))
for label, options in (
    ("fp32", {}),
    ("bf16, to nearest", {"psum": "bf16"}),
    ("bf16, stochastically", {"psum": "bf16", "rounding": "stochastic", "seed": 1}),
):
    errors = []
    multiply = jax.jit(trn_jax.emulate(lambda a, b: jnp.matmul(a, b, preferred_element_type=jnp.float32), trn3, **options))
    for depth in depths:
        rng = np.random.default_rng(depth)
        a, b = (jnp.asarray(rng.uniform(size=shape), jnp.bfloat16) for shape in ((8, depth), (depth, 8)))
        exact = np.asarray(a, np.float64) @ np.asarray(b, np.float64)
        errors.append(np.mean(np.abs(np.asarray(multiply(a, b)) / exact - 1)))
    axes.loglog(depths, errors, "o-", label=f"PSUM in {label}")
axes.set(xlabel="depth of the product", ylabel="mean relative error")
axes.legend()
plt.show()

# %% [markdown]
# ## 6. A loss curve for each recipe
#
# The recipes of `trn-jax train` on a very small GPT, with a learning rate of 3e-4: about the size at which updates of bf16 weights get
# lost. `experiments/e01_rounding` does this with care.

# %%
from trn_jax.models import GPT, GPTConfig, split_model
from trn_jax.training.recipes import RECIPES
from trn_jax.training.step import emulate_step, initial_state, make_step

text = np.frombuffer(open(jax.__file__, "rb").read()[:20000], np.uint8).astype(np.int32)
starts = np.random.default_rng(0).integers(0, len(text) - 17, (150, 16))
batches = jnp.asarray(text[starts[..., None] + np.arange(17)])
optimizer = optax.adam(3e-4)
config = GPTConfig(vocab_size=256, d_model=16, n_layers=1, n_heads=2, max_tokens=16)

losses = {}
for name, recipe in RECIPES.items():
    apply, params = split_model(GPT(config.replace(compute_dtype=recipe.compute_dtype)))
    step = emulate_step(make_step(apply, optimizer, recipe), trn2, recipe)
    _, metrics = jax.jit(lambda state, step=step: jax.lax.scan(step, state, batches))(initial_state(params, optimizer, recipe))
    losses[name] = np.convolve(metrics["loss"], np.ones(10) / 10, "valid")

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.5))
for name, curve in losses.items():
    left.plot(curve, label=name)
    right.plot(curve - losses["fp32"], label=name)
left.set(xlabel="step", ylabel="loss (nats per byte), mean of 10")
right.set(xlabel="step", ylabel="beyond fp32's")
right.set_yscale("symlog", linthresh=1e-2)
right.legend(fontsize=8)
figure.tight_layout()
plt.show()

# %% [markdown]
# ## 7. Who spoilt it?
#
# An attention mask made of the smallest float32 is -inf in bf16, and -inf times 0 is NaN. `find_nonfinite` names the first operation that
# made one, with its line and the ranges of its operands.


# %%
def attend(q, k, keep):
    with jax.named_scope("scores"):
        scores = q @ k.T
    with jax.named_scope("mask"):
        scores = scores + (1 - keep) * jnp.finfo(jnp.float32).min.astype(keep.dtype)
    with jax.named_scope("softmax"):
        return jax.nn.softmax(scores)


q, k = (jax.random.normal(jax.random.key(i), (8, 16)).astype(jnp.bfloat16) for i in range(2))
keep = jnp.tril(jnp.ones((8, 8), jnp.bfloat16))
trn_jax.find_nonfinite(attend, trn2)(q, k, keep)

# %% [markdown]
# With a mask that bf16 holds, the same function is sound. `cast_report` lists its roundings with their worst errors, and `compare_exact`
# runs it beside itself in fp32 and says where the error comes from.


# %%
def attend_well(q, k, keep):
    with jax.named_scope("scores"):
        scores = q @ k.T
    with jax.named_scope("mask"):
        scores = jnp.where(keep > 0, scores, jnp.asarray(-3e4, scores.dtype))
    with jax.named_scope("softmax"):
        return jax.nn.softmax(scores)


assert not trn_jax.find_nonfinite(attend_well, trn2)(q, k, keep)
trn_jax.cast_report(attend_well, trn2)(q, k, keep)

# %%
comparison = trn_jax.compare_exact(attend_well, trn2)(q, k, keep)
names, errors = comparison.names, np.asarray(comparison.rel_error)
figure, axes = plt.subplots(figsize=(7, 3))
axes.barh(range(len(names)), errors)
axes.set_yticks(range(len(names)), names, fontsize=8)
axes.invert_yaxis()
axes.set_xlabel("relative error against fp32")
plt.show()
print("most error is added by", comparison.worst(3))
