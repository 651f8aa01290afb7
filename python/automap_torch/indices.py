"""Indices, sorts, running sums and random numbers as HLO.

A gather or scatter of one index along a dimension is a comparison with an iota, which automap can split like any
elementwise operator. Others have the dimensions beside it as batches.
"""

import math

import torch

from .operators import DTYPES, cut, numbers, operator, window


# ---- gathers and scatters ----

def at_index(w, x, dimension, index):
    """Returns the element of x at which an index along one dimension points; it has size 1 in `index`."""
    places = w.iota(x.shape, dimension, index.dtype)
    index = w.broadcast(index, x.shape)
    return w.elementwise("compare", index.dtype, x.shape, places, index, attributes="direction=EQ", result=torch.bool)


def has_one(x, dimension, index):
    """Returns whether each row along a dimension of x has one index."""
    return all(size == (1 if d == dimension else x.shape[d]) for d, size in enumerate(index.shape))


def fitted(w, x, dimension, shape):
    """x cut to a shape in all dimensions but one."""
    for d, size in enumerate(shape):
        if d != dimension and x.shape[d] != size:
            x = cut(w, "slice", None, x, d, 0, size)
    return x


@operator("gather")
def gather(w, name, out, x, dimension, index, **_):
    rank = len(x.shape)
    dimension %= rank
    if has_one(x, dimension, index):
        chosen = w.select(at_index(w, x, dimension, index), x, 0, x.dtype, x.shape)
        return w.reduce(chosen, (dimension,), keep=True)
    x = fitted(w, x, dimension, index.shape)
    others = numbers(d for d in range(rank) if d != dimension)
    return w.write("gather", out.shape, out.dtype, [x, index],
                   f"offset_dims={{}}, collapsed_slice_dims={{{dimension}}}, start_index_map={{{dimension}}}, "
                   f"operand_batching_dims={others}, start_indices_batching_dims={others}, index_vector_dim={rank}, "
                   f"slice_sizes={numbers([1] * rank)}")


@operator("scatter", "scatter_add")
def scatter(w, name, out, x, dimension, index, value):
    rank, adds = len(x.shape), name == "scatter_add"
    dimension %= rank
    if not isinstance(value, torch.Tensor) and not hasattr(value, "name"):
        value = w.constant(value, x.dtype, index.shape)
    value = cut(w, name, None, value, dimension, 0, index.shape[dimension])
    value = fitted(w, value, dimension, index.shape)
    if has_one(x, dimension, index):
        added = w.elementwise("add", x.dtype, x.shape, x, value) if adds else value
        return w.select(at_index(w, x, dimension, index), added, x, x.dtype, x.shape)
    if any(x.shape[d] != index.shape[d] for d in range(rank) if d != dimension):
        raise NotImplementedError("a scatter into a part of a tensor")
    others = numbers(d for d in range(rank) if d != dimension)
    return w.write("scatter", out.shape, out.dtype, [x, index, value],
                   f"update_window_dims={{}}, inserted_window_dims={{{dimension}}}, "
                   f"scatter_dims_to_operand_dims={{{dimension}}}, input_batching_dims={others}, "
                   f"scatter_indices_batching_dims={others}, index_vector_dim={rank}, to_apply={change(w, x, adds)}")


def change(w, x, adds):
    """The operation of a scatter on an element."""
    if adds:
        return w.reduction("add", x.dtype)
    kind = DTYPES[x.dtype]
    return w.computation(f"assign_{kind}", [x.dtype] * 2, f"c = {kind}[] copy(b)")


class Indexed:
    """The dimensions of x that tensors of indices point into, and their places in the result as PyTorch has them: at
    the first of neighbouring dimensions, else first. `joined` has the indices as vectors in a last dimension, negative
    ones from the end."""

    def __init__(self, w, x, indices):
        if any(index is not None and index.dtype == torch.bool for index in indices):
            raise NotImplementedError("a mask as an index")
        self.dimensions = [d for d, index in enumerate(indices) if index is not None]
        self.shape = torch.broadcast_shapes(*(indices[d].shape for d in self.dimensions))
        rows = []
        for d in self.dimensions:
            index = w.broadcast(w.convert(indices[d], torch.int64), self.shape)
            is_negative = w.elementwise("compare", torch.int64, self.shape, index, 0, attributes="direction=LT",
                                        result=torch.bool)
            from_end = w.elementwise("add", torch.int64, self.shape, index, x.shape[d])
            index = w.select(is_negative, from_end, index, torch.int64, self.shape)
            rows.append(w.reshape(index, (*self.shape, 1)))
        self.joined = rows[0] if len(rows) == 1 else w.write("concatenate", (*self.shape, len(rows)), torch.int64, rows,
                                                             f"dimensions={{{len(self.shape)}}}")
        first, last = self.dimensions[0], self.dimensions[-1]
        at = first if last - first == len(self.dimensions) - 1 else 0
        others = [size for d, size in enumerate(x.shape) if d not in self.dimensions]
        self.result = (*others[:at], *self.shape, *others[at:])
        self.windows = [d for d in range(len(self.result)) if not at <= d < at + len(self.shape)]


