"""Steps with one array for each layer of a stacked parameter, as the plans of `search --layers split` have them.

    layers = Layers(document["parameters"], leaves, number of outputs)
    closed = layers.split(jax.make_jaxpr(step)(*arguments))   # takes and gives the layers of stacks
    new = layers.joined(run(layers.arrays(leaves)))           # stacked again

The jaxpr is interpreted: a stack [layers, ...] is a list of its layers. Scans over stacks are unrolled, operators on
stacks become operators on layers. Operators without a rule here take the stack as one array, so the results are those
of the step, except for the order of sums over layers.
"""

import functools

import jax
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from .step_graph import CALLS

ELEMENTWISE = {"abs", "acos", "acosh", "add", "add_any", "and", "asin", "asinh", "atan", "atan2",
               "atanh", "cbrt", "ceil", "clamp", "convert_element_type", "copy", "copy_p", "cos",
               "cosh", "digamma", "div", "eq", "erf", "erf_inv", "erfc", "exp", "exp2", "expm1",
               "floor", "ge", "gt", "integer_pow", "is_finite", "le", "lgamma", "log", "log1p",
               "logistic", "lt", "max", "min", "mul", "name", "ne", "neg", "nextafter", "not", "or",
               "pow", "reduce_precision", "rem", "round", "rsqrt", "select_n", "shift_left",
               "shift_right_arithmetic", "shift_right_logical", "sign", "sin", "sinh", "sqrt", "square",
               "stop_gradient", "sub", "tan", "tanh", "xor"}  # fmt: skip
# How the reductions of the layers of a stack are joined.
JOINS = {"reduce_sum": lax.add, "reduce_max": lax.max, "reduce_min": lax.min, "reduce_prod": lax.mul,
         "reduce_and": lax.bitwise_and, "reduce_or": lax.bitwise_or, "reduce_xor": lax.bitwise_xor}


class LayerStack:
    """A stacked array [layers, ...] whose layers are on several stages. `numpy.asarray` and `jax.numpy.asarray`
    make one array of it, as functions of JAX need; `run` takes its layers without a copy."""

    def __init__(self, layers):
        self.layers = list(layers)
        self.shape = (len(self.layers), *np.shape(self.layers[0]))
        self.dtype = self.layers[0].dtype
        self.ndim = len(self.shape)
        self.size = int(np.prod(self.shape))

    def __len__(self):
        return len(self.layers)

    def __getitem__(self, index):
        return self.layers[index]

    def __array__(self, dtype=None, copy=None):
        return np.stack([np.asarray(layer) for layer in self.layers]).astype(dtype or self.dtype, copy=False)

    def __jax_array__(self):
        return jax.numpy.asarray(np.asarray(self))

    def __repr__(self):
        return f"LayerStack({self.dtype}{list(self.shape)})"


@jax.jit
def unstacked(array):
    return list(array)


@functools.cache
def stacking(sharding):
    """A function that stacks the layers of one mesh, each with this sharding."""
    whole = NamedSharding(sharding.mesh, PartitionSpec(None, *sharding.spec))
    return jax.jit(lambda layers: jax.numpy.stack(layers), out_shardings=whole)


def stacked(layers):
    """One array of layers on one mesh, else a LayerStack."""
    meshes = {getattr(getattr(layer, "sharding", None), "mesh", None) for layer in layers}
    return LayerStack(layers) if None in meshes or len(meshes) > 1 else stacking(layers[0].sharding)(layers)


