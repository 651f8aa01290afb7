"""Roles and pairs of training steps as people write them, found without hints.

Every case is a step in plain JAX (with optax where it is installed) whose Python trees define the state, the data and
the loss. Told all that, the exporter writes the roles document; `automap info` must find the same from the module
alone: as JAX lowers it with the state donated, and as text without metadata and donations.

Run as `AUTOMAP=build/automap PYTHONPATH=datasets python tests/e2e/test_roles.py [CASE ...]`.
"""
# labels: jax e2e
# timeout: 120

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
from typing import NamedTuple

os.environ["JAX_PLATFORMS"] = "cpu"
AUTOMAP = os.environ.get("AUTOMAP")

try:
    import jax
    import jax.numpy as jnp
    import numpy as np
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)
if not AUTOMAP or not os.path.exists(AUTOMAP):
    print("skipped: no automap program")
    sys.exit(77)
try:
    import optax
except ImportError:
    optax = None

from automap_jax.exporter import lower

BATCH, INPUTS, HIDDEN, CLASSES = 8, 12, 16, 10
CASES = {}


def case(*state, loss, constants=(), roles=None, needs_optax=False):
    """Registers a function that returns (step, arguments). `state` names, argument by argument from
    the first, the part of the result that is its new value; None: data or constant. Parts and the
    loss are functions of the result's tree. `roles` names those of arguments, by position, on which the
    loss depends although they are no weights, which the exporter takes them for."""

    def register(make):
        if optax or not needs_optax:
            CASES[make.__name__] = (make, state, loss, constants, roles or {})
        return make

    return register


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def s32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.int32)


KEY = jax.ShapeDtypeStruct((2,), jnp.uint32)
X, Y = f32(BATCH, INPUTS), s32(BATCH)


def first(result):
    return result[0]


def second(result):
    return result[1]


def third(result):
    return result[2]


def last(result):
    return result[-1]


def layers(*widths):
    return {
        f"Dense_{number}": {"bias": f32(b), "kernel": f32(a, b)}
        for number, (a, b) in enumerate(zip(widths, widths[1:]))
    }


PARAMS = layers(INPUTS, HIDDEN, CLASSES)


def apply(params, x):
    *hidden, output = params.values()
    for layer in hidden:
        x = jax.nn.relu(x @ layer["kernel"] + layer["bias"])
    return x @ output["kernel"] + output["bias"]


def cross_entropy(logits, y):
    return -jnp.mean(jnp.sum(jax.nn.log_softmax(logits) * jax.nn.one_hot(y, logits.shape[-1]), axis=-1))


def loss_of(params, x, y):
    return cross_entropy(apply(params, x), y)


def descend(params, gradients, rate=0.1):
    return jax.tree.map(lambda w, g: w - rate * g, params, gradients)


def shapes(tree):
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree)


def with_optax(optimizer, loss=loss_of):
    """(step, arguments) of params, optimizer state and a batch."""

    def step(params, state, x, y):
        value, gradients = jax.value_and_grad(loss)(params, x, y)
        changes, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, changes), state, value

    return step, (PARAMS, jax.eval_shape(optimizer.init, PARAMS), X, Y)


optax_case = case(first, second, loss=third, needs_optax=True)


@optax_case
def sgd_with_momentum():
    return with_optax(optax.sgd(0.1, momentum=0.9, nesterov=True))


@optax_case
def adamw_clipped_and_scheduled():
    schedule = optax.warmup_cosine_decay_schedule(0.0, 0.01, 5, 20)
    return with_optax(optax.chain(optax.clip_by_global_norm(0.5), optax.adamw(schedule)))


@optax_case
def adafactor():
    return with_optax(optax.adafactor(0.02, min_dim_size_to_factor=8))


@optax_case
def lion():
    return with_optax(optax.lion(1e-3, weight_decay=0.01))


@optax_case
def lamb():
    return with_optax(optax.lamb(1e-3))


@optax_case
def rmsprop_with_momentum():
    return with_optax(optax.rmsprop(1e-3, momentum=0.9, centered=True))


@optax_case
def masked_weight_decay():
    mask = jax.tree.map(lambda leaf: leaf.ndim > 1, PARAMS)
    return with_optax(optax.chain(optax.masked(optax.add_decayed_weights(0.01), mask), optax.adam(1e-3)))


@optax_case
def gradients_over_several_steps():
    return with_optax(optax.MultiSteps(optax.adam(1e-3), 4))


@optax_case
def injected_rate():
    return with_optax(optax.inject_hyperparams(optax.adam)(learning_rate=1e-3))


