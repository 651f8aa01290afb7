"""M6 as Whale trains it (section 5.3): 24 + 24 layers under Adafactor, 10 billion parameters; and M6-MoE,
decoder layers whose MLPs are experts (M6-T: Yang et al. 2021), 100 billion parameters. The text gives
neither widths nor words: 3840 wide and 21,128 words have 10.1 billion parameters; 24 layers of 512
experts, 1024 wide, 4096 inside, have 103 billion. Tokens are dispatched within groups (Lepikhin et al. 2021).
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from . import t5
from .experts import by_mask
from .layers import attention, cross_entropy, layer_norm
from .model import Model, floats, initial_values, integers
from .optimizers import adam, adam_shapes, adam_state
from .transformer import next_tokens

WORDS = 21128  # of the Chinese BERT


def dense_model(layers, width, heads, words, batch, lengths, factored=128):
    """`factored` is the least size of a dimension whose second moments Adafactor factors."""
    import optax

    optimizer = optax.adafactor(0.001, min_dim_size_to_factor=factored)
    tree = t5.shapes(layers, width, heads, width // heads, 4 * width, words, None)

    def loss(params, inputs, shifted, targets):
        return cross_entropy(t5.logits(params, inputs, shifted, heads), targets)

    def step(state, inputs, shifted, targets):
        value, gradients = jax.value_and_grad(loss)(state["params"], inputs, shifted, targets)
        updates, inner = optimizer.update(gradients, state["optimizer"], state["params"])
        return {"params": jax.tree.map(jnp.add, state["params"], updates), "optimizer": inner}, value

    def state():
        params = initial_values(tree)
        return {"params": params, "optimizer": jax.tree.map(np.asarray, optimizer.init(params))}

    params = floats(tree)
    structs = {"params": params, "optimizer": jax.eval_shape(optimizer.init, params)}
    return Model(
        step,
        (structs, *(integers(batch, length) for length in (*lengths, lengths[1]))),
        state=state,
        data=lambda batches: t5.examples(batches, batch, lengths, words),
    )


def m6_10b(batch=280):
    return dense_model(24, 3840, 30, WORDS, batch, (128, 128))


def m6_tiny():
    return dense_model(1, 16, 4, 64, 8, (8, 8), factored=8)


def experts_model(layers, width, heads, inner, experts, words, batch, length, groups):
    """`groups` parts of the batch have slots of their own in each expert, as in Whale's published example."""

    def stacked(*shape):
        return {"kernel": (layers, *shape)}

    norm = {"scale": (layers, width), "bias": (layers, width)}
    tree = {
        "layers": {
            "attention": {name: stacked(width, width) for name in ("key", "output", "query", "value")},
            "attention_norm": norm,
            "in": stacked(experts, width, inner),
            "norm": norm,
            "out": stacked(experts, inner, width),
            "router": stacked(width, experts),
        },
        "head_table": (words, width),
        "token_table": (words, width),
    }
    capacity = max(1, 2 * batch * length // (groups * experts))

    def loss(params, tokens, targets):
        def layer(x, p):
            y = layer_norm(x, p["attention_norm"])
            x = x + attention(y, y, p["attention"], heads, causal=True)
            grouped = layer_norm(x, p["norm"]).reshape(groups, -1, width)
            return x + jax.vmap(by_mask, (None, 0, None))(p, grouped, capacity).reshape(x.shape), None

        x, _ = lax.scan(layer, params["token_table"][tokens], params["layers"])
        return cross_entropy(x @ params["head_table"].T, targets)

    def step(state, tokens, targets):
        value, gradients = jax.value_and_grad(loss)(state["params"], tokens, targets)
        return adam(state, gradients, rate=0.001), value

    return Model(
        step,
        (adam_shapes(tree), integers(batch, length), integers(batch, length)),
        state=lambda: adam_state(initial_values(tree)),
        data=lambda batches: next_tokens(batches, batch, length, words),
    )


def m6_moe_100b(batch=128, groups=128):
    return experts_model(24, 1024, 16, 4096, 512, WORDS, batch, 128, groups)


def m6_moe_1t(batch=1920, groups=480):
    """960 experts of 21,248 inside: 1.0 trillion parameters (M6-T)."""
    return experts_model(24, 1024, 16, 21248, 960, WORDS, batch, 128, groups)


def m6_moe_tiny():
    return experts_model(2, 16, 4, 256, 8, 64, batch=8, length=8, groups=4)
