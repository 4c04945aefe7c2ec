"""Programs after the examples that teach Flax and JAX: whole losses and steps of well-known models, small."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from corpus import Case, arrays, initial
from flax import nnx
from jax import lax

SEQUENCE = arrays((2, 5, 4))[0]
TOKENS = jnp.array([[1, 4, 2, 0, 0], [3, 1, 5, 2, 0]])
KEY = jax.random.key(0)


def named(shapes, scale=0.5, seed=0):
    return {name: x * scale for name, x in zip(shapes, arrays(*shapes.values(), seed=seed), strict=True)}


class Translator(nn.Module):
    """An LSTM encoder and an LSTM decoder that looks back at it; the decoder is fed what it should have said."""

    @nn.compact
    def __call__(self, source, target):
        embed = nn.Embed(7, 6)
        (_, memory) = nn.RNN(nn.OptimizedLSTMCell(6), return_carry=True)(embed(source), seq_lengths=jnp.sum(source > 0, -1))
        decoded = nn.RNN(nn.OptimizedLSTMCell(6))(embed(target[:, :-1]))
        seen = jnp.where((source > 0)[:, None], jnp.einsum("btd,bsd->bts", nn.Dense(6)(decoded), memory), -1e9)
        context = jnp.einsum("bts,bsd->btd", nn.softmax(seen), memory)
        return nn.Dense(7)(nn.tanh(nn.Dense(6)(jnp.concatenate([decoded, context], -1))))


def sequence_to_sequence():
    model = Translator()
    params = initial(model, KEY, TOKENS, TOKENS)

    def loss(params, source, target):
        losses = optax.softmax_cross_entropy_with_integer_labels(model.apply(params, source, target), target[:, 1:])
        weights = (target[:, 1:] > 0).astype(jnp.float32)
        return jnp.sum(losses * weights) / jnp.maximum(weights.sum(), 1)

    return Case(fn=loss, args=(params, TOKENS, TOKENS[:, ::-1]), error=0.2)


def autoregressive_image():
    """Masked, gated, weight-normalised convolutions and a mixture of discretised logistics."""
    mask = jnp.ones((3, 3, 1, 1)).at[1, 2:].set(0).at[2:].set(0)

    def convolve(x, p):
        kernel = p["v"] * mask
        kernel = p["g"] * kernel / jnp.sqrt(jnp.sum(kernel**2, (0, 1, 2)) + 1e-6)
        return lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    def loss(p, x):
        h = convolve(jnp.concatenate([jax.nn.elu(x), jax.nn.elu(-x)], -1), p["first"])
        value, gate = jnp.split(h, 2, -1)
        logit, mean, scale = jnp.split(convolve(value * jax.nn.sigmoid(gate), p["last"]), 3, -1)
        inverse = jnp.exp(-jnp.maximum(scale, -3))
        upper, lower = inverse * (x - mean + 0.1), inverse * (x - mean - 0.1)
        inside = jnp.log(jnp.maximum(jax.nn.sigmoid(upper) - jax.nn.sigmoid(lower), 1e-6))
        edge = jnp.where(x < -0.9, jax.nn.log_sigmoid(upper), jnp.where(x > 0.9, -jax.nn.softplus(lower), inside))
        return -jax.nn.logsumexp(edge + jax.nn.log_softmax(logit), -1).mean()

    params = {"first": named({"v": (3, 3, 2, 8), "g": (8,)}), "last": named({"v": (3, 3, 4, 6), "g": (6,)}, seed=1)}
    return Case(fn=loss, args=(params, jnp.tanh(arrays((2, 4, 4, 1))[0])), error=0.3)


class Decoder(nn.Module):
    """A decoder layer over encoded source with a cache that grows by one token a call."""

    @nn.compact
    def __call__(self, token, encoded):
        x = nn.Embed(7, 8)(token)
        x = x + nn.MultiHeadDotProductAttention(2, decode=True)(nn.LayerNorm()(x))
        x = x + nn.MultiHeadDotProductAttention(2)(nn.LayerNorm()(x), encoded)
        return nn.Dense(7)(x + nn.Dense(8)(nn.relu(nn.Dense(16)(x))))


def cached_translation():
    model, encoded = Decoder(), arrays((2, 5, 8))[0]
    variables = initial(model, KEY, jnp.zeros((2, 4), jnp.int32), encoded)

    def greedy(params, cache, encoded):
        def step(state, _):
            cache, token = state
            logits, changed = model.apply({"params": params, "cache": cache}, token, encoded, mutable=["cache"])
            return (changed["cache"], jnp.argmax(logits, -1).astype(jnp.int32)), logits[:, 0]

        return lax.scan(step, (cache, jnp.ones((2, 1), jnp.int32)), None, length=3)[1]

    return Case(fn=greedy, args=(variables["params"], variables["cache"], encoded), wrt=None, error=None)


def beam_search():
    """The best sums of log probabilities, kept with the tokens that gave them."""

    def fn(table, first):
        def step(state, _):
            tokens, scores = state
            total = scores[..., None] + jax.nn.log_softmax(table[tokens])
            scores, flat = lax.top_k(total.reshape(tokens.shape[0], -1), tokens.shape[1])
            parents, tokens = flat // table.shape[1], flat % table.shape[1]
            return (tokens, scores), (parents, tokens)

        start = (jnp.repeat(first[:, None], 3, 1), jnp.array([[0.0, -1e7, -1e7]] * first.shape[0]))
        return lax.scan(step, start, None, length=4)

    return Case(fn=fn, args=(arrays((6, 6))[0], jnp.array([1, 4])), wrt=None, error=None)


def proximal_policy():
    """Advantages by a reversed scan, a clipped ratio, an entropy bonus, and a value that is clipped too."""

    def advantages(rewards, values, ends):
        def backward(following, now):
            reward, value, following_value, end = now
            delta = reward + 0.99 * following_value * (1 - end) - value
            advantage = delta + 0.99 * 0.95 * (1 - end) * following
            return advantage, advantage

        return lax.scan(backward, jnp.zeros(rewards.shape[1]), (rewards, values[:-1], values[1:], ends), reverse=True)[1]

    def loss(p, seen, actions, rewards, ends, old):
        hidden = jnp.tanh(seen @ p["body"])
        logits, values = jax.nn.log_softmax(hidden @ p["policy"]), (hidden @ p["value"])[..., 0]
        gained = advantages(rewards, lax.stop_gradient(values), ends)
        chosen = jnp.take_along_axis(logits[:-1], actions[..., None], -1)[..., 0]
        ratio, normal = jnp.exp(chosen - old), (gained - gained.mean()) / (gained.std() + 1e-8)
        policy = -jnp.minimum(ratio * normal, jnp.clip(ratio, 0.8, 1.2) * normal).mean()
        return policy + 0.5 * jnp.mean((values[:-1] - gained) ** 2) + 0.01 * jnp.sum(jnp.exp(logits) * logits, -1).mean()

    params = named({"body": (4, 6), "policy": (6, 3), "value": (6, 1)})
    seen, rewards = arrays((5, 3, 4), (4, 3), seed=2)
    actions, ends = jnp.arange(12).reshape(4, 3) % 3, (jnp.arange(12).reshape(4, 3) % 5 == 0).astype(jnp.float32)
    return Case(fn=loss, args=(params, seen, actions, rewards, ends, jnp.full((4, 3), -1.1)), error=0.3)


def averaged_diffusion_step():
    """Noise is predicted, Adam moves the weights, a running average follows them."""
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(optax.warmup_cosine_decay_schedule(0.0, 1e-2, 2, 10)))

    def step(params, state, average, x, key):
        def loss(p):
            time_key, noise_key = jax.random.split(key)
            kept = jax.random.uniform(time_key, (x.shape[0], 1), minval=0.1)
            noise = jax.random.normal(noise_key, x.shape)
            noisy = jnp.sqrt(kept) * x + jnp.sqrt(1 - kept) * noise
            return jnp.mean((jax.nn.silu(jnp.concatenate([noisy, kept], -1) @ p["a"]) @ p["b"] - noise) ** 2)

        value, gradient = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(gradient, state, params)
        params = optax.apply_updates(params, updates)
        return params, state, optax.incremental_update(params, average, 0.01), value

    params = named({"a": (5, 8), "b": (8, 4)})
    return Case(fn=step, args=(params, optimizer.init(params), params, arrays((3, 4))[0], KEY), wrt=None, error=0.2)


class Encoder(nn.Module):
    @nn.compact
    def __call__(self, x, _):
        x = x + nn.MultiHeadDotProductAttention(2)(nn.LayerNorm()(x))
        return x + nn.Dense(8)(nn.gelu(nn.Dense(16)(nn.LayerNorm()(x)))), None


class VisionTransformer(nn.Module):
    @nn.compact
    def __call__(self, images):
        x = nn.Conv(8, (2, 2), (2, 2), padding="VALID")(images).reshape(images.shape[0], -1, 8)
        token = self.param("token", nn.initializers.normal(0.1), (1, 1, 8))
        x = jnp.concatenate([jnp.tile(token, (x.shape[0], 1, 1)), x], 1)
        x = x + self.param("positions", nn.initializers.normal(0.1), (1, x.shape[1], 8))
        layers = nn.scan(nn.remat(Encoder, prevent_cse=False), variable_axes={"params": 0}, split_rngs={"params": True}, length=2)
        return nn.Dense(3)(nn.LayerNorm()(layers()(x, None)[0][:, 0]))


def vision_transformer():
    model, images = VisionTransformer(), arrays((2, 4, 4, 3))[0]
    return Case(fn=model.apply, args=(initial(model, KEY, images), images), error=0.2)


class Normalised(nnx.Module):
    def __init__(self, rngs):
        self.first, self.norm = nnx.Linear(4, 6, rngs=rngs), nnx.BatchNorm(6, rngs=rngs)
        self.dropout, self.last = nnx.Dropout(0.2, rngs=rngs), nnx.Linear(6, 3, rngs=rngs)

    def __call__(self, x):
        return self.last(self.dropout(nnx.relu(self.norm(self.first(x)))))


def state_apart():
    """Parameters are differentiated; statistics and the counts of dropout are carried through a scan of steps."""
    graph, params, rest = nnx.split(Normalised(nnx.Rngs(0, dropout=1)), nnx.Param, ...)

    def train(params, rest, batches):
        def loss(params, rest, x):
            model = nnx.merge(graph, params, jax.tree.map(lambda leaf: leaf, rest))  # NNX changes what the innermost trace made
            return jnp.mean(model(x) ** 2), nnx.state(model, nnx.Not(nnx.Param))

        def step(state, x):
            params, rest = state
            (value, rest), gradient = jax.value_and_grad(loss, has_aux=True)(params, rest, x)
            return (jax.tree.map(lambda w, g: w - 0.1 * g, params, gradient), rest), value

        return lax.scan(step, (params, rest), batches)

    return Case(fn=train, args=(params, rest, arrays((3, 5, 4))[0]), wrt=None, error=0.5, maps=False)


def delta_rule():
    """Linear attention that first forgets what it knew of a key, one token after the other."""

    def fn(p, x):
        q, k, v = (x @ p[name] for name in "qkv")
        k = k / jnp.linalg.norm(k, axis=-1, keepdims=True)
        strength = jax.nn.sigmoid(x @ p["beta"])

        def step(state, now):
            q, k, v, strength = now
            state = state + strength * jnp.outer(k, v - k @ state)
            return state, q @ state

        return lax.scan(step, jnp.zeros((4, 4)), (q, k, v, strength))[1]

    return Case(fn=fn, args=(named({"q": (4, 4), "k": (4, 4), "v": (4, 4), "beta": (4, 1)}), arrays((6, 4), seed=2)[0]), error=0.2)


def linear_attention():
    """Chunks of a decaying linear attention: within a chunk by products, between chunks by a scan."""

    def fn(p, x):
        chunks = x.reshape(-1, 3, 4)
        q, k, v = (jax.nn.elu(chunks @ p[name]) + 1 for name in "qkv")
        distance = jnp.arange(3)[:, None] - jnp.arange(3)[None]
        inside = jnp.where(distance >= 0, 0.9 ** jnp.abs(distance), 0.0)

        def step(state, now):
            q, k, v = now
            out = (q @ k.T * inside) @ v + 0.9 ** jnp.arange(1.0, 4.0)[:, None] * (q @ state)
            return 0.9**3 * state + (k * 0.9 ** jnp.arange(2.0, -1.0, -1.0)[:, None]).T @ v, out

        return lax.scan(step, jnp.zeros((4, 4)), (q, k, v))[1].reshape(x.shape)

    return Case(fn=fn, args=(named({"q": (4, 4), "k": (4, 4), "v": (4, 4)}), arrays((6, 4), seed=2)[0]), error=0.2)


def structured_state_space():
    """A diagonal complex recurrence made into a long kernel, applied by FFT."""

    def fn(p, u):
        rate, step = -jnp.exp(p["real"]) + 1j * p["imag"], jnp.exp(p["step"])
        scaled = (p["c"] + 0j) * (jnp.exp(rate * step) - 1) / rate
        kernel = 2 * jnp.einsum("n,nl->l", scaled, jnp.exp(rate[:, None] * step * jnp.arange(u.shape[0]))).real
        padded = 2 * u.shape[0]
        convolved = jnp.fft.irfft(jnp.fft.rfft(u, padded, axis=0) * jnp.fft.rfft(kernel, padded)[:, None], padded, axis=0)
        return jax.nn.gelu(convolved[: u.shape[0]] + p["d"] * u) @ p["out"]

    params = named({"real": (3,), "imag": (3,), "c": (3,), "step": (1,), "d": (1, 4), "out": (4, 4)})
    return Case(fn=fn, args=(params, arrays((8, 4), seed=2)[0]), error=0.2)


def message_passing():
    """Edges and nodes update each other; sums, means and maxima over neighbours."""

    def fn(p, x, edges, senders, receivers):
        edges = jax.nn.relu(jnp.concatenate([x[senders], x[receivers], edges], -1) @ p["edge"])
        summed = jax.ops.segment_sum(edges, receivers, 4)
        counted = jax.ops.segment_sum(jnp.ones(edges.shape[0]), receivers, 4)
        largest = jnp.where(counted[:, None] > 0, jax.ops.segment_max(edges, receivers, 4), 0.0)
        around = jnp.concatenate([summed, summed / jnp.maximum(counted, 1)[:, None], largest], -1)
        return x + around @ p["node"]

    params, (x, edges) = named({"edge": (8, 5), "node": (15, 3)}), arrays((4, 3), (5, 2))
    return Case(fn=fn, args=(params, x, edges, jnp.array([0, 1, 2, 3, 3]), jnp.array([1, 2, 0, 0, 1])), error=0.3)


def quantised_codes():
    """The nearest code of a table, its gradient passed straight through, the table moved towards what chose it."""

    def loss(p, x):
        code = x @ p["encode"]
        distance = jnp.sum(code**2, -1, keepdims=True) - 2 * code @ p["table"].T + jnp.sum(p["table"] ** 2, -1)[None]
        nearest = p["table"][jnp.argmin(distance, -1)]
        passed = code + lax.stop_gradient(nearest - code)
        commitment = jnp.mean((code - lax.stop_gradient(nearest)) ** 2) + jnp.mean((lax.stop_gradient(code) - nearest) ** 2)
        return jnp.mean((passed @ p["decode"] - x) ** 2) + 0.25 * commitment

    params = {"encode": jnp.eye(4, 2) * 0.5, "table": jnp.array([[3.0, 0.0], [-3.0, 0.0], [0.0, 3.0]]), "decode": arrays((2, 4))[0]}
    x = jnp.array([[6.0, 0.5, 0.1, 0.2], [-5.0, 0.25, 0.3, 0.1], [0.1, 7.0, 0.2, 0.4]])
    return Case(fn=loss, args=(params, x), error=0.1)


def normalising_flow():
    """Affine couplings and a mixing matrix, with the logarithm of their determinants."""

    def loss(p, x):
        total = jnp.linalg.slogdet(p["mix"] + 2 * jnp.eye(4))[1]
        left, right = jnp.split(x @ (p["mix"] + 2 * jnp.eye(4)), 2, -1)
        shift, scale = jnp.split(jnp.tanh(left @ p["a"]) @ p["b"], 2, -1)
        right = right * jnp.exp(jnp.tanh(scale)) + shift
        density = jax.scipy.stats.norm.logpdf(jnp.concatenate([left, right], -1)).sum(-1)
        return -(density + total + jnp.tanh(scale).sum(-1)).mean()

    return Case(fn=loss, args=(named({"mix": (4, 4), "a": (2, 5), "b": (5, 4)}, 0.3), arrays((3, 4), seed=1)[0]), error=0.2)


def filtering():
    """A Kalman filter: a gain from a linear solve in every step."""

    def fn(p, observed):
        def step(state, y):
            mean, covariance = state
            mean, covariance = p["a"] @ mean, p["a"] @ covariance @ p["a"].T + 0.1 * jnp.eye(2)
            innovation = p["c"] @ covariance @ p["c"].T + 0.5 * jnp.eye(2)
            gain = jnp.linalg.solve(innovation, p["c"] @ covariance).T
            mean = mean + gain @ (y - p["c"] @ mean)
            return (mean, covariance - gain @ p["c"] @ covariance), mean

        return lax.scan(step, (jnp.zeros(2), jnp.eye(2)), observed)[1]

    return Case(fn=fn, args=({"a": jnp.array([[0.9, 0.1], [0.0, 0.8]]), "c": jnp.eye(2)}, arrays((4, 2))[0]), error=0.2)


def product(*shapes, spec=None):
    fn = jnp.matmul if spec is None else partial(jnp.einsum, spec)
    return Case(fn=fn, args=arrays(*shapes), wrt=(0, 1))


SHAPES = {
    "tails": partial(product, (33, 129), (129, 65)),
    "row times matrix": partial(product, (1, 33), (33, 17)),
    "matrix times vector": partial(product, (17, 33), (33,)),
    "dot of vectors": partial(product, (33,), (33,)),
    "batched": partial(product, (2, 3, 5, 7), (2, 3, 7, 4)),
    "grouped queries": partial(product, (2, 5, 2, 3, 4), (2, 6, 2, 4), spec="btkgd,bskd->bkgts"),
    "no rows": partial(product, (0, 5), (5, 3)),
    "no depth": partial(product, (4, 0), (0, 3)),
    "no columns": partial(product, (4, 5), (5, 0)),
    "scalars": partial(product, (), (), spec=",->"),
    "one element": partial(product, (1, 1), (1, 1)),
}

EXAMPLES = {
    "sequence to sequence": sequence_to_sequence,
    "autoregressive image": autoregressive_image,
    "translation with a cache": cached_translation,
    "beam search": beam_search,
    "proximal policy": proximal_policy,
    "averaged diffusion step": averaged_diffusion_step,
    "vision transformer": vision_transformer,
    "state apart": state_apart,
    "delta rule": delta_rule,
    "linear attention": linear_attention,
    "structured state space": structured_state_space,
    "message passing": message_passing,
    "quantised codes": quantised_codes,
    "normalising flow": normalising_flow,
    "filtering": filtering,
}

CASES = {**EXAMPLES, **{f"product {name}": make for name, make in SHAPES.items()}}
