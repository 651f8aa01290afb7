"""The perceptron of mlp.py under the training steps that people write: dropout with a key in the
state, gradients accumulated by a scan, and the optimizers of optax.
"""

import jax
import jax.numpy as jnp
import numpy as np

from .layers import dense
from .mlp import digits, loss, shapes
from .model import Model, floats, initial_values, integers
from .optimizers import sgd, sgd_shapes, sgd_state

WIDTHS = (64, 32, 32, 10)
BATCH = 16


def model(step, state_shapes, state):
    return Model(
        step,
        (state_shapes, floats((BATCH, WIDTHS[0])), integers(BATCH)),
        state=state,
        data=lambda batches: digits("train", BATCH, batches),
    )


def dropout():
    """Half of the hidden values are dropped; the key is split at every step."""
    tree = shapes(*WIDTHS)

    def dropped(params, key, x, y):
        for number, layer in enumerate(params[:-1]):
            keep = jax.random.bernoulli(jax.random.fold_in(key, number), 0.5, (len(x), layer["bias"].size))
            x = jnp.where(keep, jax.nn.relu(dense(x, layer)) * 2, 0)
        scores = jax.nn.log_softmax(dense(x, params[-1]))
        return -jnp.mean(jnp.sum(scores * jax.nn.one_hot(y, scores.shape[-1]), axis=-1))

    def step(state, x, y):
        key, now = jax.random.split(jax.random.wrap_key_data(state["key"]))
        value, gradients = jax.value_and_grad(dropped)(state["params"], now, x, y)
        return sgd(state, gradients, rate=0.1) | {"key": jax.random.key_data(key)}, value

    key = jax.ShapeDtypeStruct((2,), np.uint32)
    return model(
        step,
        sgd_shapes(tree) | {"key": key},
        lambda: sgd_state(initial_values(tree)) | {"key": np.array([1, 2], np.uint32)},
    )


def accumulated():
    """Four parts of a batch one after the other, their gradients summed by a scan."""
    tree = shapes(*WIDTHS)

    def step(state, x, y):
        def part(total, example):
            value, gradients = jax.value_and_grad(loss)(state["params"], *example)
            return jax.tree.map(jnp.add, total, (value, gradients)), None

        zero = (jnp.zeros(()), jax.tree.map(jnp.zeros_like, state["params"]))
        parts = (x.reshape(4, -1, x.shape[1]), y.reshape(4, -1))
        (value, gradients), _ = jax.lax.scan(part, zero, parts)
        return sgd(state, gradients, rate=0.25 / 4), value / 4

    return model(step, sgd_shapes(tree), lambda: sgd_state(initial_values(tree)))


def with_optax(make):
    """A step with the optimizer that `make` returns; optax is needed to export it only."""
    tree = shapes(*WIDTHS)
    optimizer = make()

    def step(state, x, y):
        value, gradients = jax.value_and_grad(loss)(state["params"], x, y)
        updates, inner = optimizer.update(gradients, state["optimizer"], state["params"])
        return {"params": jax.tree.map(jnp.add, state["params"], updates), "optimizer": inner}, value

    def state():
        params = initial_values(tree)
        return {"params": params, "optimizer": jax.tree.map(np.asarray, optimizer.init(params))}

    structs = jax.tree.map(lambda v: jax.ShapeDtypeStruct(v.shape, v.dtype), state())
    return model(step, structs, state)


def adamw():
    import optax

    schedule = optax.warmup_cosine_decay_schedule(0.0, 0.01, 5, 20)
    return with_optax(
        lambda: optax.chain(optax.clip_by_global_norm(0.5), optax.adamw(schedule, weight_decay=0.01))
    )


def adafactor():
    import optax

    return with_optax(lambda: optax.adafactor(0.02, min_dim_size_to_factor=8))


def lion():
    import optax

    return with_optax(lambda: optax.lion(0.003))
