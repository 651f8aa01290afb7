"""The layers that the models share, on dictionaries of arrays."""

import math

import jax
import jax.numpy as jnp


def dense(x, p):
    return x @ p["kernel"] + p["bias"]


def layer_norm(x, p):
    """Ba et al. 2016, over the last dimension."""
    mean = x.mean(axis=-1, keepdims=True)
    variance = jnp.square(x - mean).mean(axis=-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + 1e-6) * p["scale"] + p["bias"]


def attention(x, memory, p, heads, causal=False):
    """Multi-head attention of x [b,t,d] to memory [b,s,d]; kernels [d, heads*e] and [heads*e, d].

    Biases are optional per projection. (One of the keys adds the same to all scores of a query
    and cancels in the softmax, so no model here has it.)
    """

    def project(source, name):
        y = source @ p[name]["kernel"]
        if "bias" in p[name]:
            y = y + p[name]["bias"]
        return y

    def split(y):
        return y.reshape(*y.shape[:2], heads, -1)

    query = split(project(x, "query"))
    key = split(project(memory, "key"))
    value = split(project(memory, "value"))
    scores = jnp.einsum("bthe,bshe->bhts", query, key) / math.sqrt(query.shape[-1])
    if causal:
        rows = jax.lax.broadcasted_iota(jnp.int32, scores.shape[-2:], 0)
        columns = jax.lax.broadcasted_iota(jnp.int32, scores.shape[-2:], 1)
        scores = jnp.where(rows >= columns, scores, -1e9)
    mixed = jnp.einsum("bhts,bshe->bthe", jax.nn.softmax(scores.astype(jnp.float32)).astype(x.dtype), value)
    return project(mixed.reshape(*x.shape[:2], -1), "output")


def cross_entropy(logits, labels):
    """Mean of -log softmax(logits) at the labels, over all leading dimensions."""
    log_probability = jax.nn.log_softmax(logits)
    return -jnp.take_along_axis(log_probability, labels[..., None], axis=-1).mean()
