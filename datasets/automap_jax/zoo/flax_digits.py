"""A step as users of flax write it: a flax.linen module with batch normalization and dropout, a
TrainState, and AdamW of optax with clipping and a schedule. flax and optax are needed to export it only.
"""

import jax
import jax.numpy as jnp
import numpy as np

from .mlp import digits
from .model import Model, floats, integers

BATCH = 16
CLASSES = 10


def tiny():
    import optax
    from flax import linen
    from flax.training import train_state

    class Network(linen.Module):
        @linen.compact
        def __call__(self, x, train):
            x = x.reshape(-1, 8, 8, 1)
            for features in (8, 16):
                x = linen.Conv(features, (3, 3), strides=2, use_bias=False)(x)
                x = linen.relu(linen.BatchNorm(use_running_average=not train, momentum=0.9)(x))
            x = linen.relu(linen.Dense(32)(x.reshape(x.shape[0], -1)))
            x = linen.Dropout(0.25, deterministic=not train)(x)
            return linen.Dense(CLASSES)(x)

    class State(train_state.TrainState):
        batch_stats: dict
        key: jax.Array

    network = Network()
    schedule = optax.warmup_cosine_decay_schedule(0.0, 0.01, 5, 20)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule, weight_decay=0.01))

    def step(state, x, y):
        dropout = jax.random.fold_in(jax.random.wrap_key_data(state.key), state.step)

        def loss(params):
            variables = {"params": params, "batch_stats": state.batch_stats}
            scores, updated = network.apply(
                variables, x, train=True, mutable=["batch_stats"], rngs={"dropout": dropout}
            )
            return optax.softmax_cross_entropy_with_integer_labels(scores, y).mean(), updated

        (value, updated), gradients = jax.value_and_grad(loss, has_aux=True)(state.params)
        return state.apply_gradients(grads=gradients, batch_stats=updated["batch_stats"]), value

    def state():
        variables = network.init(jax.random.key(0), jnp.zeros((1, 64)), train=False)
        made = State.create(
            apply_fn=network.apply,
            tx=optimizer,
            params=variables["params"],
            batch_stats=variables["batch_stats"],
            key=np.array([1, 2], np.uint32),
        )
        return jax.tree.map(np.asarray, made)

    structs = jax.tree.map(lambda value: jax.ShapeDtypeStruct(value.shape, value.dtype), state())
    return Model(
        step,
        (structs, floats((BATCH, 64)), integers(BATCH)),
        state=state,
        data=lambda batches: digits("train", BATCH, batches),
    )
