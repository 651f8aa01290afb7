"""GPT-2 trained in mixed precision (Micikevicius et al. 2018): f32 keeps the parameters and Adam's
state, bfloat16 holds the activations and both sides of every matrix product. Values that sum many terms or span many
magnitudes stay f32: tables (their gradient is a scatter), layer norms, softmax, loss.
"""

import jax
import jax.numpy as jnp

from .layers import attention, layer_norm
from .transformer import mlp, model, next_tokens


def narrow(tree):
    return jax.tree.map(lambda value: value.astype(jnp.bfloat16), tree)


def wide_norm(x, p):
    return narrow(layer_norm(x.astype(jnp.float32), p))


def logits(params, tokens, heads):
    """transformer.gpt2_logits with casts; the logits themselves are a product in bfloat16."""
    x = narrow(params["token_table"][tokens] + params["position_table"])
    for p in params["layers"]:
        y = wide_norm(x, p["attention_norm"])
        x = x + attention(y, y, narrow(p["attention"]), heads, causal=True)
        x = x + mlp(wide_norm(x, p["mlp_norm"]), narrow({"mlp_in": p["mlp_in"], "mlp_out": p["mlp_out"]}))
    x = wide_norm(x, params["norm"])
    return (x @ narrow(params["softmax_table"]).T).astype(jnp.float32)


def full():
    return model(logits, next_tokens, 12, 768, 12, 3072, 50257, batch=64, length=1024)


def batch8():
    return model(logits, next_tokens, 12, 768, 12, 3072, 50257, batch=8, length=1024)


def tiny():
    return model(logits, next_tokens, 2, 32, 8, 64, 128, batch=16, length=16)