class Layers:
    """Which leaves and outputs of a step are split.

    rows     those of the document, with numbers of the split leaves and outputs
    depths   of each leaf its number of layers, or 0
    """

    def __init__(self, rows, leaves, outputs):
        self.depths, self.output_depths = [0] * len(leaves), [0] * outputs
        for row in rows:
            if row.get("layer") is not None:
                self.depths[row["number"]] += 1
                if row["output"] is not None:
                    self.output_depths[row["output"]] += 1
        inputs, results = self.firsts(self.depths), self.firsts(self.output_depths)
        self.rows = []
        for row in rows:
            layer = row.get("layer") or 0
            output = None if row["output"] is None else results[row["output"]] + layer
            self.rows.append({**row, "number": inputs[row["number"]] + layer, "output": output})

    def firsts(self, depths):
        """The number of the first part of each array."""
        return np.cumsum([0, *(depth or 1 for depth in depths)]).tolist()

    def arrays(self, leaves, donates=False):
        """The leaves, with the layers of those that are split. With `donates` the stacks are deleted. RuntimeError if
        an earlier call has an array, which JAX would use without a check."""
        found = []
        for leaf, depth in zip(leaves, self.depths, strict=True):
            if isinstance(leaf, jax.Array) and leaf.is_deleted():
                raise RuntimeError("an array was donated to an earlier call: expected the results of that call")
            found += (unstacked(leaf) if isinstance(leaf, jax.Array) else list(leaf)) if depth else [leaf]
            if depth and donates and isinstance(leaf, jax.Array):
                leaf.delete()
        return found

    def joined(self, outputs):
        """The outputs of the step."""
        parts = iter(outputs)
        return [stacked([next(parts) for _ in range(depth)]) if depth else next(parts)
                for depth in self.output_depths]

    def split(self, closed):
        """A closed jaxpr that takes and gives the layers of stacks."""
        if not any(self.depths):
            return closed

        def function(*arrays):
            parts = iter(arrays)
            leaves = [Stack([next(parts) for _ in range(depth)]) if depth else next(parts) for depth in self.depths]
            results = interpret(closed.jaxpr, closed.consts, leaves)
            found = []
            for result, depth in zip(results, self.output_depths, strict=True):
                found += [layer_of(result, k) for k in range(depth)] if depth else [whole(result)]
            return found

        shapes = []
        for aval, depth in zip(closed.in_avals, self.depths, strict=True):
            one = jax.ShapeDtypeStruct(aval.shape[1:] if depth else aval.shape, aval.dtype, weak_type=aval.weak_type)
            shapes += [one] * (depth or 1)
        return jax.make_jaxpr(function)(*shapes)


# ---- values ----


class Stack:
    """An array [layers, ...] by its layers."""

    def __init__(self, layers):
        self.layers = list(layers)


class Filled:
    """An array all of whose elements are one scalar; layers of stacks of zeros, for instance."""

    def __init__(self, scalar, shape):
        self.scalar, self.shape, self.array = scalar, tuple(shape), None

    @property
    def is_zero(self):
        return is_known(self.scalar) and not np.any(self.scalar)


def filled(scalar, shape):
    """The scalar in all elements of an array of a shape, which may have no dimension."""
    return Filled(scalar, shape) if len(shape) > 0 else scalar


def is_known(value):
    return isinstance(value, (np.ndarray, np.generic, int, float, bool)) and np.ndim(value) == 0


def shape_of(value):
    if isinstance(value, Stack):
        return (len(value.layers), *shape_of(value.layers[0]))
    return value.shape if isinstance(value, Filled) else np.shape(value)


def whole(value):
    """The value as one array."""
    if isinstance(value, Filled):
        value.array = lax.broadcast(value.scalar, value.shape) if value.array is None else value.array
        return value.array
    return jax.numpy.stack(list(map(whole, value.layers))) if isinstance(value, Stack) else value


def layer_of(value, k):
    """Layer k of an array, as one array."""
    return whole(row_of(value, k))


def row_of(value, k):
    if isinstance(value, Stack):
        return value.layers[k]
    return filled(value.scalar, value.shape[1:]) if isinstance(value, Filled) else lax.index_in_dim(value, k, 0, False)


# ---- rules ----


