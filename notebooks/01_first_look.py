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
# # A first look at an emulated Trainium2
#
# Four things in about a minute: what a matmul loses to bf16, how it crosses the systolic array, a small GPT that learns on the emulated
# chip, and how long its training step would take on the real one, with the derivative of that time in every parameter of the chip.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

import trn_jax

chip = trn_jax.load_chip("trainium2")
chip

# %% [markdown]
# ## 1. What a matmul rounds
#
# The Tensor Engine takes operands in bf16 (or fp8, fp16, tf32, fp32) and accumulates in fp32. With `AutoCast("matmult", "bf16")` an
# fp32 program keeps its dtypes, and only the operands of its products are rounded.

# %%
a = jax.random.normal(jax.random.key(0), (128, 512))
b = jax.random.normal(jax.random.key(1), (512, 128))
exact = np.asarray(a, np.float64) @ np.asarray(b, np.float64)

figure, axes = plt.subplots(figsize=(6, 3))
for fmt in ("fp8_e4m3", "bf16", "fp16", "fp32"):
    product = trn_jax.emulate(jnp.matmul, chip, autocast=trn_jax.AutoCast("matmult", fmt))(a, b)
    error = np.abs(np.asarray(product) - exact).ravel()
    axes.hist(np.log10(error + 1e-9), bins=60, histtype="step", label=fmt)
axes.set(xlabel="log10 of the absolute error of one element", ylabel="elements", title="A 128 x 512 x 128 matmul on Trainium2")
axes.legend()
plt.show()

# %% [markdown]
# `cast_report` says what was rounded, where, from which format to which.

# %%
trn_jax.cast_report(jnp.matmul, chip, autocast=trn_jax.AutoCast("matmult", "bf16"))(a, b)

# %% [markdown]
# ## 2. The wavefront
#
# At fidelity `"systolic"` the product is computed clock by clock. Here is a 32 x 32 corner of the array at four moments: a processing
# element (PE) is bright while it multiplies.

# %%
rows = cols = 32
streamed = 24
figure, axes = plt.subplots(1, 4, figsize=(10, 2.8))
for axis, cycle in zip(axes, (8, 24, 40, 70), strict=True):
    axis.imshow(trn_jax.engines.tensor.wavefront(rows, cols, streamed, cycle), cmap="viridis", vmin=0, vmax=1)
    axis.set(title=f"cycle {cycle}", xlabel="column", ylabel="row")
figure.tight_layout()
plt.show()

# %%
run = trn_jax.engines.tensor.systolic(a[:, :128], b[:128], rows=128, cols=128)
print(f"{run.cycles:,} cycles one after the other; PEs busy {run.utilisation:.0%} of the time")
print("largest distance from a plain dot:", float(jnp.abs(run.output - a[:, :128] @ b[:128]).max()))

# %% [markdown]
# ## 3. A small GPT learns
#
# The whole training step (forward, backward, AdamW) runs with the chip's arithmetic. `jax.jit`, `jax.grad` and optax are used as ever;
# `emulate` is one call around the step.

# %%
from trn_jax.models import GPT, GPTConfig, cross_entropy, split_model

text = np.frombuffer(open(jax.__file__, "rb").read()[:20000], np.uint8).astype(np.int32)
config = GPTConfig(vocab_size=256, d_model=32, n_layers=2, n_heads=2, max_tokens=32)
apply, params = split_model(GPT(config))
optimizer = optax.adamw(3e-3)


def train_step(params, moments, batch):
    loss = lambda p: cross_entropy(apply(p, batch[:, :-1]), batch[:, 1:])
    value, gradient = jax.value_and_grad(loss)(params)
    updates, moments = optimizer.update(gradient, moments, params)
    return optax.apply_updates(params, updates), moments, value


bf16 = trn_jax.AutoCast("matmult", "bf16")
on_trainium = jax.jit(trn_jax.emulate(train_step, chip, autocast=bf16))
in_fp32 = jax.jit(train_step)


def batch_at(step, size=8):
    starts = np.random.default_rng(step).integers(0, len(text) - config.max_tokens - 1, size)
    return jnp.asarray(np.stack([text[s : s + config.max_tokens + 1] for s in starts]))


figure, axes = plt.subplots(figsize=(6, 3))
for name, step_function, width in (("plain fp32 JAX", in_fp32, 4), ("Trainium2, bf16 matmuls", on_trainium, 1)):
    weights, moments, losses = params, optimizer.init(params), []
    for step in range(60):
        weights, moments, loss = step_function(weights, moments, batch_at(step))
        losses.append(float(loss))
    axes.plot(losses, label=name, linewidth=width)
axes.set(xlabel="step", ylabel="loss (nats per byte)")
axes.legend()
plt.show()

# %% [markdown]
# ## 4. How long on the real chip, and what would help
#
# `trace` turns the step into the instruction stream of one NeuronCore. `latency` schedules it; `jax.grad` of it is a chip-shaped record of
# sensitivities. `elasticity` scales them: per cent of time for one per cent of a parameter.

# %%
program = trn_jax.trace(train_step, params, optimizer.init(params), batch_at(0), autocast=bf16)
report = trn_jax.estimate(program, chip)
print(report.to_table())

# %%
report.timeline()

# %%
gradient = jax.grad(lambda c: trn_jax.latency(program, c))(chip)
print(f"one more byte/s of HBM bandwidth changes the step by {float(gradient.hbm.bandwidth_bytes_per_s):.2e} s")
trn_jax.elasticity(program, chip)

# %% [markdown]
# ## 5. A small sweep
#
# One compilation, every point of the grid at once; the result is an xarray Dataset.

# %%
size = jax.ShapeDtypeStruct((2048, 2048), jnp.bfloat16)
mlp = trn_jax.trace(lambda x, w, v: jax.nn.gelu(x @ w) @ v, size, size, size)
bandwidths = np.geomspace(50e9, 2000e9, 25)
grid = trn_jax.sweep(mlp, chip, {"tensor.rows": [64, 128, 256], "dma.bandwidth_bytes_per_s": bandwidths})

figure, axes = plt.subplots(figsize=(6, 3))
for rows in grid["tensor.rows"].values:
    times = grid["latency_s"].sel({"tensor.rows": rows})
    axes.loglog(bandwidths / 1e9, times * 1e6, label=f"{rows:.0f} rows")
axes.set(xlabel="DMA bandwidth (GB/s)", ylabel="latency (us)", title="Two layers of 2048 x 2048 x 2048")
axes.legend()
plt.show()
