"""A three-layer perceptron on scikit-learn's digits (8x8 images, ten classes), trained by SGD, and
the module that counts how many examples it gets right.
"""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np

from .layers import dense
from .model import Model, floats, initial_values, integers
from .optimizers import sgd, sgd_shapes, sgd_state

DIGITS = pathlib.Path(__file__).parents[2] / "digits"


def shapes(*widths):
    return [
        {"kernel": (inner, outer), "bias": (outer,)} for inner, outer in zip(widths, widths[1:])
    ]


def logits(params, x):
    for layer in params[:-1]:
        x = jax.nn.relu(dense(x, layer))
    return dense(x, params[-1])


def loss(params, x, y):
    scores = jax.nn.log_softmax(logits(params, x))
    return -jnp.mean(jnp.sum(scores * jax.nn.one_hot(y, scores.shape[-1]), axis=-1))


def step(state, x, y):
    value, gradients = jax.value_and_grad(loss)(state["params"], x, y)
    return sgd(state, gradients, rate=0.25), value


def count_right(state, x, y):
    """How many of the examples have their label among the largest logits."""
    scores = logits(state["params"], x)
    at_label = jnp.take_along_axis(scores, y[:, None], axis=-1)[:, 0]
    return jnp.sum(at_label >= scores.max(axis=-1), dtype=jnp.int32)


def digits(part, batch, batches):
    """The first `batches` batches of a part, "train" or "test", of the digits."""
    arrays = np.load(DIGITS / f"{part}.npz")
    rows = batch * batches
    return tuple(
        arrays[name][:rows].reshape(batches, batch, *arrays[name].shape[1:]) for name in ("x", "y")
    )


def model(widths, batch, **settings):
    tree = shapes(*widths)
    return Model(
        step,
        (sgd_shapes(tree), floats((batch, widths[0])), integers(batch)),
        state=lambda: sgd_state(initial_values(tree)),
        data=lambda batches: digits("train", batch, batches),
        **settings,
    )


WIDTHS = (64, 256, 128, 10)


def full():
    return model(WIDTHS, batch=64, batches=22, steps=440)


def tiny():
    return model((64, 32, 32, 10), batch=16)


def evaluate():
    tree = shapes(*WIDTHS)
    return Model(
        count_right,
        (sgd_shapes(tree), floats((384, WIDTHS[0])), integers(384)),
        constants=(0,),
    )