@optax_case
def skipped_if_not_finite():
    return with_optax(optax.apply_if_finite(optax.adam(1e-3), 3))


@optax_case
def muon():
    return with_optax(optax.contrib.muon(1e-3))


@case(first, second, loss=third)
def averaged_weights():
    def step(params, average, x, y):
        value, gradients = jax.value_and_grad(loss_of)(params, x, y)
        params = descend(params, gradients)
        return params, jax.tree.map(lambda a, w: 0.99 * a + 0.01 * w, average, params), value

    return step, (PARAMS, PARAMS, X, Y)


@case(first, second, third, loss=last)
def adam_by_hand():
    def step(params, mean, variance, x, y):
        value, gradients = jax.value_and_grad(loss_of)(params, x, y)
        mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mean, gradients)
        variance = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, variance, gradients)
        params = jax.tree.map(
            lambda w, m, v: w - 0.01 * m / (jnp.sqrt(v) + 1e-8), params, mean, variance
        )
        return params, mean, variance, value

    return step, (PARAMS, PARAMS, PARAMS, X, Y)


@case(lambda result: result[1]["params"], lambda result: result[1]["statistics"], loss=first)
def batch_norm():
    """Running statistics beside the weights; the result is (loss, state)."""
    statistics = {"mean": f32(HIDDEN), "variance": f32(HIDDEN)}
    params = PARAMS | {"Norm_0": {"scale": f32(HIDDEN), "shift": f32(HIDDEN)}}

    def forward(params, statistics, x, y):
        hidden = x @ params["Dense_0"]["kernel"] + params["Dense_0"]["bias"]
        mean, variance = jnp.mean(hidden, axis=0), jnp.var(hidden, axis=0)
        hidden = (hidden - mean) * jax.lax.rsqrt(variance + 1e-5)
        hidden = jax.nn.relu(hidden * params["Norm_0"]["scale"] + params["Norm_0"]["shift"])
        new = {
            "mean": 0.9 * statistics["mean"] + 0.1 * mean,
            "variance": 0.9 * statistics["variance"] + 0.1 * variance,
        }
        logits = hidden @ params["Dense_1"]["kernel"] + params["Dense_1"]["bias"]
        return cross_entropy(logits, y), new

    def step(params, statistics, x, y):
        gradient = jax.value_and_grad(forward, has_aux=True)
        (value, statistics), gradients = gradient(params, statistics, x, y)
        return value, {"params": descend(params, gradients), "statistics": statistics}

    return step, (params, statistics, X, Y)


def dropped_loss(params, key, x, y):
    hidden = jax.nn.relu(x @ params["Dense_0"]["kernel"] + params["Dense_0"]["bias"])
    keep = jax.random.bernoulli(jax.random.wrap_key_data(key), 0.5, hidden.shape)
    hidden = jnp.where(keep, 2 * hidden, 0)
    return cross_entropy(hidden @ params["Dense_1"]["kernel"] + params["Dense_1"]["bias"], y)


@case(first, second, loss=third)
def threaded_key():
    def step(params, key, x, y):
        key, now = jax.random.key_data(jax.random.split(jax.random.wrap_key_data(key)))
        value, gradients = jax.value_and_grad(dropped_loss)(params, now, x, y)
        return descend(params, gradients), key, value

    return step, (PARAMS, KEY, X, Y)


@case(first, None, loss=second, constants=(1,))
def fresh_key():
    def step(params, key, x, y):
        value, gradients = jax.value_and_grad(dropped_loss)(params, key, x, y)
        return descend(params, gradients), value

    return step, (PARAMS, KEY, X, Y)


@case(first, loss=lambda result: result[1]["loss"])
def auxiliary_metrics():
    def step(params, x, y):
        def measured(params):
            logits = apply(params, x)
            return cross_entropy(logits, y), jnp.sum(jnp.argmax(logits, axis=-1) == y)

        (value, right), gradients = jax.value_and_grad(measured, has_aux=True)(params)
        norm = jnp.sqrt(sum(jnp.sum(g * g) for g in jax.tree.leaves(gradients)))
        return descend(params, gradients), {"loss": value, "norm": norm, "right": right}

    return step, (PARAMS, X, Y)


@case(lambda result: result[2], loss=first)
def predictions_and_loss_before_state():
    def step(params, x, y):
        def measured(params):
            logits = apply(params, x)
            return cross_entropy(logits, y), jnp.argmax(logits, axis=-1).astype(jnp.int32)

        (value, predictions), gradients = jax.value_and_grad(measured, has_aux=True)(params)
        return value, predictions, descend(params, gradients)

    return step, (PARAMS, X, Y)


