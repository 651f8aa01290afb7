"""Steps of Flax NNX and Equinox: exported as users write them, they train as in JAX.

Each case makes its objects anew, exports the step, trains it by `automap run` for 20 steps on one
device and under a searched plan, and by JAX; the losses must agree. Some are trained in JAX on eight
host devices too, under the shardings of `automap_jax.plan`.

Run as `AUTOMAP=build/automap PYTHONPATH=datasets python tests/e2e/test_objects.py [CASE ...]`.
"""
# labels: jax e2e
# timeout: 600
# cost: 60

import functools
import json
import pathlib
import subprocess
import sys
import tempfile
import warnings

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "launch"))
from host_devices import make_devices
from program import AUTOMAP, skip_where_missing

make_devices(8)

with skip_where_missing():
    import equinox as eqx
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax
    from flax import nnx

import automap_jax

STEPS = 20
TOLERANCE = 1e-5


def images(count=STEPS, batch=8):
    random = np.random.default_rng(0)
    return {
        "image": random.normal(size=(count, batch, 12, 12, 1)).astype(np.float32),
        "label": random.integers(0, 10, (count, batch)).astype(np.int32),
    }


def vectors(width=16, count=STEPS, batch=8):
    random = np.random.default_rng(1)
    x = random.normal(size=(count, batch, width)).astype(np.float32)
    return x, np.tanh(x @ random.normal(size=(width, 4)).astype(np.float32))


def tokens(count=STEPS, batch=8, length=12):
    return np.random.default_rng(2).integers(0, 32, (count, batch, length)).astype(np.int32)


class CNN(nnx.Module):
    """The convolutional network of the NNX tutorial, with smaller layers."""

    def __init__(self, *, rngs):
        self.conv1 = nnx.Conv(1, 8, kernel_size=(3, 3), rngs=rngs)
        self.batch_norm1 = nnx.BatchNorm(8, rngs=rngs)
        self.dropout1 = nnx.Dropout(rate=0.025)
        self.conv2 = nnx.Conv(8, 16, kernel_size=(3, 3), rngs=rngs)
        self.batch_norm2 = nnx.BatchNorm(16, rngs=rngs)
        self.avg_pool = functools.partial(nnx.avg_pool, window_shape=(2, 2), strides=(2, 2))
        self.linear1 = nnx.Linear(144, 32, rngs=rngs)
        self.dropout2 = nnx.Dropout(rate=0.025)
        self.linear2 = nnx.Linear(32, 10, rngs=rngs)

    def __call__(self, x, rngs=None):
        x = self.avg_pool(nnx.relu(self.batch_norm1(self.dropout1(self.conv1(x), rngs=rngs))))
        x = self.avg_pool(nnx.relu(self.batch_norm2(self.conv2(x))))
        x = x.reshape(x.shape[0], -1)
        x = nnx.relu(self.dropout2(self.linear1(x), rngs=rngs))
        return self.linear2(x)


def classification(model, batch, rngs):
    logits = model(batch["image"], rngs)
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"]).mean()
    return loss, logits


def cnn_objects():
    model = CNN(rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adamw(5e-3, 0.9), wrt=nnx.Param)
    metrics = nnx.MultiMetric(accuracy=nnx.metrics.Accuracy(), loss=nnx.metrics.Average("loss"))
    return model, optimizer, metrics, nnx.Rngs(1)


def tutorial():
    """Returns nothing: the loss is the differentiated value."""

    @nnx.jit
    def train_step(model, optimizer, metrics, rngs, batch):
        model.train()
        (loss, logits), grads = nnx.value_and_grad(classification, has_aux=True)(model, batch, rngs)
        metrics.update(loss=loss, logits=logits, labels=batch["label"])
        optimizer.update(model, grads)

    def reference():
        model, optimizer, metrics, rngs = cnn_objects()
        batches, before, losses = images(), 0.0, []
        for at in range(STEPS):
            train_step(model, optimizer, metrics, rngs, jax.tree.map(lambda a: a[at], batches))
            total = float(metrics.loss.total[...])
            losses.append(total - before)
            before = total
        return losses

    return train_step, cnn_objects(), images(), reference


