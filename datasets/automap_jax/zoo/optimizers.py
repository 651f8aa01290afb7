"""SGD and Adam on trees. A state is {"params": ...} for SGD and {"params", "mean", "variance",
"count"} for Adam; an update returns the new state.
"""

import jax
import jax.numpy as jnp
import numpy as np

from .model import floats, integers


def sgd_shapes(shapes):
    """ShapeDtypeStructs of the state of SGD for a tree of parameter shapes."""
    return {"params": floats(shapes)}


def sgd_state(params):
    return {"params": params}


def sgd(state, gradients, rate):
    """w <- w - rate g."""
    params = jax.tree.map(lambda w, g: w - rate * g, state["params"], gradients)
    return {"params": params}


def adam_shapes(shapes):
    """ShapeDtypeStructs of the state of Adam for a tree of parameter shapes."""
    return {name: floats(shapes) for name in ("params", "mean", "variance")} | {"count": integers()}


def adam_state(params):
    zeros = jax.tree.map(np.zeros_like, params)
    return {"params": params, "mean": zeros, "variance": zeros, "count": np.zeros((), np.int32)}


def adam(state, gradients, rate, decay_1=0.9, decay_2=0.999, epsilon=1e-6):
    """Kingma and Ba 2015, algorithm 1 with the bias corrections folded into the rate."""
    count = state["count"] + 1
    step = count.astype(jnp.float32)
    mean = jax.tree.map(lambda m, g: decay_1 * m + (1 - decay_1) * g, state["mean"], gradients)
    variance = jax.tree.map(
        lambda v, g: decay_2 * v + (1 - decay_2) * g * g, state["variance"], gradients
    )
    rate = rate * jnp.sqrt(1 - decay_2**step) / (1 - decay_1**step)
    params = jax.tree.map(
        lambda w, m, v: w - rate * m / (jnp.sqrt(v) + epsilon), state["params"], mean, variance
    )
    return {"params": params, "mean": mean, "variance": variance, "count": count}