@case(lambda result: result[0]["step"], lambda result: result[0]["params"], loss=second)
def counted_steps():
    def step(count, params, x, y):
        value, gradients = jax.value_and_grad(loss_of)(params, x, y)
        rate = 0.1 / (1 + count.astype(jnp.float32))
        return {"step": count + 1, "params": descend(params, gradients, rate)}, value

    return step, (s32(), PARAMS, X, Y)


@case(first, None, None, loss=second, constants=(1,))
def frozen_weights():
    """The first layer is given but neither trained nor returned; labels are one-hot integers."""

    def step(params, frozen, x, y):
        def frozen_loss(params):
            logits = apply({"0": jax.lax.stop_gradient(frozen), "1": params}, x)
            return -jnp.mean(jnp.sum(jax.nn.log_softmax(logits) * y, axis=-1))

        value, gradients = jax.value_and_grad(frozen_loss)(params)
        return descend(params, gradients), value

    return step, (PARAMS["Dense_1"], PARAMS["Dense_0"], X, s32(BATCH, CLASSES))


@case(first, loss=second)
def stopped_gradient():
    """All weights are handed on, the first layer unchanged."""

    def step(params, x, y):
        def part(trained):
            return loss_of({**params, "Dense_1": trained}, x, y)

        value, gradients = jax.value_and_grad(part)(params["Dense_1"])
        return {**params, "Dense_1": descend(params["Dense_1"], gradients)}, value

    return step, (PARAMS, X, Y)


@case(first, second, loss=third)
def two_networks():
    """A generator and a discriminator, with a loss each."""
    generator, discriminator = layers(6, HIDDEN, INPUTS), layers(INPUTS, HIDDEN, 1)

    def step(generator, discriminator, noise, real):
        def generated(generator):
            return jnp.mean(jax.nn.softplus(-apply(discriminator, apply(generator, noise))))

        def told_apart(discriminator):
            fake = apply(discriminator, apply(generator, noise))
            return jnp.mean(jax.nn.softplus(fake) + jax.nn.softplus(-apply(discriminator, real)))

        value, gradients = jax.value_and_grad(generated)(generator)
        other, changes = jax.value_and_grad(told_apart)(discriminator)
        return descend(generator, gradients), descend(discriminator, changes), value, other

    return step, (generator, discriminator, f32(BATCH, 6), X)


def recurrent_loss(params, tokens, targets):
    def cell(hidden, x):
        hidden = jnp.tanh(x @ params["input"] + hidden @ params["hidden"])
        return hidden, hidden

    embedded = params["table"][tokens].swapaxes(0, 1)
    _, outputs = jax.lax.scan(cell, jnp.zeros((tokens.shape[0], HIDDEN)), embedded)
    return cross_entropy(outputs.swapaxes(0, 1) @ params["output"], targets)


RECURRENT = {
    "hidden": f32(HIDDEN, HIDDEN),
    "input": f32(INPUTS, HIDDEN),
    "output": f32(HIDDEN, CLASSES),
    "table": f32(20, INPUTS),
}


@case(first, loss=second)
def recurrent():
    def step(params, tokens, targets):
        value, gradients = jax.value_and_grad(recurrent_loss)(params, tokens, targets)
        return descend(params, gradients), value

    return step, (RECURRENT, s32(BATCH, 5), s32(BATCH, 5))


@case(first, loss=second)
def accumulated_by_scan():
    """The parts of the batch come as a leading dimension, and the loss leaves the loop."""

    def step(params, x, y):
        def part(total, batch):
            return jax.tree.map(jnp.add, total, jax.value_and_grad(loss_of)(params, *batch)), None

        zero = (jnp.zeros(()), jax.tree.map(jnp.zeros_like, params))
        (value, gradients), _ = jax.lax.scan(part, zero, (x, y))
        return descend(params, gradients, 0.1 / 4), value / 4

    return step, (PARAMS, f32(4, BATCH, INPUTS), s32(4, BATCH))


@case(first, second, third, loss=last, roles={1: "optimizer"})
def several_steps_in_a_scan():
    """Whole training steps with momentum and a threaded key, one after another in a loop."""

    def step(params, momentum, key, x, y):
        def once(carried, batch):
            params, momentum, key = carried
            key, now = jax.random.key_data(jax.random.split(jax.random.wrap_key_data(key)))
            value, gradients = jax.value_and_grad(dropped_loss)(params, now, *batch)
            momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, gradients)
            return (descend(params, momentum), momentum, key), value

        (params, momentum, key), values = jax.lax.scan(once, (params, momentum, key), (x, y))
        return params, momentum, key, jnp.mean(values)

    return step, (PARAMS, PARAMS, KEY, f32(4, BATCH, INPUTS), s32(4, BATCH))


