"""A mixture of experts (Shazeer et al. 2017; capacity and top-1 routing of Fedus et al. 2021): each
token goes to one of the experts, dispatched by products with a one-hot mask, or by sorting the
tokens by their expert.
"""

import jax
import jax.numpy as jnp

from .layers import cross_entropy, layer_norm
from .model import Model, initial_values, integers
from .optimizers import adam, adam_shapes, adam_state
from .transformer import next_tokens


def shapes(width, inner, experts, vocabulary):
    return {
        "head_table": (vocabulary, width),
        "in": {"kernel": (experts, width, inner)},
        "norm": {"scale": (width,), "bias": (width,)},
        "out": {"kernel": (experts, inner, width)},
        "router": {"kernel": (width, experts)},
        "token_table": (vocabulary, width),
    }


def run_experts(params, x):
    """x [experts, capacity, width], each slice by its own expert."""
    hidden = jax.nn.relu(jnp.einsum("ecd,edf->ecf", x, params["in"]["kernel"]))
    return jnp.einsum("ecf,efd->ecd", hidden, params["out"]["kernel"])


def route(params, x):
    probability = jax.nn.softmax(x @ params["router"]["kernel"])
    return jnp.argmax(probability, -1), probability.max(-1)


def by_mask(params, x, capacity):
    chosen, weight = route(params, x)
    mask = jax.nn.one_hot(chosen, params["router"]["kernel"].shape[1])
    place = (jnp.cumsum(mask, 0) - 1) * mask
    dispatch = mask[..., None] * jax.nn.one_hot(place.sum(-1).astype(jnp.int32), capacity)[:, None, :]
    y = run_experts(params, jnp.einsum("tec,td->ecd", dispatch, x))
    return jnp.einsum("tec,ecd->td", dispatch, y) * weight[:, None]


def by_order(params, x, capacity):
    chosen, weight = route(params, x)
    experts = params["router"]["kernel"].shape[1]
    order = jnp.argsort(chosen, stable=True)
    ordered = chosen[order]
    first = jnp.searchsorted(ordered, jnp.arange(experts))
    place = jnp.arange(x.shape[0]) - first[ordered]
    slots = jnp.zeros((experts, capacity, x.shape[1])).at[ordered, place].set(x[order], mode="drop")
    y = run_experts(params, slots).at[ordered, place].get(mode="fill", fill_value=0)
    return jnp.zeros_like(x).at[order].set(y) * weight[:, None]


def model(dispatch, width, inner, experts, vocabulary, batch, length):
    tree = shapes(width, inner, experts, vocabulary)
    capacity = 2 * batch * length // experts

    def loss(params, tokens, targets):
        x = params["token_table"][tokens]
        flat = layer_norm(x, params["norm"]).reshape(-1, width)
        x = x + dispatch(params, flat, capacity).reshape(x.shape)
        return cross_entropy(x @ params["head_table"].T, targets)

    def step(state, tokens, targets):
        value, gradients = jax.value_and_grad(loss)(state["params"], tokens, targets)
        return adam(state, gradients, rate=0.003), value

    return Model(
        step,
        (adam_shapes(tree), integers(batch, length), integers(batch, length)),
        state=lambda: adam_state(initial_values(tree)),
        data=lambda batches: next_tokens(batches, batch, length, vocabulary),
    )


def full():
    return model(by_mask, 1024, 4096, 64, 32000, batch=32, length=512)


def batch8():
    """16 experts and 4,096 tokens, which one card can train."""
    return model(by_mask, 1024, 4096, 16, 32000, batch=8, length=512)


def medium():
    return model(by_mask, 256, 1024, 8, 1024, batch=8, length=128)


def tiny():
    return model(by_mask, 16, 32, 4, 64, batch=8, length=8)


def sorted_full():
    return model(by_order, 1024, 4096, 64, 32000, batch=32, length=512)


def sorted_medium():
    return model(by_order, 256, 1024, 8, 1024, batch=8, length=128)


def sorted_tiny():
    return model(by_order, 16, 32, 4, 64, batch=8, length=8)
