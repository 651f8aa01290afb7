"""Small training steps of kinds that the zoo does not have, in plain JAX.

STEPS[name](Values(rng)) is (step, state, data): step(state, *data) returns the new state and the loss. A comment has
the property of each step; meshes of four ranks divide most sizes. Some take other sizes, and Shapes() in place of
values.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

STEPS = {}


def kind(make):
    STEPS[make.__name__] = make
    return make


class Values:
    """Weights and data by one generator."""

    def __init__(self, rng):
        self.rng = rng

    def weight(self, *shape, deviation=None):
        deviation = deviation or (shape[0] ** -0.5 if len(shape) > 1 else 0.1)
        return jnp.asarray(self.rng.normal(size=shape) * deviation, jnp.float32)

    def stacked(self, layers, rows, columns):
        """A weight of every layer, for a scan over them."""
        return self.weight(layers, rows, columns, deviation=rows**-0.5)

    def data(self, *shape):
        return jnp.asarray(self.rng.normal(size=shape), jnp.float32)

    def below(self, limit, *shape):
        return jnp.asarray(self.rng.integers(0, limit, size=shape), jnp.int32)


class Shapes:
    """The same without values, for steps that are planned and not run."""

    def weight(self, *shape, deviation=None):
        return jax.ShapeDtypeStruct(shape, jnp.float32)

    def data(self, *shape):
        return jax.ShapeDtypeStruct(shape, jnp.float32)

    def below(self, limit, *shape):
        return jax.ShapeDtypeStruct(shape, jnp.int32)


def descent(loss, rate=0.05):
    """A step of gradient descent; the state is the weights."""

    def step(weights, *data):
        value, gradients = jax.value_and_grad(loss)(weights, *data)
        return jax.tree.map(lambda weight, gradient: weight - rate * gradient, weights, gradients), value

    return step


def cross_entropy(logits, labels):
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], -1))


def normalized(x):
    return (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)


@kind
def state_space(make, batch=8, time=32, width=16, states=4, classes=10):
    """Mamba's: a selective recurrence over time as an associative scan."""
    weights = dict(into=make.weight(width, 2 * width), decay=make.weight(width, states),
                   write=make.weight(width, states),
                   read=make.weight(width, states), pace=make.weight(width, width), out=make.weight(width, width),
                   head=make.weight(width, classes))

    def loss(weights, x, labels):
        u, gate = jnp.split(x @ weights["into"], 2, -1)
        pace = jax.nn.softplus(u @ weights["pace"])
        kept = jnp.exp(-jnp.exp(weights["decay"]) * pace[..., None])
        added = (u @ weights["write"])[:, :, None, :] * (pace * u)[..., None]
        _, state = lax.associative_scan(lambda a, b: (a[0] * b[0], b[0] * a[1] + b[1]), (kept, added), axis=1)
        y = jnp.einsum("btdn,btn->btd", state, u @ weights["read"]) * jax.nn.silu(gate)
        return cross_entropy(y @ weights["out"] @ weights["head"], labels)

    return descent(loss), weights, (make.data(batch, time, width), make.below(classes, batch, time))


@kind
def recommender(make, batch=64, tables=4, rows=128, width=8, hidden=32):
    """DLRM's: bags of rows of several tables, and products of all pairs."""
    pairs = np.tril_indices(tables + 1, -1)
    weights = dict(tables=[make.weight(rows, width) for _ in range(tables)],
                   bottom=[make.weight(13, hidden), make.weight(hidden, width)],
                   top=[make.weight(width + len(pairs[0]), hidden), make.weight(hidden, 1)])

    def loss(weights, dense, bags, clicked):
        x = jax.nn.relu(dense @ weights["bottom"][0]) @ weights["bottom"][1]
        found = [table[bags[:, k]].mean(1) for k, table in enumerate(weights["tables"])]
        features = jnp.stack([x, *found], 1)
        products = jnp.einsum("bie,bje->bij", features, features)[:, pairs[0], pairs[1]]
        logit = (jax.nn.relu(jnp.concatenate([x, products], 1) @ weights["top"][0]) @ weights["top"][1])[:, 0]
        return jnp.mean(jnp.maximum(logit, 0) - logit * clicked + jnp.log1p(jnp.exp(-jnp.abs(logit))))

    return descent(loss), weights, (make.data(batch, 13), make.below(rows, batch, tables, 3), make.below(2, batch))