def stacked_loss(params, x, y):
    @jax.checkpoint
    def layer(x, weights):
        return jax.nn.gelu(x @ weights), None

    x, _ = jax.lax.scan(layer, x, params["layers"])
    return cross_entropy(x @ params["output"], y)


STACKED = {"layers": f32(3, INPUTS, INPUTS), "output": f32(INPUTS, CLASSES)}


@case(first, second, loss=third)
def optimizer_in_a_scan():
    """Weights of the layers are stacked, and a loop over them updates one after another."""

    def step(params, momentum, x, y):
        value, gradients = jax.value_and_grad(stacked_loss)(params, x, y)

        def update(_, of_layer):
            weights, moment, gradient = of_layer
            moment = 0.9 * moment + gradient
            return None, (weights - 0.1 * moment, moment)

        stacks = [tree["layers"] for tree in (params, momentum, gradients)]
        _, (layers, moments) = jax.lax.scan(update, None, stacks)
        moment = 0.9 * momentum["output"] + gradients["output"]
        params = {"layers": layers, "output": params["output"] - 0.1 * moment}
        return params, {"layers": moments, "output": moment}, value

    return step, (STACKED, STACKED, X, Y)


@case(first, second, loss=third)
def scaled_loss_in_half_precision():
    """Computed in bfloat16; an update with infinite gradients is skipped and halves the scale."""

    def step(params, scale, x, y):
        def scaled(params):
            half = jax.tree.map(lambda w: w.astype(jnp.bfloat16), params)
            value = loss_of(half, x.astype(jnp.bfloat16), y).astype(jnp.float32)
            return value * scale, value

        gradients, value = jax.grad(scaled, has_aux=True)(params)
        gradients = jax.tree.map(lambda g: g / scale, gradients)
        fine = jnp.all(jnp.array([jnp.all(jnp.isfinite(g)) for g in jax.tree.leaves(gradients)]))
        new = jax.lax.cond(fine, lambda: descend(params, gradients), lambda: params)
        return new, jnp.where(fine, scale * 2, scale / 2), value

    return step, (PARAMS, f32(), X, Y)


class TrainState(NamedTuple):
    """As flax has it: one tree of everything that is fed back."""

    step: jax.Array
    params: dict
    moments: dict


@case(first, loss=lambda result: result[1]["loss"])
def train_state():
    def step(state, batch):
        def measured(params):
            logits = apply(params, batch["image"])
            return cross_entropy(logits, batch["label"]), logits

        (value, logits), gradients = jax.value_and_grad(measured, has_aux=True)(state.params)
        moments = jax.tree.map(lambda m, g: 0.9 * m + g, state.moments, gradients)
        metrics = {
            "accuracy": jnp.mean(jnp.argmax(logits, axis=-1) == batch["label"]),
            "loss": value,
        }
        return TrainState(state.step + 1, descend(state.params, moments), moments), metrics

    return step, (TrainState(s32(), PARAMS, PARAMS), {"image": X, "label": Y})


@case(first, second, loss=third)
def master_weights():
    """Half-precision weights that are made from single-precision ones."""
    half = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.bfloat16), PARAMS)

    def step(params, master, x, y):
        value, gradients = jax.value_and_grad(loss_of)(params, x.astype(jnp.bfloat16), y)
        master = jax.tree.map(lambda w, g: w - 0.1 * g.astype(jnp.float32), master, gradients)
        params = jax.tree.map(lambda w: w.astype(jnp.bfloat16), master)
        return params, master, value.astype(jnp.float32)

    return step, (half, PARAMS, X, Y)


@case(first, loss=second)
def tied_table():
    """A table that embeds the tokens and makes the scores; the labels are the tokens themselves."""

    def step(params, tokens):
        def next_token(params):
            hidden = jnp.tanh(params["table"][tokens[:, :-1]] @ params["kernel"])
            return cross_entropy(hidden @ params["table"].T, tokens[:, 1:])

        value, gradients = jax.value_and_grad(next_token)(params)
        return descend(params, gradients), value

    return step, ({"kernel": f32(INPUTS, INPUTS), "table": f32(20, INPUTS)}, s32(BATCH, 6))


