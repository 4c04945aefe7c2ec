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
# # Where the time goes
#
# A training step of GPT-2 on one core of a Trainium2: what limits it, what would help, what fusion and overlap are worth, and what it costs
# in memory and energy. The weights are never made; shapes are enough. About two minutes.

# %%
import tempfile
from pathlib import Path

import jax
import matplotlib.pyplot as plt
import numpy as np

import trn_jax
from trn_jax.models import reference

chip = trn_jax.load_chip("trainium2")
train_step, args = reference("gpt2", "train", batch=1, tokens=512, scan_layers=True)
program = trn_jax.trace(train_step, *args)
report = trn_jax.estimate(program, chip)
report

# %% [markdown]
# The first lines are four answers to "how long": with the overlap of published kernels (0.8), with all engines side by side, one
# instruction after the other as compiled training steps behave today, and the datasheet bound that nothing can beat.

# %%
report.timeline()

# %% [markdown]
# ## The critical path
#
# The latency is a sum: of all instructions, these are the ones that nothing hides, with the seconds each of them contributes. An engine
# that is busy half of the time may contribute nothing.

# %%
path = report.critical_path
print(
    f"{len(path)} of {len(program)} rows; their seconds sum to {sum(row.seconds for row in path):.6g} s, "
    f"the latency is {report.latency_s:.6g} s"
)
on_path = {engine: sum(row.seconds for row in path if row.engine == engine) for engine in report.engines}

figure, axes = plt.subplots(figsize=(7, 3))
places = np.arange(len(on_path))
axes.barh(places + 0.2, [report.engines[name].busy_s * 1e3 for name in on_path], 0.4, label="busy")
axes.barh(places - 0.2, [seconds * 1e3 for seconds in on_path.values()], 0.4, label="on the critical path")
axes.set_yticks(places, list(on_path))
axes.set(xlabel="time (ms)", title="Busy is not critical")
axes.legend()
plt.show()

# %% [markdown]
# ## What fusion bought
#
# The same step without each of the passes.

# %%
bought = sorted(report.passes.items(), key=lambda item: item[1])
unfused_s = float(trn_jax.latency(program.with_passes(()), chip))
figure, axes = plt.subplots(figsize=(7, 2.8))
axes.barh([name for name, _ in bought], [seconds * 1e3 for _, seconds in bought])
axes.set(xlabel="longer without it (ms)", title=f"{report.latency_s * 1e3:.3g} ms with all passes, {unfused_s * 1e3:.3g} ms with none")
plt.show()

# %% [markdown]
# ## The roofline, and a chip with more of what is missing
#
# Arithmetic intensity depends on SBUF: what does not fit is spilled and loaded again. A sweep is one compilation.

# %%
report.roofline()

# %%
sizes = np.array([4, 8, 16, 24, 28, 48, 64, 96, 128]) * 2.0**20
rates = np.array([1, 2, 4]) * float(chip.dma.bandwidth_bytes_per_s)
grid = trn_jax.sweep(program, chip, {"sbuf.size_bytes": sizes, "dma.bandwidth_bytes_per_s": rates})
figure, axes = plt.subplots(figsize=(6, 3))
for rate in rates:
    axes.plot(sizes / 2**20, grid["latency_s"].sel({"dma.bandwidth_bytes_per_s": rate}) * 1e3, "o-", label=f"{rate / 1e9:.0f} GB/s")
axes.set(xlabel="SBUF (MiB)", ylabel="latency (ms)", title="Training step against SBUF, by DMA bandwidth")
axes.legend()
plt.show()

# %% [markdown]
# ## Memory and energy
#
# The footprint is by argument. Energies are leaves of the chip with low and high ends, so they have derivatives like everything else.

# %%
for name, size_bytes in report.footprint.parts().items():
    print(f"{size_bytes / 1e9:8.3f} GB  {name}")

# %%
low_j, high_j = report.energy_range_j
print(f"{report.energy_j:.3g} J, between {low_j:.3g} and {high_j:.3g}")
joules, slopes = jax.value_and_grad(lambda c: trn_jax.energy(program, c))(chip)
shares = {
    path: float(slopes.get(path)) * float(chip.get(path)) / float(joules) for path in trn_jax.leaf_paths() if path.startswith("energy.")
}
for path, part in sorted(shares.items(), key=lambda item: -abs(item[1])):
    print(f"{part:+.3f}  {path}")

# %% [markdown]
# ## A trace for Perfetto
#
# One track per engine with its waits and their causes, counters of HBM bandwidth and of how busy every engine is. Open the file at
# https://ui.perfetto.dev.

# %%
trace_file = report.save_trace(Path(tempfile.mkdtemp()) / "gpt2_train.json")
print(f"{trace_file.stat().st_size / 1e6:.1f} MB")