@kind
def graph(make, nodes=64, edges=256, width=16, hidden=32, classes=7):
    """Sums, counts and maxima of messages by the node that they go to."""
    weights = dict(a=make.weight(width, hidden), b=make.weight(hidden, hidden), head=make.weight(2 * hidden, classes))

    def loss(weights, x, senders, receivers, labels):
        h = jax.nn.relu(x @ weights["a"])
        messages = jax.nn.relu(h[senders] @ weights["b"])
        total = jax.ops.segment_sum(messages, receivers, nodes)
        count = jax.ops.segment_sum(jnp.ones(edges), receivers, nodes)
        most = jax.ops.segment_max(messages, receivers, nodes)
        seen = jnp.where(jnp.isfinite(most), most, 0)
        return cross_entropy(jnp.concatenate([h + total / (1 + count)[:, None], seen], 1) @ weights["head"], labels)

    return descent(loss), weights, (make.data(nodes, width), make.below(nodes, edges), make.below(nodes, edges),
                                    make.below(classes, nodes))


@kind
def fourier_operator(make):
    """Products of complex weights between a Fourier transform and the one back."""
    batch, places, width, modes = 8, 32, 8, 6
    weights = dict(into=make.weight(1, width), real=make.weight(width, width, modes, deviation=0.1),
                   imaginary=make.weight(width, width, modes, deviation=0.1), past=make.weight(width, width),
                   out=make.weight(width, 1))

    def loss(weights, x, y):
        h = x @ weights["into"]
        spectrum = jnp.fft.rfft(h, axis=1)
        low = jnp.einsum("bmc,cdm->bmd", spectrum[:, :modes], weights["real"] + 1j * weights["imaginary"])
        whole = jnp.zeros(spectrum.shape, low.dtype).at[:, :modes].set(low)
        h = jax.nn.gelu(jnp.fft.irfft(whole, n=places, axis=1) + h @ weights["past"])
        return jnp.mean((h @ weights["out"] - y) ** 2)

    return descent(loss), weights, (make.data(batch, places, 1), make.data(batch, places, 1))


@kind
def shampoo(make):
    """An optimizer that takes roots of matrices by their eigenvalues."""
    rows, columns = 16, 8
    state = dict(weight=make.weight(rows, columns), left=jnp.eye(rows), right=jnp.eye(columns))

    def inverse_root(matrix):
        values, vectors = jnp.linalg.eigh(matrix)
        return (vectors * jnp.maximum(values, 1e-6) ** -0.25) @ vectors.T

    def step(state, x, y):
        loss, gradient = jax.value_and_grad(lambda weight: jnp.mean((x @ weight - y) ** 2))(state["weight"])
        left, right = state["left"] + gradient @ gradient.T, state["right"] + gradient.T @ gradient
        weight = state["weight"] - 0.1 * inverse_root(left) @ gradient @ inverse_root(right)
        return dict(weight=weight, left=left, right=right), loss

    return step, state, (make.data(32, rows), make.data(32, columns))


@kind
def muon(make):
    """An optimizer that makes momentum orthogonal by products in a loop."""
    weights = dict(a=make.weight(16, 32), b=make.weight(32, 8))

    def orthogonal(matrix):
        is_tall = matrix.shape[0] > matrix.shape[1]
        x = matrix.T if is_tall else matrix

        def turn(x, _):
            square = x @ x.T
            return 3.4445 * x + (-4.775 * square + 2.0315 * square @ square) @ x, None

        x, _ = lax.scan(turn, x / (jnp.linalg.norm(x) + 1e-7), None, length=5)
        return x.T if is_tall else x

    def step(state, x, y):
        loss, gradients = jax.value_and_grad(
            lambda weights: jnp.mean((jax.nn.relu(x @ weights["a"]) @ weights["b"] - y) ** 2))(state["weights"])
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, state["momentum"], gradients)
        weights = jax.tree.map(lambda w, m: w - 0.02 * orthogonal(m), state["weights"], momentum)
        return dict(weights=weights, momentum=momentum), loss

    return step, dict(weights=weights,
                      momentum=jax.tree.map(jnp.zeros_like, weights)), (make.data(32, 16), make.data(32, 8))


