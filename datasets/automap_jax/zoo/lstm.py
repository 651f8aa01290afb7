"""An LSTM (Hochreiter and Schmidhuber 1997) that predicts the next token, its time steps a scan."""

import jax
import jax.numpy as jnp
from jax import lax

from .layers import cross_entropy, dense
from .model import Model, initial_values, integers
from .optimizers import adam, adam_shapes, adam_state
from .transformer import next_tokens


def shapes(vocabulary, width, hidden):
    return {
        "gates": {"kernel": (width + hidden, 4 * hidden), "bias": (4 * hidden,)},
        "head": {"kernel": (hidden, vocabulary), "bias": (vocabulary,)},
        "token_table": (vocabulary, width),
    }


def logits(params, tokens):
    inputs = jnp.swapaxes(params["token_table"][tokens], 0, 1)
    hidden = params["gates"]["bias"].size // 4
    start = jnp.zeros((tokens.shape[0], hidden))

    def cell(carry, x):
        h, c = carry
        gates = dense(jnp.concatenate([x, h], axis=-1), params["gates"])
        i, f, o, g = jnp.split(gates, 4, axis=-1)
        c = jax.nn.sigmoid(f + 1) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    _, outputs = lax.scan(cell, (start, start), inputs)
    return dense(jnp.swapaxes(outputs, 0, 1), params["head"])


def step(state, tokens, targets):
    loss = lambda params: cross_entropy(logits(params, tokens), targets)
    value, gradients = jax.value_and_grad(loss)(state["params"])
    return adam(state, gradients, rate=0.01), value


def model(vocabulary, width, hidden, batch, length):
    tree = shapes(vocabulary, width, hidden)
    return Model(
        step,
        (adam_shapes(tree), integers(batch, length), integers(batch, length)),
        state=lambda: adam_state(initial_values(tree)),
        data=lambda batches: next_tokens(batches, batch, length, vocabulary),
    )


def full():
    return model(32000, 1024, 2048, batch=128, length=128)


def medium():
    return model(1024, 256, 256, batch=32, length=128)


def tiny():
    return model(64, 16, 24, batch=16, length=12)
