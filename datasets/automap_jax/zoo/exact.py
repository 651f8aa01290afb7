"""Two modules whose every value is an integer below 2^24, so that f32 sums are exact in any order
and a partitioned run must equal the run on one device bit for bit; and one whose two states of
equal shape come back in swapped order.
"""

import jax
import jax.numpy as jnp
import numpy as np

from .model import Model, floats, integers
from .optimizers import sgd, sgd_shapes, sgd_state


def whole(generator, low, high, shape):
    """Integers of [low, high] as f32."""
    return generator.integers(low, high + 1, shape).astype(np.float32)


def sum_of_distances(prediction, target):
    """Sum of |prediction - target|, whose gradient is -1, 0 or 1."""
    return jnp.sum(jax.nn.relu(prediction - target) + jax.nn.relu(target - prediction))


def linear_step(state, mix, x, y):
    """Two linear layers with relu beside one without. The second layer, `mix`, is a constant: no
    product of trained weights occurs, so that values grow by at most a fixed sum per step."""

    def loss(params):
        hidden = jax.nn.relu(x @ params["first"] + params["bias"])
        return sum_of_distances(hidden @ mix + x @ params["direct"], y)

    value, gradients = jax.value_and_grad(loss)(state["params"])
    return sgd(state, gradients, rate=2.0), value


def linear():
    shapes = {"first": (16, 32), "bias": (32,), "direct": (16, 8)}

    def state():
        generator = np.random.default_rng(0)
        values = {name: whole(generator, -64, 64, shape) for name, shape in shapes.items()}
        return sgd_state(values), whole(generator, -1, 1, (32, 8))

    def data(batches):
        generator = np.random.default_rng(1)
        x = whole(generator, -2, 2, (batches, 16, 16))
        return x, whole(generator, -9999, 9999, (batches, 16, 8))

    return Model(
        linear_step,
        (sgd_shapes(shapes), floats((32, 8)), floats((16, 16)), floats((16, 8))),
        state=state,
        data=data,
        constants=(1,),
        exact=True,
    )


def gather_step(state, tokens, labels, y):
    """Rows of a table by token, one entry of each by label; the gradient is a scatter-add."""

    def loss(params):
        rows = jnp.take(params["table"], tokens, axis=0)
        picked = jnp.take_along_axis(rows, labels[..., None], axis=-1)[..., 0]
        return sum_of_distances(rows, y) + jnp.sum(picked)

    value, gradients = jax.value_and_grad(loss)(state["params"])
    return sgd(state, gradients, rate=8.0), value


def gather():
    shapes = {"table": (32, 16)}

    def state():
        return sgd_state({"table": whole(np.random.default_rng(0), -999, 999, (32, 16))})

    def data(batches):
        generator = np.random.default_rng(1)
        tokens = generator.integers(0, 32, (batches, 16, 8)).astype(np.int32)
        labels = generator.integers(0, 16, (batches, 16, 8)).astype(np.int32)
        return tokens, labels, whole(generator, -999, 999, (batches, 16, 8, 16))

    return Model(
        gather_step,
        (sgd_shapes(shapes), integers(16, 8), integers(16, 8), floats((16, 8, 16))),
        state=state,
        data=data,
        exact=True,
    )


def swapped_step(first, second, x):
    """Takes (first, second) and hands back (second, first): XLA's aliases, which go by shape,
    cross them, the data flow does not."""

    def loss(first, second):
        return jnp.mean(jnp.square(x @ first["kernel"] @ second["weight"] - x))

    value, (d_first, d_second) = jax.value_and_grad(loss, (0, 1))(first, second)
    new_first = {"kernel": first["kernel"] - 0.1 * d_first["kernel"]}
    new_second = {"weight": second["weight"] - 0.1 * d_second["weight"]}
    return new_second, new_first, value


def swapped():
    def state():
        generator = np.random.default_rng(0)
        first, second = (whole(generator, -4, 4, (16, 16)) / 16 for _ in range(2))
        return {"kernel": first}, {"weight": second}

    return Model(
        swapped_step,
        ({"kernel": floats((16, 16))}, {"weight": floats((16, 16))}, floats((16, 16))),
        state=state,
        data=lambda batches: (whole(np.random.default_rng(1), -8, 8, (batches, 16, 16)) / 8,),
    )