def elementwise(primitive, params, inputs):
    count = next(len(value.layers) for value in inputs if isinstance(value, Stack))
    layers = []
    for k in range(count):
        rows = [row_of(value, k) if shape_of(value) else value for value in inputs]
        zeros = [isinstance(row, Filled) and row.is_zero for row in rows]
        if primitive.name in ("add_any", "add") and any(zeros):
            layers.append(rows[zeros.index(True) - 1])
        else:
            layers.append(bind(primitive, params, [whole(row) for row in rows])[0])
    return Stack(layers)


def reduced(primitive, params, stack):
    """A reduction over other dimensions of each layer, and over the layers if dimension 0 is reduced."""
    axes = tuple(axis - 1 for axis in params["axes"] if axis > 0)
    layers = list(map(whole, stack.layers))
    if axes:
        layers = [bind(primitive, {**params, "axes": axes}, [layer])[0] for layer in layers]
    return functools.reduce(JOINS[primitive.name], layers) if 0 in params["axes"] else Stack(layers)


def sliced(stack, starts, sizes):
    """A part of a stack: some layers, and the same part of each."""
    shape, first = shape_of(stack), int(starts[0])
    rows = stack.layers[first : first + sizes[0]]
    if sizes[1:] == shape[1:]:
        return Stack(rows)
    return Stack(lax.dynamic_slice(whole(row), starts[1:], sizes[1:]) for row in rows)


def apply_rule(primitive, params, inputs):
    """The result of an operator on stacks or known indices, or None: it takes arrays."""
    name, first, shape = primitive.name, inputs[0], shape_of(inputs[0])
    is_stack = isinstance(first, Stack)
    if name == "broadcast_in_dim" and not shape and len(params["shape"]) > 0 and len(inputs) == 1:
        return Filled(first, params["shape"])
    if name == "pad" and shape and shape[0] == 1 and not any(map(any, params["padding_config"][1:])):
        before, after, between = map(int, params["padding_config"][0])
        if before < 0 or after < 0 or between or before + after == 0:
            return None
        empty = filled(inputs[1], shape[1:])
        return Stack([empty] * before + [row_of(first, 0)] + [empty] * after)
    if name == "dynamic_update_slice" and is_known(inputs[2]) and shape_of(inputs[1])[1:] == shape[1:] and isinstance(
            first, (Stack, Filled)) and all(is_known(start) and start == 0 for start in inputs[3:]):
        rows, count = [row_of(first, k) for k in range(shape[0])], shape_of(inputs[1])[0]
        at = min(max(int(inputs[2]), 0), shape[0] - count)
        return Stack(rows[:at] + [row_of(inputs[1], k) for k in range(count)] + rows[at + count :])
    if name in ELEMENTWISE and any(isinstance(value, Stack) for value in inputs):
        return elementwise(primitive, params, inputs)
    if not is_stack:
        return None
    if name in JOINS:
        return reduced(primitive, params, first)
    if name == "slice" and params["strides"] is None:
        sizes = tuple(b - a for a, b in zip(params["start_indices"], params["limit_indices"], strict=True))
        return sliced(first, params["start_indices"], sizes)
    if name == "dynamic_slice" and is_known(inputs[1]):
        start = min(max(int(inputs[1]), 0), shape[0] - params["slice_sizes"][0])
        return sliced(first, [start, *inputs[2:]], params["slice_sizes"])
    if name == "squeeze" and 0 in params["dimensions"]:
        others = tuple(d - 1 for d in params["dimensions"] if d > 0)
        return lax.squeeze(layer_of(first, 0), others)
    each = layerwise(name, params, shape)
    return Stack(each(whole(layer)) for layer in first.layers) if each else None