@operator("index", "_unsafe_index")
def index_of(w, name, out, x, indices):
    """x[i, j, ...] of tensors of indices."""
    indexed = Indexed(w, x, indices)
    chosen = numbers(indexed.dimensions)
    sizes = [1 if d in indexed.dimensions else size for d, size in enumerate(x.shape)]
    return w.write("gather", out.shape, out.dtype, [x, indexed.joined],
                   f"offset_dims={numbers(indexed.windows)}, collapsed_slice_dims={chosen}, start_index_map={chosen}, "
                   f"index_vector_dim={len(indexed.shape)}, slice_sizes={numbers(sizes)}")


@operator("index_put", "_unsafe_index_put")
def index_put(w, name, out, x, indices, values, accumulate=False):
    """Elements or rows of a table, as the gradient of an embedding adds them."""
    indexed = Indexed(w, x, indices)
    chosen = numbers(indexed.dimensions)
    return w.write("scatter", out.shape, out.dtype, [x, indexed.joined, w.broadcast(values, indexed.result)],
                   f"update_window_dims={numbers(indexed.windows)}, inserted_window_dims={chosen}, "
                   f"scatter_dims_to_operand_dims={chosen}, index_vector_dim={len(indexed.shape)}, "
                   f"to_apply={change(w, x, accumulate)}")


# ---- orders ----

def first_place(w, x, dimension, least):
    """The largest or least elements along a dimension, and the first places that have them."""
    opcode = "minimum" if least else "maximum"
    best = w.reduce(x, (dimension,), opcode, keep=True)
    is_best = w.elementwise("compare", x.dtype, x.shape, x, best, attributes="direction=EQ", result=torch.bool)
    places = w.iota(x.shape, dimension, torch.int64)
    found = w.select(is_best, places, x.shape[dimension], torch.int64, x.shape)
    return best, w.reduce(found, (dimension,), "minimum", keep=True)


@operator("max", "min")
def largest(w, name, out, x, other=None, keep=False):
    """max(x), max(x, y), or (values, indices) of max(x, dimension)."""
    if hasattr(other, "name"):
        return w.elementwise(f"{name}imum", out.dtype, out.shape, x, other)
    if other is None:
        return w.reduce(x, (), f"{name}imum")
    found = first_place(w, x, other % len(x.shape), name == "min")
    return [w.reshape(value, part.shape) for value, part in zip(found, out)]


@operator("argmax", "argmin")
def place_of_largest(w, name, out, x, dimension=None, keep=False):
    if dimension is None:
        x, dimension = w.reshape(x, (math.prod(x.shape),)), 0
    return w.reshape(first_place(w, x, dimension % len(x.shape), name == "argmin")[1], out.shape)


def sorted_with_places(w, x, dimension, descending):
    """x in order along a dimension, and the places of its elements before."""
    w.count += 1
    name, kind, dtype = f"v{w.count}", DTYPES[x.dtype], x.dtype
    direction = "GT" if descending else "LT"
    orders = w.computation(f"{direction.lower()}_{kind}_places", [dtype, dtype, torch.int64, torch.int64],
                           f"e = pred[] compare(a, b), direction={direction}")
    places = w.iota(x.shape, dimension, torch.int64)
    shapes = w.shape(x.shape, dtype), w.shape(x.shape, torch.int64)
    w.lines.append(f"  {name} = ({', '.join(shapes)}) sort({x.name}, {places.name}), dimensions={{{dimension}}}, "
                   f"is_stable=true, to_apply={orders}{w.metadata}")
    return [w.write("get-tuple-element", x.shape, kind, name, f"index={index}")
            for index, kind in enumerate((dtype, torch.int64))]


@operator("sort")
def sort(w, name, out, x, dimension=-1, descending=False, stable=None):
    return sorted_with_places(w, x, dimension % len(x.shape), descending)


@operator("topk")
def top(w, name, out, x, count, dimension=-1, largest=True, sorted=True):
    dimension %= len(x.shape)
    found = sorted_with_places(w, x, dimension, largest)
    return [cut(w, name, None, value, dimension, 0, count) for value in found]


@operator("cumsum", "cumprod")
def running(w, name, out, x, dimension, **_):
    """Sums or products over windows that end at each element."""
    if not x.shape:
        return w.convert(x, out.dtype)
    dimension, size = dimension % len(x.shape), x.shape[dimension]
    sizes = [size if d == dimension else 1 for d in range(len(x.shape))]
    text = window(sizes, [1] * len(sizes), [(k - 1, 0) for k in sizes])
    opcode = "add" if name == "cumsum" else "multiply"
    initial = w.constant(w.neutral(opcode, out.dtype), out.dtype)
    return w.write("reduce-window", out.shape, out.dtype, [w.convert(x, out.dtype), initial],
                   f"{text}, to_apply={w.reduction(opcode, out.dtype)}")


# ---- random numbers ----

@operator("bernoulli")
def bernoulli(w, name, out, x, p, **_):
    """1 with probability p, else 0: dropout's mask."""
    bits = w.draw(out.shape)
    is_one = w.elementwise("compare", torch.uint32, out.shape, bits, min(int(p * 2**32), 2**32 - 1),
                           attributes="direction=LT", result=torch.bool)
    return w.convert(is_one, out.dtype)


@operator("rand", "rand_like")
def uniform(w, name, out, *_, **__):
    """Multiples of 2^-24 in [0, 1)."""
    bits = w.elementwise("shift-right-logical", torch.uint32, out.shape, w.draw(out.shape), 8)
    return w.elementwise("multiply", out.dtype, out.shape, bits, 2.0**-24)
