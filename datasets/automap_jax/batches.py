"""Which data of a step micro-batches cut, and along which dimension."""

import jax
import numpy as np


def smallest_factor(number):
    return next((k for k in range(2, number + 1) if number % k == 0), 1)


def batch_dimensions(document, leaves):
    """Finds the data that micro-batches cut. Returns (choices, the number of examples). A choice is {number: dimension
    of the examples}; the first one with which the step can be traced counts. A plan with the number of examples names
    all data. For other plans, the second choice adds other data of as many rows, such as labels that only index
    results."""
    rows = [row for row in document["parameters"] if row["role"] == "data" and np.ndim(leaves[row["number"]]) > 0]
    axes = {row["number"]: row["batch_dimension"] for row in rows if row.get("batch_dimension") is not None}
    if document.get("examples"):
        return [axes], document["examples"]
    named = [axes] if axes or not rows else []
    # Files of earlier versions and steps without a batch name none.
    size = next((np.shape(leaves[row["number"]])[axes.get(row["number"], 0)] for row in rows
                 if not axes or row["number"] in axes), 1)
    first = {row["number"]: 0 for row in rows if np.shape(leaves[row["number"]])[0] == size}
    return [*named, {**first, **axes}], size


def on_host(leaf):
    """Data as a NumPy array; random keys, which have none, stay."""
    is_key = jax.dtypes.issubdtype(getattr(leaf, "dtype", None), jax.dtypes.prng_key)
    return leaf if is_key else np.asarray(leaf)


def rows_of(array, axis, rows):
    """The part of an array at `rows`, a slice, of the dimension `axis`."""
    return array[(*[slice(None)] * axis, rows)]


class DataSlice:
    """Data on the host, placed on the mesh of each part that uses it."""

    def __init__(self, run, array, spec):
        self.run, self.array, self.spec = run, array, spec
        self.shape = array.shape

    def on(self, part):
        return jax.device_put(self.array, self.run.sharding(part, self.spec, self.array.shape))
