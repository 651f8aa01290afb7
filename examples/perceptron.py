"""The training step of docs/method.md as an HLO module: two layers, the mean squared error, gradient descent.

    python examples/perceptron.py perceptron.hlo.pb
    automap convert perceptron.hlo.pb perceptron.hlo.txt     # examples/perceptron.hlo.txt
"""

import sys

import jax
import jax.numpy as jnp

BATCH, WIDTH, HIDDEN, RATE = 64, 256, 1024, 0.1


def loss(state, x, y):
    hidden = jax.nn.relu(x @ state["w1"])
    return jnp.mean((hidden @ state["w2"] - y) ** 2)


def step(state, x, y):
    value, gradients = jax.value_and_grad(loss)(state, x, y)
    return jax.tree.map(lambda weight, gradient: weight - RATE * gradient, state, gradients), value


def main():
    shape = jax.ShapeDtypeStruct
    state = {"w1": shape((WIDTH, HIDDEN), jnp.float32), "w2": shape((HIDDEN, WIDTH), jnp.float32)}
    batch = shape((BATCH, WIDTH), jnp.float32)
    lowered = jax.jit(step, donate_argnums=0).lower(state, batch, batch)
    with open(sys.argv[1], "wb") as file:
        file.write(lowered.compiler_ir("hlo").as_serialized_hlo_module_proto())


if __name__ == "__main__":
    main()