@case(first, second, loss=third, roles={1: "state"})
def carried_hidden_state():
    """Truncated backpropagation through time: the hidden state goes from step to step."""

    def step(params, hidden, x, y):
        def unrolled(params):
            state = hidden
            for t in range(3):
                state = jnp.tanh(x[:, t] @ params["input"] + state @ params["hidden"])
            return cross_entropy(state @ params["output"], y), state

        (value, state), gradients = jax.value_and_grad(unrolled, has_aux=True)(params)
        return descend(params, gradients), jax.lax.stop_gradient(state), value

    params = {name: leaf for name, leaf in RECURRENT.items() if name != "table"}
    return step, (params, f32(BATCH, HIDDEN), f32(BATCH, 3, INPUTS), Y)


@case(first, loss=second)
def sliding_penalty():
    """A gradient in the loss: the norm of the derivative by the data is kept near one."""

    def step(params, x):
        def penalised(params):
            slopes = jax.vmap(jax.grad(lambda row: apply(params, row)[0]))(x)
            norms = jnp.sqrt(jnp.sum(slopes**2, axis=-1) + 1e-12)
            return jnp.mean(apply(params, x)) + jnp.mean((norms - 1) ** 2)

        value, gradients = jax.value_and_grad(penalised)(params)
        return descend(params, gradients), value

    return step, (PARAMS, X)


def told(name):
    """The step without jit, its arguments, and the roles document with everything said."""
    make, state, loss, constants, roles = CASES[name]
    step, arguments = make()
    result = jax.eval_shape(step, *arguments)
    leaves, structure = jax.tree.flatten(result)
    numbers = structure.unflatten(range(len(leaves)))
    updates = {
        position: min(jax.tree.leaves(part(numbers)))
        for position, part in enumerate(state)
        if part is not None
    }
    for position, part in enumerate(state):
        if part is not None:
            chosen = jax.tree.leaves(part(numbers))
            assert chosen == list(range(chosen[0], chosen[0] + len(chosen))), f"{name}: scattered state"
    data = tuple(p for p in range(len(arguments)) if p not in updates and p not in constants)
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(result)]
    _, module, document = lower(
        step, arguments, constants, updates, data_arguments=data, loss=paths[loss(numbers)]
    )
    positions = [at for at, argument in enumerate(arguments) for _ in jax.tree.leaves(argument)]
    for row, position in zip(document["parameters"], positions, strict=True):
        row["role"] = roles.get(position, row["role"])
    return step, arguments, module, document


def without_hints(step, arguments):
    """The module as text without metadata, of a step that donates nothing."""
    text = jax.jit(step, keep_unused=True).lower(*arguments).compiler_ir("hlo").as_hlo_text()
    return re.sub(r", metadata=\{[^{}]*\}", "", text)


def found(path):
    done = subprocess.run([AUTOMAP, "info", path, "--json"], capture_output=True, text=True)
    assert done.returncode == 0, f"automap info {path}: {done.returncode} {done.stderr}"
    return json.loads(done.stdout)


def differences(info, document):
    losses = [output["index"] for output in info["outputs"] if output["loss"]]
    if losses != [document["loss"]]:
        yield f"loss: found {losses}, expected {document['loss']}"
    for row, parameter in zip(document["parameters"], info["parameters"], strict=True):
        expected, got = (row["role"], row["output"]), (parameter["role"], parameter["output"])
        if got != expected:
            yield f"{row['path']}: found {got} by {parameter['paired_by']}, expected {expected}"


def check(name, folder):
    step, arguments, module, document = told(name)
    (folder / f"{name}.hlo.pb").write_bytes(module)
    (folder / f"{name}.hlo.txt").write_text(without_hints(step, arguments))
    problems, phases = [], []
    for suffix in (".hlo.pb", ".hlo.txt"):
        info = found(folder / f"{name}{suffix}")
        problems += [f"{name}{suffix}: {problem}" for problem in differences(info, document)]
        phases.append(info["phases"])
    if phases[0] != phases[1]:
        problems.append(f"{name}: phases {phases[0]}, without metadata {phases[1]}")
    return problems


def main():
    problems = []
    with tempfile.TemporaryDirectory() as folder:
        for name in sys.argv[1:] or CASES:
            try:
                problems += check(name, pathlib.Path(folder))
            except Exception as error:  # the others are still worth a look
                problems.append(f"{name}: {type(error).__name__}: {error}")
    print("\n".join(problems) or f"{len(sys.argv[1:] or CASES)} steps")
    sys.exit(bool(problems))


main()
