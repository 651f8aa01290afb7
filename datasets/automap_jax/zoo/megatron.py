"""GPT as Megatron-LM trains it (Shoeybi et al. 2019, Narayanan et al. 2021): products and activations
in half precision, parameters and Adam's state f32, every layer recomputed in the backward pass.
The layers are stacked and run by a scan, so that a module of any depth is small; tables are not tied.
"""

import math

import jax
import jax.numpy as jnp
from jax import lax

from .layers import cross_entropy, layer_norm
from .model import Model, initial_values, integers
from .optimizers import adam, adam_shapes, adam_state
from .transformer import next_tokens


def shapes(layers, width, vocabulary, length):
    norm = {"scale": (layers, width), "bias": (layers, width)}

    def matrix(rows, columns):
        return {"kernel": (layers, rows, columns), "bias": (layers, columns)}

    return {
        "layers": {
            "attention_norm": norm,
            "key": matrix(width, width),
            "mlp_in": matrix(width, 4 * width),
            "mlp_norm": norm,
            "mlp_out": matrix(4 * width, width),
            "output": matrix(width, width),
            "query": matrix(width, width),
            "value": matrix(width, width),
        },
        "norm": {"scale": (width,), "bias": (width,)},
        "position_table": (length, width),
        "softmax_table": (vocabulary, width),
        "token_table": (vocabulary, width),
    }


def logits(params, tokens, heads, half):
    def dense(x, p):
        return x @ p["kernel"].astype(half) + p["bias"].astype(half)

    def norm(x, p):
        return layer_norm(x.astype(jnp.float32), p).astype(half)

    def attention(x, p):
        split = lambda name: dense(x, p[name]).reshape(*x.shape[:2], heads, -1)
        query, key, value = split("query"), split("key"), split("value")
        scores = jnp.einsum("bthe,bshe->bhts", query, key).astype(jnp.float32) / math.sqrt(query.shape[-1])
        causal = jnp.tril(jnp.ones(scores.shape[-2:], bool))
        weights = jax.nn.softmax(jnp.where(causal, scores, -1e9)).astype(half)
        return dense(jnp.einsum("bhts,bshe->bthe", weights, value).reshape(x.shape), p["output"])

    @jax.checkpoint
    def layer(x, p):
        x = x + attention(norm(x, p["attention_norm"]), p)
        return x + dense(jax.nn.gelu(dense(norm(x, p["mlp_norm"]), p["mlp_in"])), p["mlp_out"]), None

    x = (params["token_table"][tokens] + params["position_table"]).astype(half)
    x, _ = lax.scan(layer, x, params["layers"])
    x = norm(x, params["norm"])
    return (x @ params["softmax_table"].T.astype(half)).astype(jnp.float32)


def model(layers, width, heads, vocabulary, batch, length, half=jnp.bfloat16):
    tree = shapes(layers, width, vocabulary, length)

    def step(state, tokens, targets):
        loss = lambda params: cross_entropy(logits(params, tokens, heads, half), targets)
        value, gradients = jax.value_and_grad(loss)(state["params"])
        return adam(state, gradients, rate=0.001), value

    return Model(
        step,
        (adam_shapes(tree), integers(batch, length), integers(batch, length)),
        state=lambda: adam_state(initial_values(tree)),
        data=lambda batches: next_tokens(batches, batch, length, vocabulary),
    )
