"""Recommendation models, whose tables hold nearly all parameters: Wide & Deep (Cheng et al. 2016) with
one table for all fields, as OneFlow and HugeCTR train it, and DLRM (Naumov et al. 2019) with a table for
each field. Both predict whether a user clicks. Gradients of tables are dense, as in JAX.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from .layers import dense
from .model import Model, floats, initial_values, integers
from .optimizers import adam, adam_shapes, adam_state, sgd, sgd_shapes, sgd_state

# Rows of the 26 tables of Criteo's terabyte of clicks, as MLPerf's DLRM has them.
CRITEO = (
    39884406, 39043, 17289, 7420, 20263, 3, 7120, 1543, 63, 38532951, 2953546, 403346, 10, 2208, 11938, 155, 4,
    976, 14, 39979771, 25641295, 39664984, 585935, 12972, 108, 36,
)  # fmt: skip


def perceptron_shapes(widths):
    return [{"kernel": (a, b), "bias": (b,)} for a, b in zip(widths, widths[1:])]


def perceptron(x, layers):
    for p in layers[:-1]:
        x = jax.nn.relu(dense(x, p))
    return dense(x, layers[-1])


def click_loss(logits, clicks):
    """Mean binary cross-entropy, from logits."""
    return (jnp.logaddexp(0.0, logits) - clicks * logits).mean()


def clicks(batches, batch, numbers, rows, seed=3):
    """Numbers, a row of each table, and clicks that depend on both."""
    generator = np.random.default_rng(seed)
    x = generator.integers(-8, 9, (batches, batch, numbers)).astype(np.float32) / 8
    ids = np.stack([generator.integers(0, count, (batches, batch)) for count in rows], axis=-1).astype(np.int32)
    return x, ids, ((x.sum(-1) + ids.sum(-1) % 3 - 1) > 0).astype(np.float32)


def arguments(batch, numbers, fields):
    return floats((batch, numbers)), integers(batch, fields), floats((batch,))


def click_model(tree, logits, optimizer, rows, numbers, batch):
    """A model that trains `logits(params, x, ids)`. `optimizer` has shapes and values of a state, and its update."""
    shapes, values, update = optimizer

    def loss(params, x, ids, clicked):
        return click_loss(logits(params, x, ids), clicked)

    def step(state, x, ids, clicked):
        value, gradients = jax.value_and_grad(loss)(state["params"], x, ids, clicked)
        return update(state, gradients), value

    return Model(
        step,
        (shapes(tree), *arguments(batch, numbers, len(rows))),
        state=lambda: values(initial_values(tree)),
        data=lambda batches: clicks(batches, batch, numbers, rows),
    )


def wide_deep_model(rows, fields, width, layers, numbers, batch):
    """Both parts look up `fields` rows of a table; `layers` are the widths of the deep part."""
    tree = {
        "deep": perceptron_shapes((fields * width + numbers, *layers, 1)),
        "deep_table": (rows, width),
        "wide_table": (rows, 1),
    }

    def logits(params, x, ids):
        deep = params["deep_table"][ids].reshape(x.shape[0], -1)
        deep = perceptron(jnp.concatenate([deep, x], axis=-1), params["deep"])[:, 0]
        wide = params["wide_table"][ids].sum((1, 2))
        return deep + wide

    optimizer = adam_shapes, adam_state, functools.partial(adam, rate=0.001)
    return click_model(tree, logits, optimizer, (rows,) * fields, numbers, batch)


def wide_deep(rows=25_600_000, batch=16384):
    """The sizes of OneFlow's benchmark: 26 fields, 16 wide, seven layers of 1024."""
    return wide_deep_model(rows, 26, 16, (1024,) * 7, 13, batch)


def wide_deep_tiny():
    return wide_deep_model(64, 5, 4, (16, 16), 3, batch=16)


def dlrm_model(rows, width, bottom, top, numbers, batch):
    """`bottom` and `top` are widths of perceptrons; the last of `bottom` is that of the tables."""
    fields = len(rows)
    pairs = (fields + 1) * fields // 2
    tree = {
        "bottom": perceptron_shapes((numbers, *bottom, width)),
        "tables": {f"field_{k:02}_table": (count, width) for k, count in enumerate(rows)},
        "top": perceptron_shapes((width + pairs, *top, 1)),
    }
    below = np.tril_indices(fields + 1, -1)

    def logits(params, x, ids):
        x = jax.nn.relu(perceptron(x, params["bottom"]))
        names = sorted(params["tables"])
        looked_up = [params["tables"][name][ids[:, k]] for k, name in enumerate(names)]
        vectors = jnp.stack([x, *looked_up], axis=1)
        products = jnp.einsum("bfw,bgw->bfg", vectors, vectors)[:, below[0], below[1]]
        return perceptron(jnp.concatenate([x, products], axis=-1), params["top"])[:, 0]

    optimizer = sgd_shapes, sgd_state, functools.partial(sgd, rate=0.1)
    return click_model(tree, logits, optimizer, rows, numbers, batch)


def dlrm(batch=65536):
    """MLPerf's DLRM, with rows rounded up to multiples of 64 in the large tables: 24 billion parameters."""
    rows = tuple(count if count < 10_000 else -(-count // 64) * 64 for count in CRITEO)
    return dlrm_model(rows, 128, (512, 256), (1024, 1024, 512, 256), 13, batch)


def dlrm_tiny():
    return dlrm_model((64, 32, 16, 3), 8, (16,), (16,), 5, batch=16)