def layerwise(name, params, shape):
    """An operator that moves the elements of each layer by themselves, as a function of a layer, or None."""
    if name == "squeeze":
        return lambda layer: lax.squeeze(layer, tuple(d - 1 for d in params["dimensions"]))
    if name == "transpose" and params["permutation"][0] == 0:
        return lambda layer: lax.transpose(layer, tuple(d - 1 for d in params["permutation"][1:]))
    if name == "reshape" and params["dimensions"] is None:
        sizes = params["new_sizes"]
        if sizes and sizes[0] == shape[0]:
            return lambda layer: lax.reshape(layer, sizes[1:])
        if shape[0] == 1 and sizes == shape[1:]:
            return None
    if name == "broadcast_in_dim" and params["broadcast_dimensions"][0] == 0 and params["shape"][0] == shape[0]:
        axes = tuple(d - 1 for d in params["broadcast_dimensions"][1:])
        return lambda layer: lax.broadcast_in_dim(layer, params["shape"][1:], axes)
    return None


# ---- interpretation ----


def bind(primitive, params, inputs):
    bound = primitive.get_bind_params(params)  # older versions of JAX: (functions, parameters)
    functions, params = bound if isinstance(bound, tuple) else ((), bound)
    results = primitive.bind(*functions, *inputs, **params)
    return results if primitive.multiple_results else [results]


def interpret(jaxpr, consts, inputs):
    """The results of a jaxpr on arrays and stacks."""
    values = dict(zip(jaxpr.constvars, consts)) | dict(zip(jaxpr.invars, inputs, strict=True))

    def read(atom):
        return atom.val if hasattr(atom, "val") else values[atom]

    for equation in jaxpr.eqns:
        results = interpret_one(equation, [read(atom) for atom in equation.invars])
        values.update(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def interpret_one(equation, inputs):
    primitive, params = equation.primitive, equation.params
    inner = params.get("call_jaxpr", params.get("jaxpr"))
    if primitive.name in CALLS and inner is not None:
        return interpret(getattr(inner, "jaxpr", inner), getattr(inner, "consts", ()), inputs)
    if primitive.name == "scan" and is_over_layers(params, inputs):
        return unrolled(params, inputs)
    if primitive.name == "optimization_barrier":
        return barrier(primitive, params, inputs)
    if inputs and all(map(is_known, inputs)) and not equation.outvars[0].aval.shape and len(equation.outvars) == 1:
        with jax.ensure_compile_time_eval():  # indices of layers
            return [np.asarray(bind(primitive, params, inputs)[0])]
    result = apply_rule(primitive, params, inputs) if inputs and not primitive.multiple_results else None
    return [result] if result is not None else bind(primitive, params, list(map(whole, inputs)))


def is_over_layers(params, inputs):
    """Returns whether a scan takes the layers of a stack, as one of its inputs or by their index."""
    consts, length = params["num_consts"], params["length"]
    rows = inputs[consts + params["num_carry"] :]
    if length > 1 and any(isinstance(value, Stack) for value in rows):
        return True
    body = params["jaxpr"].jaxpr
    taken = {id(equation.invars[0]) for equation in body.eqns if equation.primitive.name == "dynamic_slice"}
    return any(isinstance(value, Stack) and len(value.layers) == length and id(variable) in taken
               for value, variable in zip(inputs[:consts], body.invars))


def unrolled(params, inputs):
    """The carry of a scan after its last trip, and the stacks of the results of its trips."""
    consts, carries, length = params["num_consts"], params["num_carry"], params["length"]
    fixed, carry, rows = inputs[:consts], inputs[consts : consts + carries], inputs[consts + carries :]
    body, trips = params["jaxpr"], [None] * length
    for k in reversed(range(length)) if params["reverse"] else range(length):
        results = interpret(body.jaxpr, body.consts, [*fixed, *carry, *(row_of(value, k) for value in rows)])
        carry, trips[k] = results[:carries], results[carries:]
    return [*carry, *(Stack(layers) for layers in zip(*trips))]


def barrier(primitive, params, inputs):
    """A barrier of stacks is one of all their layers."""
    parts = [list(map(whole, value.layers)) if isinstance(value, Stack) else [whole(value)] for value in inputs]
    held = iter(bind(primitive, params, sum(parts, [])))
    found = [[next(held) for _ in part] for part in parts]
    return [Stack(part) if isinstance(value, Stack) else part[0] for part, value in zip(found, inputs, strict=True)]