class Block(nnx.Module):
    def __init__(self, rngs):
        self.norm1, self.norm2 = nnx.LayerNorm(16, rngs=rngs), nnx.LayerNorm(16, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(4, 16, decode=False, rngs=rngs)
        self.up, self.down = nnx.Linear(16, 32, rngs=rngs), nnx.Linear(32, 16, rngs=rngs)

    def __call__(self, x, mask):
        x = x + self.attention(self.norm1(x), mask=mask)
        return x + self.down(nnx.gelu(self.up(self.norm2(x))))


class Transformer(nnx.Module):
    """Two layers in a list; the embedding table serves as the last layer too."""

    def __init__(self, rngs):
        self.embed = nnx.Embed(32, 16, rngs=rngs)
        self.layers = nnx.List([Block(rngs) for _ in range(2)])
        self.norm = nnx.LayerNorm(16, rngs=rngs)

    def __call__(self, ids):
        x, mask = self.embed(ids), nnx.make_causal_mask(ids)
        for layer in self.layers:
            x = layer(x, mask)
        return self.embed.attend(self.norm(x))


def next_token_loss(model, ids):
    logits = model(ids)[:, :-1]
    return optax.softmax_cross_entropy_with_integer_labels(logits, ids[:, 1:]).mean()


def trained(step, objects, batches):
    """A reference that reads the loss from the step's result, by `objects()` made anew."""

    def reference():
        made, losses = objects(), []
        for at in range(STEPS):
            losses.append(float(step(*made, *jax.tree.map(lambda a: a[at], batches))))
        return losses

    return reference


def transformer():
    """A plain function without jit; it returns the loss alone."""

    def objects():
        model = Transformer(nnx.Rngs(0))
        return model, nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)

    def step(model, optimizer, ids):
        loss, grads = nnx.value_and_grad(next_token_loss)(model, ids)
        optimizer.update(model, grads)
        return loss

    return step, objects(), (tokens(),), trained(nnx.jit(step), objects, (tokens(),))


def mean_square(model, x, y):
    return jnp.mean((jax.vmap(model)(x) - y) ** 2)


def functional(step, objects, batches):
    """A reference of a step that returns (new state..., loss)."""

    def reference():
        made, losses = objects(), []
        for at in range(STEPS):
            *made, loss = step(*made, *(array[at] for array in batches))
            losses.append(float(loss))
        return losses

    return reference


def equinox_mlp():
    optimizer = optax.adam(1e-2)

    def objects():
        model = eqx.nn.MLP(16, 4, 32, 2, activation=jax.nn.gelu, key=jax.random.key(0))
        return model, optimizer.init(eqx.filter(model, eqx.is_inexact_array))

    @eqx.filter_jit
    def step(model, opt_state, x, y):
        loss, grads = eqx.filter_value_and_grad(mean_square)(model, x, y)
        updates, opt_state = optimizer.update(grads, opt_state, model)
        return eqx.apply_updates(model, updates), opt_state, loss

    return step, objects(), vectors(), functional(step, objects, vectors())


class Normed(eqx.Module):
    first: eqx.nn.Linear
    norm: eqx.nn.BatchNorm
    last: eqx.nn.Linear
    activation: callable
    scale: float
    name: str
    skip: None

    def __init__(self, key):
        a, b = jax.random.split(key)
        self.first, self.last = eqx.nn.Linear(16, 16, key=a), eqx.nn.Linear(16, 4, key=b)
        self.norm = eqx.nn.BatchNorm(16, "batch", mode="batch")
        self.activation, self.scale, self.name, self.skip = jax.nn.relu, 0.5, "normed", None

    def __call__(self, x, state):
        x, state = self.norm(self.first(x), state)
        return self.last(self.activation(x)) * self.scale, state


def equinox_state():
    """A model with state (running statistics), strings, floats, functions and None as leaves."""
    optimizer = optax.sgd(1e-2, momentum=0.9)

    def objects():
        model, state = eqx.nn.make_with_state(Normed)(jax.random.key(0))
        return model, state, optimizer.init(eqx.filter(model, eqx.is_inexact_array))

    def forward(model, state, x, y):
        mapped = jax.vmap(model, axis_name="batch", in_axes=(0, None), out_axes=(0, None))
        found, state = mapped(x, state)
        return jnp.mean((found - y) ** 2), state

    def step(model, state, opt_state, x, y):
        (loss, state), grads = eqx.filter_value_and_grad(forward, has_aux=True)(model, state, x, y)
        updates, opt_state = optimizer.update(grads, opt_state)
        return eqx.apply_updates(model, updates), state, opt_state, loss

    return step, objects(), vectors(), functional(eqx.filter_jit(step), objects, vectors())


class Pair(nnx.Module):
    def __init__(self, rngs):
        self.frozen = nnx.Linear(16, 16, rngs=rngs)
        self.heads = nnx.Dict(a=nnx.List([nnx.Linear(16, 4, rngs=rngs)]), b=nnx.Linear(16, 4, rngs=rngs))

    def __call__(self, x):
        x = nnx.relu(self.frozen(x))
        return self.heads.a[0](x) + self.heads.b(x)


