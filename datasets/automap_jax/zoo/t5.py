"""The T5 shapes of the Auto-MAP paper (Wang et al. 2020): encoder and decoder of 6 or 24 layers.

Per encoder layer 12 variables: query, key, value and output of the attention, two layer norms, and
the two kernels and biases of the MLP; per decoder layer six more, for the attention to the encoder
and its norm. Two final norms, and one table each for the encoder's input, the decoder's input and
the softmax. A learned table of positions is optional.
"""

import jax
import jax.numpy as jnp

from .layers import attention, cross_entropy, dense, layer_norm
from .model import Model, initial_values, integers, sequences
from .optimizers import adam, adam_shapes, adam_state, sgd, sgd_shapes, sgd_state


def shapes(layers, width, heads, head_width, inner, vocabulary, positions):
    """`positions` is the length of the position table, or None for none."""
    norm = {"scale": (width,), "bias": (width,)}
    projection = {"kernel": (width, heads * head_width)}
    attend = {
        "query": projection,
        "key": projection,
        "value": projection,
        "output": {"kernel": (heads * head_width, width)},
    }
    encoder = {
        "attention": attend,
        "attention_norm": norm,
        "mlp_in": {"kernel": (width, inner), "bias": (inner,)},
        "mlp_out": {"kernel": (inner, width), "bias": (width,)},
        "mlp_norm": norm,
    }
    decoder = encoder | {"cross_attention": attend, "cross_attention_norm": norm}
    tree = {
        "decoder": [decoder] * layers,
        "decoder_norm": norm,
        "decoder_table": (vocabulary, width),
        "encoder": [encoder] * layers,
        "encoder_norm": norm,
        "encoder_table": (vocabulary, width),
        "softmax_table": (vocabulary, width),
    }
    return tree | ({"position_table": (positions, width)} if positions else {})


def embed(params, name, tokens):
    x = jnp.take(params[name], tokens, axis=0)
    if "position_table" in params:
        x = x + params["position_table"][: tokens.shape[1]]
    return x


def mlp(x, p):
    return dense(jax.nn.relu(dense(x, p["mlp_in"])), p["mlp_out"])


def logits(params, inputs, shifted, heads):
    x = embed(params, "encoder_table", inputs)
    for p in params["encoder"]:
        y = layer_norm(x, p["attention_norm"])
        x = x + attention(y, y, p["attention"], heads)
        x = x + mlp(layer_norm(x, p["mlp_norm"]), p)
    memory = layer_norm(x, params["encoder_norm"])
    x = embed(params, "decoder_table", shifted)
    for p in params["decoder"]:
        y = layer_norm(x, p["attention_norm"])
        x = x + attention(y, y, p["attention"], heads, causal=True)
        y = layer_norm(x, p["cross_attention_norm"])
        x = x + attention(y, memory, p["cross_attention"], heads)
        x = x + mlp(layer_norm(x, p["mlp_norm"]), p)
    return layer_norm(x, params["decoder_norm"]) @ params["softmax_table"].T


def training_step(heads, update):
    def loss(params, inputs, shifted, targets):
        return cross_entropy(logits(params, inputs, shifted, heads), targets)

    def step(state, inputs, shifted, targets):
        value, gradients = jax.value_and_grad(loss)(state["params"], inputs, shifted, targets)
        return update(state, gradients, rate=0.001), value

    return step


def examples(batches, batch, lengths, vocabulary):
    """Sequences, and as targets their first tokens in reverse order, also shifted by one place."""
    inputs = sequences(batches, batch, lengths[0], vocabulary)
    targets = inputs[..., : lengths[1]][..., ::-1].copy()
    shifted = targets.copy()
    shifted[..., 1:], shifted[..., 0] = targets[..., :-1], 0
    return inputs, shifted, targets


def model(layers, width, heads, head_width, inner, vocabulary, optimizer="adam", positions=False,
          batch=64, lengths=(128, 64)):  # fmt: skip
    """`lengths` are those of the encoder's and of the decoder's sequences."""
    update, state_shapes, state = {
        "adam": (adam, adam_shapes, adam_state),
        "sgd": (sgd, sgd_shapes, sgd_state),
    }[optimizer]
    tree = shapes(
        layers, width, heads, head_width, inner, vocabulary, lengths[0] if positions else None
    )
    return Model(
        training_step(heads, update),
        (state_shapes(tree), *(integers(batch, length) for length in (*lengths, lengths[1]))),
        state=lambda: state(initial_values(tree)),
        data=lambda batches: examples(batches, batch, lengths, vocabulary),
    )


def paper_6():
    return model(6, 512, 8, 64, 2048, 32128)


def paper_24_3b():
    return model(24, 1024, 32, 128, 16384, 32100, positions=True)


def paper_24_11b():
    return model(24, 1024, 128, 128, 65536, 32100, optimizer="sgd")


def pipeline_6():
    """As paper_6, with sequences of one length: what Auto-MAP's pipelines of T5 are compared on."""
    return model(6, 512, 8, 64, 2048, 32128, lengths=(64, 64))


def pipeline_24_3b():
    return model(24, 1024, 32, 128, 16384, 32100, positions=True, lengths=(64, 64))


def pipeline_24_11b():
    return model(24, 1024, 128, 128, 65536, 32100, optimizer="sgd", lengths=(64, 64))


def tiny():
    return model(2, 32, 8, 4, 64, 128, batch=16, lengths=(16, 8))
