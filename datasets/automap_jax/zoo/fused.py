"""A decoder that is hard to split: query, key and value in one projection, key-value heads that
queries share, gate and up in one projection, sizes that no power of two divides (6 heads, 53 tokens), one
table for input and softmax, a masked mean as the loss, and gradients clipped by their global norm.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

from .llama import rms_norm
from .model import Model, floats, initial_values, integers, sequences
from .optimizers import adam, adam_shapes, adam_state


def shapes(layers, width, heads, key_heads, size, inner, vocabulary):
    layer = {
        "fused": {"kernel": (width, 3 * heads * size), "bias": (3 * heads * size,)},
        "fused_output": {"kernel": (heads * size, width)},
        "gate_up": {"kernel": (width, 2 * inner)},
        "down": {"kernel": (inner, width)},
        "key_value": {"kernel": (width, 2 * key_heads * size)},
        "query": {"kernel": (width, heads * size)},
        "output": {"kernel": (heads * size, width)},
        "norms": [{"scale": (width,)}] * 3,
    }
    return {"layers": [layer] * layers, "table": (vocabulary, width)}


def causal(scores, size):
    seen = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    return jax.nn.softmax(jnp.where(seen, scores / math.sqrt(size), -1e9))


def fused_attention(x, p, heads):
    """One projection of x [b,t,d] to q, k and v, cut by slices."""
    whole = x @ p["fused"]["kernel"] + p["fused"]["bias"]
    query, key, value = (y.reshape(*y.shape[:2], heads, -1) for y in jnp.split(whole, 3, axis=-1))
    weights = causal(jnp.einsum("bthe,bshe->bhts", query, key), query.shape[-1])
    mixed = jnp.einsum("bhts,bshe->bthe", weights, value)
    return mixed.reshape(*x.shape[:2], -1) @ p["fused_output"]["kernel"]


def grouped_attention(x, p, heads, key_heads):
    """Heads / key_heads queries share a key and a value; these come of one projection, cut by a reshape."""
    query = (x @ p["query"]["kernel"]).reshape(*x.shape[:2], key_heads, heads // key_heads, -1)
    both = (x @ p["key_value"]["kernel"]).reshape(*x.shape[:2], 2, key_heads, -1)
    key, value = both[:, :, 0], both[:, :, 1]
    weights = causal(jnp.einsum("btgqe,bsge->bgqts", query, key), query.shape[-1])
    mixed = jnp.einsum("bgqts,bsge->btgqe", weights, value)
    return mixed.reshape(*x.shape[:2], -1) @ p["output"]["kernel"]


def mlp(x, p):
    gate, up = jnp.split(x @ p["gate_up"]["kernel"], 2, axis=-1)
    return (jax.nn.silu(gate) * up) @ p["down"]["kernel"]


def masked_loss(params, tokens, targets, mask, heads, key_heads):
    x = params["table"][tokens]
    for p in params["layers"]:
        x = x + fused_attention(rms_norm(x, p["norms"][0]["scale"]), p, heads)
        x = x + grouped_attention(rms_norm(x, p["norms"][1]["scale"]), p, heads, key_heads)
        x = x + mlp(rms_norm(x, p["norms"][2]["scale"]), p)
    likelihood = jax.nn.log_softmax(x @ params["table"].T)
    chosen = jnp.take_along_axis(likelihood, targets[..., None], axis=-1)[..., 0]
    return -(chosen * mask).sum() / mask.sum()


def clipped(gradients, most):
    norm = jnp.sqrt(sum(jnp.square(g).sum() for g in jax.tree.leaves(gradients)))
    return jax.tree.map(lambda g: g * jnp.minimum(1.0, most / norm), gradients)


def tiny():
    layers, width, heads, key_heads, size, inner, vocabulary, batch, length = 2, 24, 6, 3, 4, 20, 53, 8, 6
    tree = shapes(layers, width, heads, key_heads, size, inner, vocabulary)

    def step(state, tokens, targets, mask):
        loss = lambda params: masked_loss(params, tokens, targets, mask, heads, key_heads)
        value, gradients = jax.value_and_grad(loss)(state["params"])
        return adam(state, clipped(gradients, 1.0), rate=0.003), value

    def data(batches):
        tokens = sequences(batches, batch, length + 1, vocabulary)
        mask = np.random.default_rng(1).random((batches, batch, length)) < 0.8
        return tokens[..., :-1].copy(), tokens[..., 1:].copy(), mask.astype(np.float32)

    return Model(
        step,
        (adam_shapes(tree), integers(batch, length), integers(batch, length), floats((batch, length))),
        state=lambda: adam_state(initial_values(tree)),
        data=data,
    )