def partial_gradients():
    """nnx.grad with DiffState, two modules that share a variable, a keyword and a static argument;
    the loss is the second of three results."""
    wanted = nnx.All(nnx.Param, nnx.PathContains("heads"))

    def objects():
        model, other = Pair(nnx.Rngs(0)), nnx.Linear(16, 4, rngs=nnx.Rngs(1))
        other.kernel = model.heads.b.kernel
        return model, other, nnx.Optimizer(model, optax.sgd(0.05), wrt=wanted)

    @nnx.jit(static_argnames="mode")
    def step(model, other, optimizer, x, y, mode):
        assert mode == "sum"

        def loss_fn(model):
            loss = jnp.mean((model(x) + other(x) - y) ** 2)
            return loss, loss

        grads, loss = nnx.grad(loss_fn, argnums=nnx.DiffState(0, wanted), has_aux=True)(model)
        optimizer.update(model, grads)
        return {"accuracy": jnp.mean(model(x).argmax(-1) == y.argmax(-1)), "value": loss, "step": optimizer.step}

    reference = trained(lambda *all: step(*all, mode="sum")["value"], objects, vectors())
    return step, objects(), vectors(), reference, {"mode": "sum"}


CASES = {
    "tutorial": tutorial,
    "transformer": transformer,
    "equinox_mlp": equinox_mlp,
    "equinox_state": equinox_state,
    "partial_gradients": partial_gradients,
}
PLANNED = ("transformer", "equinox_mlp")


def automap(*arguments):
    done = subprocess.run([AUTOMAP, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, f"automap {' '.join(map(str, arguments))}: {done.returncode} {done.stderr}"
    return done.stdout


def run(folder, plan):
    files = ["--state", folder / "state.npz", "--data", folder / "data.npz"]
    lines = automap("run", folder / "model.hlo.pb", "--plan", plan, *files, "--steps", STEPS, "--json").splitlines()
    rows = map(json.loads, lines)
    return [row["loss"] for row in rows if "loss" in row and "step" in row]


def worst(found, wanted):
    assert len(found) == len(wanted) == STEPS, (len(found), len(wanted))
    return max(abs(a - b) / abs(b) for a, b in zip(found, wanted))


def check_paths(name, document):
    """Paths are those that users write."""
    paths = {row["path"] for row in document["parameters"]}
    wanted = {
        "tutorial": "model['conv1']['kernel']",
        "transformer": "model['layers'][1]['attention']['query']['kernel']",
        "equinox_mlp": "model.layers[0].weight",
        "equinox_state": "model.first.weight",
        "partial_gradients": "model['heads']['a'][0]['kernel']",
    }[name]
    assert wanted in paths, sorted(paths)


def check_plan(step, arguments, reference, batches):
    """The step trains in JAX on eight devices under the shardings of automap_jax.plan."""
    first = [array[0] for array in batches]
    shardings = automap_jax.plan(step, (*arguments, *first), "nominal:8", options=["--mesh", "data=4,model=2"])
    made = automap_jax.place((*arguments, *first), shardings)
    placed = [leaf.sharding for leaf in jax.tree.leaves(made) if isinstance(leaf, jax.Array)]
    assert any(len(at.device_set) == 8 and not at.is_fully_replicated for at in placed), placed
    state, losses = list(made[: len(arguments)]), []
    jitted = step if not hasattr(step, "__code__") else nnx.jit(step)
    for at in range(STEPS):
        batch = jax.device_put([array[at] for array in batches], list(shardings[len(arguments) :]))
        result = jitted(*state, *batch)
        if isinstance(result, tuple):
            *state, result = result
        losses.append(float(result))
    return worst(losses, reference)


def check(name):
    step, arguments, data, reference, *more = CASES[name]()
    keywords = more[0] if more else None
    batches = data if isinstance(data, tuple) else (data,)
    first = jax.tree.map(lambda a: a[0], batches)
    with tempfile.TemporaryDirectory() as name_of_folder, warnings.catch_warnings():
        warnings.simplefilter("error")
        folder = pathlib.Path(name_of_folder)
        _, document = automap_jax.export(
            step, (*arguments, *first), folder, data=batches, example_kwargs=keywords
        )
        check_paths(name, document)
        wanted = reference()
        alone = worst(run(folder, "none"), wanted)
        automap("search", folder / "model.hlo.pb", "--cluster", "nominal:2", "--evaluations", 30, "-o",
                folder / "p.json")
        planned = worst(run(folder, folder / "p.json"), wanted)
        assert max(alone, planned) <= TOLERANCE, f"{name}: losses off by {alone:.1e}, planned {planned:.1e}"
        assert wanted[-1] != wanted[0]
        print(f"{name:20} losses off by {alone:.1e}, under a plan {planned:.1e}", flush=True)
        if name in PLANNED:
            off = check_plan(step, arguments, wanted, batches)
            assert off <= TOLERANCE, f"{name}: losses in JAX on 8 devices are off by {off:.1e}"
            print(f"{name:20} losses off by {off:.1e} in JAX on 8 devices", flush=True)


def main():
    failed = 0
    for name in sys.argv[1:] or CASES:
        try:
            check(name)
        except AssertionError as failure:
            failed += 1
            print(f"FAILED {name}: {failure}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
