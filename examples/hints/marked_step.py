"""A JAX step with marks of two stages; the second splits a stack of layers.

    python3 examples/hints/marked_step.py FOLDER
    automap search FOLDER/model.hlo.pb --cluster nominal:4 -o plan.json
    automap run FOLDER/model.hlo.pb --plan plan.json --state FOLDER/state.npz --data FOLDER/data.npz

automap_jax is in datasets/.
"""

import sys

import automap_jax
import jax
import jax.numpy as jnp


def loss(params, x, y):
    with automap_jax.stage(0), automap_jax.replicate(2):
        x = jnp.tanh(x @ params["in"])
    with automap_jax.pin(stage=1, split=2):

        def layer(x, weights):
            return x + jnp.tanh(x @ weights["up"]) @ weights["down"], None

        x, _ = jax.lax.scan(jax.checkpoint(layer), x, params["layers"])
    with automap_jax.stage(1):
        return jnp.mean((x @ params["out"] - y) ** 2)


def step(params, x, y):
    value, gradients = jax.value_and_grad(loss)(params, x, y)
    return jax.tree.map(lambda weight, gradient: weight - 0.1 * gradient, params, gradients), value


def arguments():
    keys = iter(jax.random.split(jax.random.key(0), 6))
    shapes = {"in": (16, 32), "layers": {"up": (2, 32, 64), "down": (2, 64, 32)}, "out": (32, 8)}
    params = jax.tree.map(lambda shape: 0.1 * jax.random.normal(next(keys), shape), shapes,
                          is_leaf=lambda leaf: isinstance(leaf, tuple))  # fmt: skip
    return params, jax.random.normal(next(keys), (16, 16)), jax.random.normal(next(keys), (16, 8))


if __name__ == "__main__":
    automap_jax.export(step, arguments(), sys.argv[1])
