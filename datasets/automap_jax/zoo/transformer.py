"""GPT-2 (Radford et al. 2019) and BERT (Devlin et al. 2019), both trained by Adam: one stack of
layers, layer norm before each block or after it, causal or not. Query, key and value have weights
of their own, the table of the softmax is not tied to that of the input.
"""

import jax
import jax.numpy as jnp

from .layers import attention, cross_entropy, dense, layer_norm
from .model import Model, initial_values, integers, sequences
from .optimizers import adam, adam_shapes, adam_state


def shapes(layers, width, inner, vocabulary, length):
    def matrix(rows, columns):
        return {"kernel": (rows, columns), "bias": (columns,)}

    norm = {"scale": (width,), "bias": (width,)}
    layer = {
        "attention": {
            "query": matrix(width, width),
            "key": {"kernel": (width, width)},
            "value": matrix(width, width),
            "output": matrix(width, width),
        },
        "attention_norm": norm,
        "mlp_in": matrix(width, inner),
        "mlp_out": matrix(inner, width),
        "mlp_norm": norm,
    }
    return {
        "layers": [layer] * layers,
        "norm": norm,
        "position_table": (length, width),
        "softmax_table": (vocabulary, width),
        "token_table": (vocabulary, width),
    }


def mlp(x, p):
    return dense(jax.nn.gelu(dense(x, p["mlp_in"])), p["mlp_out"])


def gpt2_logits(params, tokens, heads):
    """Layer norm in front of each block and after the last; a token sees those before it."""
    x = params["token_table"][tokens] + params["position_table"]
    for p in params["layers"]:
        y = layer_norm(x, p["attention_norm"])
        x = x + attention(y, y, p["attention"], heads, causal=True)
        x = x + mlp(layer_norm(x, p["mlp_norm"]), p)
    return layer_norm(x, params["norm"]) @ params["softmax_table"].T


def bert_logits(params, tokens, heads):
    """Layer norm after the tables and after each residual; a token sees all others."""
    x = layer_norm(params["token_table"][tokens] + params["position_table"], params["norm"])
    for p in params["layers"]:
        x = layer_norm(x + attention(x, x, p["attention"], heads), p["attention_norm"])
        x = layer_norm(x + mlp(x, p), p["mlp_norm"])
    return x @ params["softmax_table"].T


def training_step(logits, heads):
    def loss(params, tokens, targets):
        return cross_entropy(logits(params, tokens, heads), targets)

    def step(state, tokens, targets):
        value, gradients = jax.value_and_grad(loss)(state["params"], tokens, targets)
        return adam(state, gradients, rate=0.001), value

    return step


def next_tokens(batches, batch, length, vocabulary):
    """Sequences and the same shifted by one: the token that follows each."""
    tokens = sequences(batches, batch, length + 1, vocabulary)
    return tokens[..., :-1], tokens[..., 1:]


def masked_tokens(batches, batch, length, vocabulary):
    """Sequences with every fifth token hidden as token 0, and the whole sequences."""
    tokens = sequences(batches, batch, length, vocabulary)
    hidden = tokens.copy()
    hidden[..., ::5] = 0
    return hidden, tokens


def model(logits, examples, layers, width, heads, inner, vocabulary, batch, length):
    tree = shapes(layers, width, inner, vocabulary, length)
    return Model(
        training_step(logits, heads),
        (adam_shapes(tree), integers(batch, length), integers(batch, length)),
        state=lambda: adam_state(initial_values(tree)),
        data=lambda batches: examples(batches, batch, length, vocabulary),
    )


def gpt2():
    return model(gpt2_logits, next_tokens, 12, 768, 12, 3072, 50257, batch=64, length=1024)


def gpt2_tiny():
    return model(gpt2_logits, next_tokens, 2, 32, 8, 64, 128, batch=16, length=16)


def bert48():
    return model(bert_logits, masked_tokens, 48, 1024, 16, 4096, 30522, batch=64, length=128)


def bert_large():
    """BERT-large, 16 sequences of 512 tokens, which one card can train."""
    return model(bert_logits, masked_tokens, 24, 1024, 16, 4096, 30522, batch=16, length=512)


def bert_tiny():
    return model(bert_logits, masked_tokens, 2, 32, 8, 64, 128, batch=16, length=16)


def gpt2_batch1():
    """One sequence: of a size that one host trains."""
    return model(gpt2_logits, next_tokens, 12, 768, 12, 3072, 50257, batch=1, length=1024)


def gpt2_batch8():
    return model(gpt2_logits, next_tokens, 12, 768, 12, 3072, 50257, batch=8, length=1024)


def gpt2_small():
    """Between gpt2_tiny and gpt2_batch1: a step of about a second on one processor."""
    return model(gpt2_logits, next_tokens, 4, 256, 8, 1024, 1024, batch=32, length=128)
