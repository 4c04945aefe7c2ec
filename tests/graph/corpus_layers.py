"""Every layer of Flax, linen and NNX, as a function of its parameters and its input."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
from corpus import Case, arrays, initial
from flax import nnx

SEQUENCE, IMAGES = arrays((2, 5, 4), (2, 6, 6, 4))
TOKENS = jnp.array([[1, 3, 0], [2, 2, 6]])
EIGHT_BIT = {"Fp8DirectDotGeneralOp", "Fp8DotGeneral", "Fp8DotGeneralOp", "Fp8Einsum", "NANOOFp8DotGeneralOp"}
CELLS = "ConvLSTMCell GRUCell LSTMCell MGUCell OptimizedLSTMCell SimpleCell".split()


def linen(module, x=SEQUENCE, error=0.2, **call):
    """A layer with its parameters, statistics and masks as arguments; what it would change comes back."""
    key = jax.random.key(0)
    variables = initial(module, {"params": key, "dropout": key}, x, **call)

    def fn(variables, x):
        return module.apply(variables, x, **call, mutable=["batch_stats", "_overwrite_with_gradient"], rngs={"dropout": jax.random.key(2)})

    is_float = jnp.issubdtype(x.dtype, jnp.floating)
    return Case(fn=fn, args=(variables, x), wrt=(0, 1) if is_float else (0,), error=error)


def linen_cell(name):
    size = {"features": 4, "kernel_size": (3,)} if name == "ConvLSTMCell" else {"features": 6}
    return linen(nn.RNN(getattr(nn, name)(**size)), jnp.stack([SEQUENCE, SEQUENCE], 1) if name == "ConvLSTMCell" else SEQUENCE)


# Every class of flax.linen that is a layer; a test keeps this list complete.
LINEN = {
    "BatchNorm": partial(linen, nn.BatchNorm(), use_running_average=False, error=0.5),
    "Bidirectional": partial(linen, nn.Bidirectional(nn.RNN(nn.GRUCell(3)), nn.RNN(nn.GRUCell(3)))),
    "Conv": partial(linen, nn.Conv(3, (3, 3), strides=2, kernel_dilation=2, feature_group_count=1), IMAGES),
    "ConvLocal": partial(linen, nn.ConvLocal(3, (2,))),
    "ConvTranspose": partial(linen, nn.ConvTranspose(3, (3, 3), (2, 2)), IMAGES),
    "Dense": partial(linen, nn.Dense(3, dtype=jnp.bfloat16, param_dtype=jnp.bfloat16)),
    "DenseGeneral": partial(linen, nn.DenseGeneral((2, 3), axis=(-2, -1))),
    "Dropout": partial(linen, nn.Dropout(0.3), deterministic=False),
    "Einsum": partial(linen, nn.Einsum((4, 3), "btd,df->btf")),
    "Embed": partial(linen, nn.Embed(7, 4), TOKENS),
    "GroupNorm": partial(linen, nn.GroupNorm(2), error=0.5),
    "InstanceNorm": partial(linen, nn.InstanceNorm(), error=0.5),
    "LayerNorm": partial(linen, nn.LayerNorm(), error=0.5),
    "MultiHeadAttention": partial(linen, nn.MultiHeadAttention(2, dropout_rate=0.2), deterministic=False),
    "MultiHeadDotProductAttention": partial(linen, nn.MultiHeadDotProductAttention(2)),
    "PReLU": partial(linen, nn.PReLU()),
    "RMSNorm": partial(linen, nn.RMSNorm()),
    "RNN": partial(linen, nn.RNN(nn.LSTMCell(6), reverse=True, time_major=True)),
    "Sequential": partial(linen, nn.Sequential([nn.Dense(3), nn.gelu, nn.Dense(2)])),
    "SpectralNorm": partial(linen, nn.SpectralNorm(nn.Dense(3)), update_stats=True),
    "WeightNorm": partial(linen, nn.WeightNorm(nn.Dense(3))),
    **{name: partial(linen_cell, name) for name in CELLS},
}

# Base classes, an older name, and products in the fp8_e4m3fn of other makers, which Trainium2 refuses.
LINEN_ELSEWHERE = {"Module", "RNNCellBase", "SelfAttention", *EIGHT_BIT}


def stateful(make, x=SEQUENCE, error=0.2):
    """A layer of NNX: split outside, merged inside, the changed state given back with the output."""
    graph, params, rest = nnx.split(make(nnx.Rngs(0, dropout=1)), nnx.Param, ...)

    def fn(params, rest, x):
        # Rebuilt here: what NNX changes must belong to the innermost trace, also where only `params` are differentiated.
        layer = nnx.merge(graph, params, jax.tree.map(lambda leaf: leaf, rest))
        return layer(x), nnx.state(layer, nnx.Not(nnx.Param))

    return Case(fn=fn, args=(params, rest, x), wrt=(0,) if jax.tree.leaves(params) else (2,), error=error, maps=False)


# Every class of flax.nnx that is a layer; a test keeps this list complete.
NNX = {
    "BatchNorm": partial(stateful, lambda rngs: nnx.BatchNorm(4, rngs=rngs), error=0.5),
    "Bidirectional": partial(
        stateful, lambda rngs: nnx.Bidirectional(nnx.RNN(nnx.GRUCell(4, 3, rngs=rngs)), nnx.RNN(nnx.GRUCell(4, 3, rngs=rngs)))
    ),
    "Conv": partial(stateful, lambda rngs: nnx.Conv(4, 6, (3, 3), feature_group_count=2, rngs=rngs), IMAGES),
    "ConvTranspose": partial(stateful, lambda rngs: nnx.ConvTranspose(4, 3, (3, 3), (2, 2), rngs=rngs), IMAGES),
    "Dropout": partial(stateful, lambda rngs: nnx.Dropout(0.3, rngs=rngs)),
    "Einsum": partial(stateful, lambda rngs: nnx.Einsum("btd,df->btf", (4, 3), (3,), rngs=rngs)),
    "Embed": partial(stateful, lambda rngs: nnx.Embed(7, 4, rngs=rngs), TOKENS),
    "GRUCell": partial(stateful, lambda rngs: nnx.RNN(nnx.GRUCell(4, 6, rngs=rngs))),
    "GroupNorm": partial(stateful, lambda rngs: nnx.GroupNorm(4, 2, rngs=rngs), error=0.5),
    "InstanceNorm": partial(stateful, lambda rngs: nnx.InstanceNorm(4, rngs=rngs), error=0.5),
    "LSTMCell": partial(stateful, lambda rngs: nnx.RNN(nnx.LSTMCell(4, 6, rngs=rngs))),
    "LayerNorm": partial(stateful, lambda rngs: nnx.LayerNorm(4, rngs=rngs), error=0.5),
    "Linear": partial(stateful, lambda rngs: nnx.Linear(4, 3, dtype=jnp.bfloat16, rngs=rngs)),
    "LinearGeneral": partial(stateful, lambda rngs: nnx.LinearGeneral((5, 4), (2, 3), axis=(-2, -1), rngs=rngs)),
    "LoRA": partial(stateful, lambda rngs: nnx.LoRA(4, 2, 3, base_module=nnx.Linear(4, 3, rngs=rngs), rngs=rngs)),
    "LoRALinear": partial(stateful, lambda rngs: nnx.LoRALinear(4, 3, lora_rank=2, rngs=rngs)),
    "MultiHeadAttention": partial(stateful, lambda rngs: nnx.MultiHeadAttention(2, 4, decode=False, rngs=rngs)),
    "OptimizedLSTMCell": partial(stateful, lambda rngs: nnx.RNN(nnx.OptimizedLSTMCell(4, 6, rngs=rngs))),
    "PReLU": partial(stateful, lambda rngs: nnx.PReLU()),
    "RMSNorm": partial(stateful, lambda rngs: nnx.RMSNorm(4, rngs=rngs)),
    "RNN": partial(stateful, lambda rngs: nnx.RNN(nnx.SimpleCell(4, 6, rngs=rngs), reverse=True)),
    "Sequential": partial(stateful, lambda rngs: nnx.Sequential(nnx.Linear(4, 3, rngs=rngs), nnx.gelu)),
    "SimpleCell": partial(stateful, lambda rngs: nnx.RNN(nnx.SimpleCell(4, 6, rngs=rngs))),
    "SpectralNorm": partial(stateful, lambda rngs: nnx.SpectralNorm(nnx.Linear(4, 3, rngs=rngs), rngs=rngs)),
    "WeightNorm": partial(stateful, lambda rngs: nnx.WeightNorm(nnx.Linear(4, 3, rngs=rngs), rngs=rngs)),
}

if hasattr(nnx, "RoPE"):  # newer than Flax 0.12.8
    NNX["RoPE"] = partial(stateful, lambda rngs: nnx.RoPE(), arrays((2, 5, 2, 4))[0])

# Base classes and containers.
NNX_ELSEWHERE = {"Module", "RNNCellBase", "Dict", "List"}

CASES = {f"{group} {name}": make for group, layers in {"linen": LINEN, "nnx": NNX}.items() for name, make in layers.items()}
CASES["linen Conv, causal"] = partial(linen, nn.Conv(3, (3,), padding="CAUSAL"))