@kind
def contrastive(make):
    """CLIP's: every image of the batch against every text."""
    batch, width = 32, 24
    weights = dict(image=make.weight(48, width), text=make.weight(20, width), table=make.weight(50, 20),
                   scale=jnp.float32(1))

    def loss(weights, images, texts):
        a, b = images @ weights["image"], weights["table"][texts].mean(1) @ weights["text"]
        a /= jnp.linalg.norm(a, axis=-1, keepdims=True)
        b /= jnp.linalg.norm(b, axis=-1, keepdims=True)
        logits, own = jnp.exp(weights["scale"]) * a @ b.T, jnp.arange(batch)
        return (cross_entropy(logits, own) + cross_entropy(logits.T, own)) / 2

    return descent(loss), weights, (make.data(batch, 48), make.below(50, batch, 6))


@kind
def policy(make):
    """PPO's: advantages by a scan backwards in time, normalized over all of them."""
    time, batch, width, actions = 16, 8, 6, 3
    weights = dict(body=make.weight(width, 32), policy=make.weight(32, actions), value=make.weight(32, 1))

    def loss(weights, seen, taken, before, rewards):
        h = jnp.tanh(seen @ weights["body"])
        logits, value = jax.nn.log_softmax(h @ weights["policy"]), (h @ weights["value"])[..., 0]
        fixed = lax.stop_gradient(value)

        def back(later, row):
            reward, now, after = row
            later = reward + 0.99 * after - now + 0.99 * 0.95 * later
            return later, later

        _, advantage = lax.scan(back, jnp.zeros(batch), (rewards[:-1], fixed[:-1], fixed[1:]), reverse=True)
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        ratio = jnp.exp(jnp.take_along_axis(logits, taken[..., None], -1)[..., 0] - before)[:-1]
        gain = jnp.minimum(ratio * advantage, jnp.clip(ratio, 0.8, 1.2) * advantage).mean()
        entropy = -(jnp.exp(logits) * logits).sum(-1).mean()
        return 0.5 * jnp.mean((value[:-1] - (advantage + fixed[:-1])) ** 2) - gain - 0.01 * entropy

    return descent(loss), weights, (make.data(time, batch, width), make.below(actions, time, batch),
                                    -jnp.ones((time, batch)),
                                    make.data(time, batch))


@kind
def triangles(make, batch=2, places=12, width=8):
    """The layer of a fold of pairs: products and attention along either of two equal dimensions."""
    weights = {name: make.weight(width, width)
               for name in ("gate", "left", "other", "right", "query", "key", "value", "out")}

    def loss(weights, pairs, target):
        x = normalized(pairs)
        left = jax.nn.sigmoid(x @ weights["gate"]) * (x @ weights["left"])
        right = jax.nn.sigmoid(x @ weights["other"]) * (x @ weights["right"])
        pairs = pairs + normalized(jnp.einsum("bikc,bjkc->bijc", left, right))
        x = normalized(pairs)
        query, key, value = (x @ weights[name] for name in ("query", "key", "value"))
        seen = jax.nn.softmax(jnp.einsum("bijc,bikc->bijk", query, key) / width**0.5)
        pairs = pairs + jnp.einsum("bijk,bikc->bijc", seen, value) @ weights["out"]
        return jnp.mean((pairs - target) ** 2)

    return descent(loss), weights, (make.data(batch, places, places, width), make.data(batch, places, places, width))


@kind
def memory(make):
    """The best few of many rows, found by top_k and read by their numbers."""
    batch, width, rows, classes = 32, 16, 64, 5
    weights = dict(query=make.weight(width, width), rows=make.weight(rows, width), head=make.weight(width, classes))

    def loss(weights, x, labels):
        best, which = lax.top_k(x @ weights["query"] @ weights["rows"].T, 4)
        read = jnp.einsum("bk,bkd->bd", jax.nn.softmax(best), weights["rows"][which])
        return cross_entropy(read @ weights["head"], labels)

    return descent(loss), weights, (make.data(batch, width), make.below(classes, batch))


@kind
def autoencoder(make):
    """Random numbers in the step; the generator's key is part of the state."""
    batch, width = 32, 16
    state = dict(weights=dict(encoder=make.weight(width, 8), decoder=make.weight(4, width)), key=jax.random.PRNGKey(0))

    def loss(weights, key, x):
        mean, spread = jnp.split(x @ weights["encoder"], 2, -1)
        drawn = mean + jnp.exp(spread * 0.5) * jax.random.normal(key, mean.shape)
        return jnp.mean((drawn @ weights["decoder"] - x) ** 2) + 1e-2 * jnp.mean(jnp.exp(spread) + mean**2 - 1 - spread)

    def step(state, x):
        key, after = jax.random.split(state["key"])
        weights, value = descent(lambda weights, x: loss(weights, key, x))(state["weights"], x)
        return dict(weights=weights, key=after), value

    return step, state, (make.data(batch, width),)


