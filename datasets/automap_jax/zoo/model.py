"""A model of the zoo, with its initial values and examples.

Shapes are written as plain trees, {"kernel": (64, 10), "bias": (10,)}; everything else follows
from them, so that the largest models need no memory.
"""

import math
from dataclasses import dataclass
from typing import Callable

import jax
import ml_dtypes
import numpy as np


@dataclass(frozen=True)
class Model:
    """A training step with the data to export it, and, if it is small, to run it.

    step       step(state, data...) -> (new state, loss)
    arguments  ShapeDtypeStructs of its arguments, the state first
    state      () -> initial values of the state, or None for modules that are only planned
    data       (batches) -> data arguments with a leading dimension of `batches`, or None
    constants  positions of arguments that are not updated and not data
    steps      how many steps the reference run takes
    exact      every value of the reference run is an integer below 2^24
    """

    step: Callable
    arguments: tuple
    state: Callable | None = None
    data: Callable | None = None
    constants: tuple = ()
    batches: int = 4
    steps: int = 20
    exact: bool = False

    def is_small(self):
        """Returns whether its values are worth writing: less than 4 MB of state."""
        leaves = jax.tree.leaves(self.arguments)
        size = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
        return self.state is not None and size < 2**22


def is_shape(node):
    return isinstance(node, tuple)


def floats(shapes):
    """The tree of shapes as ShapeDtypeStructs of f32."""
    return jax.tree.map(lambda s: jax.ShapeDtypeStruct(s, np.float32), shapes, is_leaf=is_shape)


def integers(*shape):
    return jax.ShapeDtypeStruct(shape, np.int32)


def initial_values(shapes, seed=0):
    """Values for a tree of shapes: zeros for biases, ones for scales, else normal / sqrt(fan in).

    Tables [rows, width] are looked up or multiplied along their width, kernels [..., in, out]
    contract all but their last dimension. Values are rounded to bfloat16, which loses nothing
    that matters and halves the size of the compressed arrays.
    """
    generator = np.random.default_rng(seed)

    def value(path, shape):
        name = path[-1].key
        if name == "bias":
            return np.zeros(shape, np.float32)
        if name == "scale":
            return np.ones(shape, np.float32)
        fan_in = shape[-1] if name.endswith("table") else math.prod(shape[:-1])
        normal = generator.standard_normal(shape) / math.sqrt(fan_in)
        return normal.astype(ml_dtypes.bfloat16).astype(np.float32)

    return jax.tree_util.tree_map_with_path(value, shapes, is_leaf=is_shape)


def sequences(batches, batch, length, vocabulary, seed=0):
    """Token sequences [batches, batch, length] that can be learnt: counting on from a random token
    in steps of 1 to 3, modulo the vocabulary."""
    generator = np.random.default_rng(seed)
    first = generator.integers(0, vocabulary, (batches, batch, 1))
    stride = generator.integers(1, 4, (batches, batch, 1))
    return ((first + stride * np.arange(length)) % vocabulary).astype(np.int32)
