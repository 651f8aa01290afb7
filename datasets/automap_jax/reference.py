"""Trains a zoo model with JAX on one CPU device: the losses and the final state that a run by
automap is compared with.
"""

import json

import jax
import numpy as np

from .exporter import STATE_ROLES, named_arrays

EXACT_BELOW = 2.0**24


def check_exact(arrays):
    """Raises unless every array holds integers that f32 sums exactly."""
    for array in arrays:
        if np.any(array != np.round(array)) or np.any(np.abs(array) >= EXACT_BELOW):
            raise ValueError("a value is no integer below 2^24: f32 sums would depend on order")


def run(model, steps):
    """Returns (losses, final values of all arguments that are not data) after `steps` steps."""
    state = model.state()
    arguments = list(state) if isinstance(state, tuple) else [state]
    batches = model.data(model.batches)
    step = jax.jit(model.step)
    losses = []
    for number in range(steps):
        *outputs, loss = step(*arguments, *(array[number % model.batches] for array in batches))
        arguments = successors(arguments, outputs)
        losses.append(float(loss))
        if model.exact:
            check_exact([np.asarray(loss), *map(np.asarray, jax.tree.leaves(arguments))])
    return losses, arguments


def successors(arguments, outputs):
    """Each argument's new value: the output with the same keys; without one, it is a constant."""
    new = {jax.tree.structure(output): output for output in outputs}
    return [new.get(jax.tree.structure(argument), argument) for argument in arguments]


def write(model, document, directory, steps):
    """Writes losses.json and final_state.npz next to an exported model."""
    losses, state = run(model, steps)
    values = ",\n  ".join(repr(loss) for loss in losses)
    (directory / "losses.json").write_text(f'{{"steps": {steps}, "losses": [\n  {values}]}}\n')
    rows = [row for row in document["parameters"] if row["role"] in STATE_ROLES]
    np.savez_compressed(directory / "final_state.npz", **named_arrays(rows, state))
    return losses
