"""A decoder in the style of Llama (Touvron et al. 2023): rotary positions, grouped-query attention,
RMS norm and SwiGLU. The layers are stacked and run by a scan, or each has arrays of its own; they are
recomputed in the backward pass. Products are bf16, the parameters and Adam's state f32.
"""

import math

import jax
import jax.numpy as jnp
from jax import lax

from .layers import cross_entropy
from .model import Model, initial_values, integers
from .optimizers import adam, adam_shapes, adam_state
from .transformer import next_tokens


def shapes(layers, width, heads, key_heads, inner, vocabulary):
    size = width // heads
    return {
        "head_table": (vocabulary, width),
        "layers": {
            "attention_norm": {"scale": (layers, width)},
            "down": {"kernel": (layers, inner, width)},
            "gate": {"kernel": (layers, width, inner)},
            "key": {"kernel": (layers, width, key_heads * size)},
            "mlp_norm": {"scale": (layers, width)},
            "output": {"kernel": (layers, width, width)},
            "query": {"kernel": (layers, width, width)},
            "up": {"kernel": (layers, width, inner)},
            "value": {"kernel": (layers, width, key_heads * size)},
        },
        "norm": {"scale": (width,)},
        "token_table": (vocabulary, width),
    }


def unrolled_shapes(layers, *rest):
    """The same with a list of layers in place of stacked arrays."""
    tree = shapes(1, *rest)
    layer = jax.tree.map(lambda shape: shape[1:], tree["layers"], is_leaf=lambda node: isinstance(node, tuple))
    return tree | {"layers": [layer] * layers}


def rms_norm(x, scale):
    wide = x.astype(jnp.float32)
    return (wide * lax.rsqrt(jnp.square(wide).mean(-1, keepdims=True) + 1e-6) * scale).astype(x.dtype)


def rotate(x):
    """Rotary positions (Su et al. 2021) on [batch, time, heads, size]."""
    half = x.shape[-1] // 2
    frequency = 10000.0 ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angle = jnp.arange(x.shape[1], dtype=jnp.float32)[:, None, None] * frequency
    a, b = x[..., :half].astype(jnp.float32), x[..., half:].astype(jnp.float32)
    cosine, sine = jnp.cos(angle), jnp.sin(angle)
    return jnp.concatenate([a * cosine - b * sine, b * cosine + a * sine], -1).astype(x.dtype)


def attention(x, p, size):
    split = lambda name: (x @ p[name]["kernel"].astype(x.dtype)).reshape(*x.shape[:2], -1, size)
    query, key, value = rotate(split("query")), rotate(split("key")), split("value")
    query = query.reshape(*query.shape[:2], key.shape[2], -1, size)
    scores = jnp.einsum("btgqe,bsge->bgqts", query, key).astype(jnp.float32) / math.sqrt(size)
    causal = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    weights = jax.nn.softmax(jnp.where(causal, scores, -1e9)).astype(x.dtype)
    mixed = jnp.einsum("bgqts,bsge->btgqe", weights, value).reshape(x.shape)
    return mixed @ p["output"]["kernel"].astype(x.dtype)


def mlp(x, p):
    matrix = lambda name: p[name]["kernel"].astype(x.dtype)
    return (jax.nn.silu(x @ matrix("gate")) * (x @ matrix("up"))) @ matrix("down")


def logits(params, tokens, size):
    @jax.checkpoint
    def layer(x, p):
        x = x + attention(rms_norm(x, p["attention_norm"]["scale"]), p, size)
        return x + mlp(rms_norm(x, p["mlp_norm"]["scale"]), p), None

    x = params["token_table"][tokens].astype(jnp.bfloat16)
    if isinstance(params["layers"], list):
        for p in params["layers"]:
            x, _ = layer(x, p)
    else:
        x, _ = lax.scan(layer, x, params["layers"])
    x = rms_norm(x, params["norm"]["scale"])
    return (x @ params["head_table"].T.astype(x.dtype)).astype(jnp.float32)


def model(layers, width, heads, key_heads, inner, vocabulary, batch, length, unrolled=False):
    tree = (unrolled_shapes if unrolled else shapes)(layers, width, heads, key_heads, inner, vocabulary)

    def step(state, tokens, targets):
        loss = lambda params: cross_entropy(logits(params, tokens, width // heads), targets)
        value, gradients = jax.value_and_grad(loss)(state["params"])
        return adam(state, gradients, rate=0.003), value

    return Model(
        step,
        (adam_shapes(tree), integers(batch, length), integers(batch, length)),
        state=lambda: adam_state(initial_values(tree)),
        data=lambda batches: next_tokens(batches, batch, length, vocabulary),
    )


def full():
    return model(32, 4096, 32, 8, 14336, 128256, batch=16, length=2048)


def llama3_8b():
    """Llama 3 8B's shapes (Dubey et al. 2024), 8 sequences of 8192 tokens."""
    return model(32, 4096, 32, 8, 14336, 128256, batch=8, length=8192, unrolled=True)


def layers():
    """Four layers of Llama 3 8B and a table of 32,000 tokens, 2 sequences of 2048, which one card can train."""
    return model(4, 4096, 32, 8, 14336, 32000, batch=2, length=2048, unrolled=True)


def medium():
    return model(4, 256, 8, 4, 688, 1024, batch=4, length=128)


def tiny():
    return model(3, 32, 4, 2, 48, 64, batch=8, length=12)