@kind
def scanned_layers(make):
    """A transformer whose layers are one scan and are recomputed; the table of tokens is the head, too."""
    batch, time, width, layers, heads, tokens = 4, 16, 32, 4, 4, 40
    weights = dict(table=make.weight(tokens, width, deviation=0.1),
                   layers=dict(into=make.stacked(layers, width, 3 * width), out=make.stacked(layers, width, width),
                               up=make.stacked(layers, width, 4 * width), down=make.stacked(layers, 4 * width, width),
                               scale=jnp.ones((layers, width))))
    is_earlier = jnp.tril(jnp.ones((time, time), bool))

    @jax.checkpoint
    def layer(x, weights):
        h = x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * weights["scale"]
        parts = (h @ weights["into"]).reshape(batch, time, 3, heads, width // heads)
        query, key, value = parts[:, :, 0], parts[:, :, 1], parts[:, :, 2]
        scores = jnp.einsum("bthd,bshd->bhts", query, key) / (width // heads) ** 0.5
        seen = jax.nn.softmax(jnp.where(is_earlier, scores, -1e9))
        x = x + jnp.einsum("bhts,bshd->bthd", seen, value).reshape(batch, time, width) @ weights["out"]
        return x + jax.nn.silu(x @ weights["up"]) @ weights["down"], None

    def loss(weights, tokens):
        x, _ = lax.scan(layer, weights["table"][tokens], weights["layers"])
        return cross_entropy((x @ weights["table"].T)[:, :-1], tokens[:, 1:])

    return descent(loss), weights, (make.below(tokens, batch, time),)


@kind
def alignment(make):
    """A sum over all alignments of a label to a longer sequence, by a recurrence over time (CTC)."""
    import optax

    batch, time, classes, length = 4, 12, 6, 4
    weights = dict(a=make.weight(8, 16), b=make.weight(16, classes))

    def loss(weights, x, labels):
        logits = jnp.tanh(x @ weights["a"]) @ weights["b"]
        return optax.ctc_loss(logits, jnp.zeros((batch, time)), labels, jnp.zeros((batch, length))).mean()

    return descent(loss), weights, (make.data(batch, time, 8), 1 + make.below(classes - 1, batch, length))


@kind
def adapter(make):
    """LoRA's: the state is two narrow matrices, all else is frozen and comes as data."""
    width, rank, classes, batch = 32, 4, 10, 16
    frozen = dict(body=make.weight(width, width), head=make.weight(width, classes))

    def loss(adapter, frozen, x, labels):
        h = jax.nn.relu(x @ frozen["body"] + x @ adapter["down"] @ adapter["up"])
        return cross_entropy(h @ frozen["head"], labels)

    return descent(loss), dict(down=make.weight(width, rank), up=jnp.zeros((rank, width))), (
        frozen, make.data(batch, width), make.below(classes, batch))


@kind
def scaled_loss(make):
    """A loss that is scaled up, gradients clipped by the norm of all, and an update that a conditional leaves out."""
    width = 16
    state = dict(weights=dict(a=make.weight(width, 32), b=make.weight(32, 4)), scale=jnp.float32(1024),
                 good=jnp.int32(0))

    def step(state, x, y):
        def loss(weights):
            return jnp.mean((jax.nn.relu(x @ weights["a"]) @ weights["b"] - y) ** 2) * state["scale"]

        value, gradients = jax.value_and_grad(loss)(state["weights"])
        gradients = jax.tree.map(lambda gradient: gradient / state["scale"], gradients)
        norm = jnp.sqrt(sum(jnp.sum(gradient * gradient) for gradient in jax.tree.leaves(gradients)))
        is_finite = jnp.isfinite(norm)
        limit = jnp.minimum(1.0, 1.0 / norm)
        weights = lax.cond(
            is_finite,
            lambda: jax.tree.map(lambda weight, gradient: weight - 0.1 * limit * gradient, state["weights"], gradients),
            lambda: state["weights"])
        grown = jnp.where(state["good"] > 1, state["scale"] * 2, state["scale"])
        return dict(weights=weights, scale=jnp.where(is_finite, grown, state["scale"] / 2),
                    good=jnp.where(is_finite, state["good"] + 1, 0)), value / state["scale"]

    return step, state, (make.data(32, width), make.data(32, 4))
