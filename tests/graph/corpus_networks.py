"""Networks and steps as other people write them: convolutional, recurrent, attention, state space, generative, sparse."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from corpus import Case, arrays, initial
from flax import nnx
from jax import lax
from jax.experimental import sparse

IMAGES, LABELS = arrays((2, 8, 8, 3))[0], jnp.array([1, 0])
SEQUENCE = arrays((2, 5, 4))[0]


def cross_entropy(logits, labels):
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


class ConvNet(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        x = nn.relu(nn.BatchNorm(use_running_average=not train)(nn.Conv(4, (3, 3))(x)))
        x = nn.GroupNorm(2)(nn.Conv(4, (3, 3), strides=(2, 2))(nn.avg_pool(x, (2, 2), (2, 2))))
        x = nn.max_pool(x, (2, 2), (1, 1)).reshape(x.shape[0], -1)
        return nn.Dense(3)(nn.Dropout(0.2, deterministic=not train)(x))


def conv_net():
    model, key = ConvNet(), jax.random.key(1)
    variables = initial(model, {"params": key, "dropout": key}, IMAGES, train=True)

    def loss(params, stats, x):
        logits, changed = model.apply(
            {"params": params, "batch_stats": stats}, x, True, mutable=["batch_stats"], rngs={"dropout": jax.random.key(2)}
        )
        return cross_entropy(logits, LABELS), changed["batch_stats"]

    return Case(fn=loss, args=(variables["params"], variables["batch_stats"], IMAGES), error=0.5)


class Residual(nn.Module):
    features: int
    stride: int = 1

    @nn.compact
    def __call__(self, x):
        norm = partial(nn.BatchNorm, use_running_average=False)
        y = nn.relu(norm()(nn.Conv(self.features, (3, 3), (self.stride,) * 2, use_bias=False)(x)))
        y = norm(scale_init=nn.initializers.ones)(nn.Conv(self.features, (3, 3), use_bias=False)(y))
        if x.shape != y.shape:
            x = norm()(nn.Conv(self.features, (1, 1), (self.stride,) * 2, use_bias=False)(x))
        return nn.relu(x + y)


class ResNet(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Conv(4, (7, 7), (2, 2), padding=[(3, 3), (3, 3)], use_bias=False)(x))
        x = nn.max_pool(x, (3, 3), (2, 2), padding="SAME")
        for features, stride in ((4, 1), (8, 2)):
            x = Residual(features, stride)(x)
        return nn.Dense(3)(x.mean((1, 2)))


def resnet():
    model, x = ResNet(), arrays((2, 16, 16, 3))[0]
    variables = initial(model, jax.random.key(0), x)
    forward = lambda params, stats, x: model.apply({"params": params, "batch_stats": stats}, x, mutable=["batch_stats"])[0]
    return Case(fn=forward, args=(variables["params"], variables["batch_stats"], x), error=0.5)


class UNet(nn.Module):
    @nn.compact
    def __call__(self, x, time):
        angles = time[:, None] * jnp.arange(4.0)
        embedded = nn.Dense(8)(jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], -1))
        outer = nn.silu(nn.Conv(8, (3, 3))(x) + embedded[:, None, None])
        inner = nn.silu(nn.GroupNorm(4)(nn.Conv(8, (3, 3), (2, 2))(outer)))
        tokens = inner.reshape(inner.shape[0], -1, 8)
        inner = (tokens + nn.MultiHeadDotProductAttention(2)(tokens, tokens)).reshape(inner.shape)
        upper = nn.ConvTranspose(8, (2, 2), (2, 2))(inner)
        return nn.Conv(3, (3, 3))(jnp.concatenate([outer, upper], -1))


def diffusion():
    model = UNet()
    params = initial(model, jax.random.key(0), IMAGES, jnp.ones(2))

    def loss(params, x, key):
        time_key, noise_key = jax.random.split(key)
        time, noise = jax.random.uniform(time_key, x.shape[:1]), jax.random.normal(noise_key, x.shape)
        kept = (jnp.cos(time * jnp.pi / 2) ** 2)[:, None, None, None]
        return jnp.mean((model.apply(params, jnp.sqrt(kept) * x + jnp.sqrt(1 - kept) * noise, time) - noise) ** 2)

    return Case(fn=loss, args=(params, IMAGES, jax.random.key(3)), error=0.3)


def recurrent():
    """Sequences that end at different steps, with the state each ends in."""
    model = nn.RNN(nn.LSTMCell(6), return_carry=True)
    params = initial(model, jax.random.key(0), SEQUENCE)
    return Case(fn=lambda p, x: model.apply(p, x, seq_lengths=jnp.array([3, 5])), args=(params, SEQUENCE))


class NNXConvNet(nnx.Module):
    def __init__(self, rngs):
        self.conv, self.norm = nnx.Conv(3, 4, (3, 3), rngs=rngs), nnx.BatchNorm(4, rngs=rngs)
        self.up, self.dropout = nnx.ConvTranspose(4, 4, (2, 2), strides=(2, 2), rngs=rngs), nnx.Dropout(0.3, rngs=rngs)
        self.head = nnx.Linear(4 * 8 * 8, 3, rngs=rngs)

    def __call__(self, x):
        x = self.dropout(self.up(nnx.relu(self.norm(self.conv(x)))))
        return self.head(nnx.max_pool(x, (2, 2), (2, 2)).reshape(x.shape[0], -1))


def nnx_training_step():
    """A whole step on model and optimizer, split and merged: parameters, statistics, dropout counts and moments come back."""
    model = NNXConvNet(nnx.Rngs(0, dropout=1))
    graph, state = nnx.split((model, nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)))

    def step(state, x):
        model, optimizer = nnx.merge(graph, state)
        loss, gradient = nnx.value_and_grad(lambda m: cross_entropy(m(x), LABELS))(model)
        optimizer.update(model, gradient)
        return nnx.state((model, optimizer)), loss

    return Case(fn=step, args=(state, IMAGES), wrt=None, error=0.5, maps=False)


def mixture():
    """Tokens sorted by expert, multiplied group by group, and put back."""

    def fn(p, x):
        gates = jax.nn.softmax(x @ p["router"])
        weights, experts = lax.top_k(gates, 2)
        order = jnp.argsort(experts.reshape(-1))
        sizes = jnp.bincount(experts.reshape(-1), length=3).astype(jnp.int32)
        hidden = jax.nn.silu(lax.ragged_dot(jnp.repeat(x, 2, 0)[order], p["up"], sizes))
        out = lax.ragged_dot(hidden, p["down"], sizes)
        return (jnp.zeros_like(out).at[order].set(out).reshape(-1, 2, x.shape[1]) * weights[..., None]).sum(1)

    params = dict(zip(("router", "up", "down"), arrays((4, 3), (3, 4, 5), (3, 5, 4)), strict=True))
    return Case(fn=fn, args=(params, arrays((6, 4), seed=3)[0]), error=None, maps=False)


def selective_scan():
    def fn(p, x):
        u, gate = jnp.split(x @ p["in"], 2, -1)
        u = lax.conv_general_dilated(u[None], p["conv"], (1,), [(2, 0)], dimension_numbers=("NWC", "WIO", "NWC"), feature_group_count=4)[0]
        step = jax.nn.softplus(u @ p["dt"])
        decay = jnp.exp(-step[..., None] * jnp.exp(p["a"]))
        driven = step[..., None] * (u @ p["b"])[:, None] * u[..., None]
        _, state = lax.associative_scan(lambda l, r: (l[0] * r[0], r[0] * l[1] + r[1]), (decay, driven))
        return (jnp.einsum("tdn,tn->td", state, u @ p["c"]) * jax.nn.silu(gate)) @ p["out"]

    shapes = {"in": (4, 8), "conv": (3, 1, 4), "dt": (4, 4), "a": (4, 3), "b": (4, 3), "c": (4, 3), "out": (4, 4)}
    params = {name: x / 2 for name, x in zip(shapes, arrays(*shapes.values()), strict=True)}
    return Case(fn=fn, args=(params, arrays((7, 4), seed=2)[0]), error=0.2)


def complex_recurrence():
    def fn(p, x):
        decay = jnp.exp(-jnp.exp(p["nu"]) + 1j * jnp.exp(p["theta"]))
        driven = x.astype(jnp.complex64) @ (p["real"] + 1j * p["imag"])
        return lax.associative_scan(lambda l, r: (l[0] * r[0], r[0] * l[1] + r[1]), (jnp.broadcast_to(decay, driven.shape), driven))[1].real

    params = dict(zip(("nu", "theta", "real", "imag"), arrays((5,), (5,), (4, 5), (4, 5)), strict=True))
    return Case(fn=fn, args=(params, arrays((7, 4), seed=2)[0]), error=0.2)


def decoding():
    """Sampling with a key and value cache until every sequence has ended."""

    def fn(p, first, key):
        def goes_on(state):
            return (state[0] < 5) & ~jnp.all(state[3] == 2)

        def step(state):
            i, keys, values, token, out, key = state
            q, k, v = jnp.split(p["embed"][token] @ p["qkv"], 3, -1)
            keys, values = (lax.dynamic_update_slice(cache, new[:, None], (0, i, 0)) for cache, new in ((keys, k), (values, v)))
            scores = jnp.where(jnp.arange(6) <= i, jnp.einsum("bd,btd->bt", q, keys) / 2, -jnp.inf)
            logits = jnp.einsum("bt,btd->bd", jax.nn.softmax(scores), values) @ p["embed"].T
            key, now = jax.random.split(key)
            token = jax.random.categorical(now, jnp.where(logits < lax.top_k(logits, 3)[0][:, -1:], -1e9, logits))
            return i + 1, keys, values, token, out.at[:, i].set(token), key

        empty = jnp.zeros((2, 6, 4))
        return lax.while_loop(goes_on, step, (0, empty, empty, first, jnp.zeros((2, 6), jnp.int32), key))[4]

    params = dict(zip(("embed", "qkv"), arrays((8, 4), (4, 12)), strict=True))
    return Case(fn=fn, args=(params, jnp.array([1, 3]), jax.random.key(0)), wrt=None, error=None, trips=5)


class Autoencoder(nn.Module):
    @nn.compact
    def __call__(self, x, key):
        hidden = nn.tanh(nn.Dense(6)(x))
        mean, log_variance = nn.Dense(2)(hidden), nn.Dense(2)(hidden)
        code = mean + jnp.exp(log_variance / 2) * jax.random.normal(key, mean.shape)
        divergence = -0.5 * jnp.sum(1 + log_variance - mean**2 - jnp.exp(log_variance))
        return jnp.mean((nn.Dense(x.shape[-1])(nn.relu(nn.Dense(6)(code))) - x) ** 2) + divergence


def autoencoder():
    model, (x,) = Autoencoder(), arrays((3, 5))
    return Case(fn=model.apply, args=(initial(model, jax.random.key(0), x, jax.random.key(1)), x, jax.random.key(1)), error=0.2)


def adversarial_step():
    """Two networks, two losses, two optimizers."""
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1, momentum=0.9))
    real_or_not = lambda logits, label: optax.sigmoid_binary_cross_entropy(logits, label).mean()
    generate = lambda p, z: jnp.tanh(z @ p["a"]) @ p["b"]
    judge = lambda p, x: (jax.nn.leaky_relu(x @ p["a"]) @ p["b"])[:, 0]

    def step(generator, judge_params, states, z, x):
        fake = lax.stop_gradient(generate(generator, z))
        judged = jax.grad(lambda p: real_or_not(judge(p, x), 1.0) + real_or_not(judge(p, fake), 0.0))(judge_params)
        updates, second = optimizer.update(judged, states[1])
        judge_params = optax.apply_updates(judge_params, updates)
        generated = jax.grad(lambda p: real_or_not(judge(judge_params, generate(p, z)), 1.0))(generator)
        updates, first = optimizer.update(generated, states[0])
        return optax.apply_updates(generator, updates), judge_params, (first, second)

    generator, judge_params = (dict(zip("ab", arrays(*shapes), strict=True)) for shapes in (((2, 4), (4, 3)), ((3, 4), (4, 1))))
    states = (optimizer.init(generator), optimizer.init(judge_params))
    return Case(fn=step, args=(generator, judge_params, states, *arrays((5, 2), (5, 3))), wrt=None)


def second_order(kind):
    """Derivatives inside the loss: a gradient penalty, one inner step of adaptation, a residual of a differential equation."""
    net = lambda p, x: jnp.tanh(x @ p["a"]) @ p["b"]
    error = lambda p, x: jnp.mean((net(p, x) - x[:, :1]) ** 2)
    losses = {
        "penalty": lambda p, x: jnp.mean((jnp.sum(jax.vmap(jax.grad(lambda v: net(p, v)[0]))(x) ** 2, -1) - 1) ** 2),
        "adaptation": lambda p, x: error(jax.tree.map(lambda a, g: a - 0.1 * g, p, jax.grad(error)(p, x)), x),
        "residual": lambda p, x: jnp.mean(jax.vmap(jax.grad(jax.grad(lambda t: net(p, t * x[0])[0])))(x[:, 0]) ** 2),
    }
    return Case(fn=losses[kind], args=(dict(zip("ab", arrays((3, 4), (4, 1)), strict=True)), arrays((5, 3), seed=1)[0]), error=0.3)


def llama():
    """Rotary positions, grouped queries, gated MLP, RMS norms, scanned layers recomputed by a policy."""

    def norm(x):
        return x * lax.rsqrt(jnp.mean(x.astype(jnp.float32) ** 2, -1, keepdims=True) + 1e-6).astype(x.dtype)

    def rotated(x):
        angles = jnp.arange(x.shape[1])[:, None, None] / 100.0 ** (jnp.arange(2) / 2)
        left, right = jnp.split(x, 2, -1)
        return jnp.concatenate([left * jnp.cos(angles) - right * jnp.sin(angles), left * jnp.sin(angles) + right * jnp.cos(angles)], -1)

    def layer(x, w):
        heads = lambda name: (norm(x) @ w[name]).reshape(*x.shape[:2], -1, 4)
        attended = jax.nn.dot_product_attention(rotated(heads("q")), rotated(heads("k")), heads("v"), is_causal=True)
        x = x + attended.reshape(x.shape) @ w["o"]
        return x + (jax.nn.silu(norm(x) @ w["gate"]) * (norm(x) @ w["up"])) @ w["down"], None

    def loss(p, tokens):
        policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
        x, _ = lax.scan(jax.checkpoint(layer, policy=policy), p["embed"][tokens], p["layers"])
        return cross_entropy((norm(x) @ p["embed"].T)[:, :-1], tokens[:, 1:])

    shapes = {"q": (8, 8), "k": (8, 4), "v": (8, 4), "o": (8, 8), "gate": (8, 12), "up": (8, 12), "down": (12, 8)}
    layers = {name: x / 3 for name, x in zip(shapes, arrays(*((2, *shape) for shape in shapes.values())), strict=True)}
    return Case(fn=loss, args=({"embed": arrays((9, 8))[0], "layers": layers}, jnp.arange(10).reshape(2, 5) % 9), error=0.2)


def graph_attention():
    def fn(p, x, senders, receivers):
        h = x @ p
        scores = jax.nn.leaky_relu((h[senders] * h[receivers]).sum(-1))
        weights = jnp.exp(scores)
        return jax.ops.segment_sum((weights / jax.ops.segment_sum(weights, receivers, 4)[receivers])[:, None] * h[senders], receivers, 4)

    return Case(fn=fn, args=(*arrays((3, 3), (4, 3)), jnp.array([0, 1, 2, 3]), jnp.array([1, 2, 2, 0])))


def sparse_product():
    indices = jnp.array([[0, 1], [1, 2], [2, 0]])
    fn = lambda stored, x: (lambda m: (m @ x, m.T @ x, (m * 2).todense()))(sparse.BCOO((stored, indices), shape=(3, 3)))
    return Case(fn=fn, args=arrays((3,), (3, 2)), wrt=(0, 1))


def eight_bit_products():
    def fn(x, w):
        sx, sw = jnp.max(jnp.abs(x), -1, keepdims=True) / 127, jnp.max(jnp.abs(w), 0, keepdims=True) / 127
        whole = lax.dot(jnp.round(x / sx).astype(jnp.int8), jnp.round(w / sw).astype(jnp.int8), preferred_element_type=jnp.int32)
        tx, tw = jnp.max(jnp.abs(x)) / 240, jnp.max(jnp.abs(w)) / 240
        small = lax.dot((x / tx).astype(jnp.float8_e4m3), (w / tw).astype(jnp.float8_e4m3), preferred_element_type=jnp.float32)
        return whole * sx * sw, small * tx * tw

    return Case(fn=fn, args=arrays((3, 4), (4, 5)), wrt=None)


CASES = {
    "linen ConvNet": conv_net,
    "ResNet": resnet,
    "U-Net diffusion": diffusion,
    "recurrent over parts of sequences": recurrent,
    "nnx training step": nnx_training_step,
    "mixture of experts": mixture,
    "selective scan": selective_scan,
    "complex recurrence": complex_recurrence,
    "decoding with a cache": decoding,
    "variational autoencoder": autoencoder,
    "adversarial step": adversarial_step,
    **{kind: partial(second_order, kind) for kind in ("penalty", "adaptation", "residual")},
    "llama": llama,
    "graph attention": graph_attention,
    "sparse product": sparse_product,
    "int8 and fp8 products": eight_bit_products,
    "connectionist loss": lambda: Case(
        fn=lambda logits: optax.ctc_loss(logits, jnp.zeros((2, 6)), jnp.array([[1, 2], [3, 1]]), jnp.zeros((2, 2))).mean(),
        args=arrays((2, 6, 4)),
    ),
}
