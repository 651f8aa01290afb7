"""GNMT (Wu et al. 2016): 8 LSTM layers of the encoder, the first in both directions, and 8 of the decoder; the first of
these attends to the encoder, and all others take the same context. Residual connections from the third layer on. Each
layer is a scan over time; its input product is outside.
"""

import jax
import jax.numpy as jnp
from jax import lax

from .layers import cross_entropy, dense
from .model import Model, initial_values, integers
from .optimizers import adam, adam_shapes, adam_state
from .t5 import examples


def shapes(layers, width, vocabulary):
    def lstm(inputs):
        return {
            "input": {"kernel": (inputs, 4 * width), "bias": (4 * width,)},
            "state": {"kernel": (width, 4 * width)},
        }

    return {
        "attention": {"energy": (width, 1), "key": (width, width), "query": (width, width)},
        "decoder": [lstm(2 * width)] * layers,
        "decoder_table": (vocabulary, width),
        "encoder": [lstm(width), lstm(2 * width), *[lstm(width)] * (layers - 2)],
        "encoder_backward": lstm(width),
        "encoder_table": (vocabulary, width),
        "head": {"kernel": (2 * width, vocabulary), "bias": (vocabulary,)},
    }


def cell(gates, c):
    i, f, o, g = jnp.split(gates, 4, axis=-1)
    c = jax.nn.sigmoid(f + 1) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


def lstm(x, p, reverse=False):
    """[time, batch, inputs] -> [time, batch, width]."""
    start = jnp.zeros((x.shape[1], p["state"]["kernel"].shape[0]))

    def turn(carry, gates):
        h, c = cell(gates + carry[0] @ p["state"]["kernel"], carry[1])
        return (h, c), h

    return lax.scan(turn, (start, start), dense(x, p["input"]), reverse=reverse)[1]


def attending(x, memory, p, attention):
    """The first layer that writes: (its outputs, the contexts), each [time, batch, width]."""
    width = memory.shape[-1]
    start = jnp.zeros((x.shape[1], width))
    keys = memory @ attention["key"]
    from_input = x @ p["input"]["kernel"][:width] + p["input"]["bias"]
    from_context = p["input"]["kernel"][width:]

    def turn(carry, gates):
        h, c, context = carry
        h, c = cell(gates + context @ from_context + h @ p["state"]["kernel"], c)
        energies = (jnp.tanh(keys + h @ attention["query"]) @ attention["energy"])[..., 0]
        context = (jax.nn.softmax(energies, axis=0)[..., None] * memory).sum(axis=0)
        return (h, c, context), (h, context)

    return lax.scan(turn, (start, start, start), from_input)[1]


def logits(params, inputs, shifted):
    x = jnp.swapaxes(params["encoder_table"][inputs], 0, 1)
    both = lstm(x, params["encoder"][0]), lstm(x, params["encoder_backward"], reverse=True)
    x = lstm(jnp.concatenate(both, axis=-1), params["encoder"][1])
    for p in params["encoder"][2:]:
        x = x + lstm(x, p)
    memory = x
    x = jnp.swapaxes(params["decoder_table"][shifted], 0, 1)
    x, context = attending(x, memory, params["decoder"][0], params["attention"])
    x = lstm(jnp.concatenate([x, context], axis=-1), params["decoder"][1])
    for p in params["decoder"][2:]:
        x = x + lstm(jnp.concatenate([x, context], axis=-1), p)
    return dense(jnp.swapaxes(jnp.concatenate([x, context], axis=-1), 0, 1), params["head"])


def model(layers, width, vocabulary, batch, lengths):
    """`lengths` are those of the sequences read and written."""
    tree = shapes(layers, width, vocabulary)

    def step(state, inputs, shifted, targets):
        loss = lambda params: cross_entropy(logits(params, inputs, shifted), targets)
        value, gradients = jax.value_and_grad(loss)(state["params"])
        return adam(state, gradients, rate=0.001), value

    return Model(
        step,
        (adam_shapes(tree), *(integers(batch, length) for length in (*lengths, lengths[1]))),
        state=lambda: adam_state(initial_values(tree)),
        data=lambda batches: examples(batches, batch, lengths, vocabulary),
    )


def full():
    return model(8, 1024, 32000, 128, (48, 48))


def tiny():
    return model(3, 12, 32, 8, (6, 6))
