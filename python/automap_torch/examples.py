"""The dimension of the examples in the tensors of a batch, and losses whose rows begin with the examples.

    graph = trace(loss_of, parameters, buffers, batch)     ATen operators of the loss, without running it
    dimensions = find_dimensions(graph, batch)             of each tensor, such as [1, 1] of sequences first
    places = Places(graph, dimensions, count)              of the examples in each value
    has_changed = put_rows_by_example(graph, places)       the same loss with other rows

Each value has a place of the examples: a dimension of it whose elements are [outer, examples, inner]. Layers of
PyTorch flatten [sequence, example, feature] into rows [sequence * example, feature], and no equal contiguous shard of
such rows has some of the examples alone (outer > 1). The changed loss has these rows in the order [example, sequence],
which products, norms and losses of rows allow. An operator that mixes rows gets them in the order of the model.

A dimension is one of examples if no operator before the loss mixes its elements, and none adds values that differ along
it, such as a table of positions.
"""

import contextlib
import inspect
import itertools
import math
import operator as python_operator

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves, tree_map

ATEN = torch.ops.aten
# Options of traces whose nodes have the lines of their source, where PyTorch has these.
LINES = {name: True for name in ("record_stack_traces",) if name in inspect.signature(make_fx).parameters}
MOST_CHOICES = 64
# Operators of one tensor that keep all dimensions as they are.
SAME = {"clone", "detach", "alias", "contiguous", "_to_copy", "lift_fresh_copy", "zeros_like", "ones_like",
        "full_like", "empty_like", "rand_like", "randn_like", "bernoulli", "native_dropout", "log_sigmoid_forward",
        "real", "imag", "_conj", "_conj_physical", "conj_physical", "resolve_conj", "resolve_neg", "_neg_view",
        "view_as_real"}
CONSTANTS = {"zeros", "ones", "full", "scalar_tensor", "new_zeros", "new_ones", "new_full", "empty", "new_empty"}
VIEWS = {"view", "_unsafe_view", "reshape"}
REDUCTIONS = {"sum", "mean", "amax", "amin", "prod", "any", "all", "var", "logsumexp", "argmax", "argmin", "max",
              "min", "std", "linalg_vector_norm", "norm"}
# They work along dimensions and keep all.
ALONG = {"_softmax", "_log_softmax", "_safe_softmax", "cumsum", "cumprod", "sort", "topk", "split", "split_with_sizes",
         "unsafe_split", "slice", "flip", "roll", "index_select", "_fft_r2c", "_fft_c2r", "_fft_c2c"}
# Orders of constants differ along their dimension.
ORDERED = {"cumsum", "cumprod", "sort", "topk", "index_select", "_fft_r2c", "_fft_c2r", "_fft_c2c"}
# Operators that make constants of constants.
UNIFORM = VIEWS | SAME | REDUCTIONS | (ALONG - ORDERED) | {
    "permute", "transpose", "t", "unsqueeze", "squeeze", "expand", "select", "unbind", "mm", "bmm"}
LOSSES = {"mse_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy", "soft_margin_loss", "l1_loss"}
IMAGES = {"convolution", "max_pool2d_with_indices", "max_pool3d_with_indices", "avg_pool1d", "avg_pool2d",
          "avg_pool3d", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "upsample_nearest1d", "upsample_nearest2d",
          "upsample_linear1d", "upsample_bilinear2d", "upsample_bicubic2d", "native_group_norm"}


def trace(loss_of, parameters, buffers, batch):
    """The graph of loss_of(parameters, buffers, batch), which gives the loss and the new buffers, on fake tensors."""
    shapes = FakeTensorMode(allow_non_fake_inputs=True)

    def fake(value):
        with shapes:
            return torch.empty(value.shape, dtype=value.dtype, device=value.device)

    arguments = tree_map(fake, (parameters, buffers, tuple(batch)))
    # Without a table, make_fx would write detach as an alias, which has a gradient.
    graph = make_fx(functionalize(loss_of), decomposition_table={}, tracing_mode="fake", **LINES)(*arguments)
    graph.graph.eliminate_dead_code()
    weights = dict(zip(graph.graph.find_nodes(op="placeholder"), parameters))
    for node in graph.graph.nodes:
        if node.target is ATEN.copy_.default and node.args[0] in weights:
            raise NotImplementedError(f"the model changes its parameter {weights[node.args[0]]} in its forward pass "
                                      "(expected a buffer)")
    return graph


class Place:
    """The examples in a value: dimension `d` has [outer, examples, inner]."""

    def __init__(self, d, outer=1):
        self.d, self.outer = d, outer

    def __eq__(self, other):
        return isinstance(other, Place) and (self.d, self.outer) == (other.d, other.outer)


class Mixed(Exception):
    """An operator has no place for the examples of its operands."""


class Differs(Mixed):
    """An operand without examples has other values for each example."""


def name_of(node):
    schema = getattr(node.target, "_schema", None)
    return schema.name.split("::")[1].rstrip("_") if schema else ""  # also of operators in place


def shape_of(node):
    value = node.meta.get("val")
    return tuple(value.shape) if isinstance(value, torch.Tensor) else None


def results_of(node):
    """The tensors of a node's result."""
    return [value for value in tree_leaves(node.meta.get("val")) if isinstance(value, torch.Tensor)]


def move(place, shape, new, count):
    """The place of `count` examples after a view of `shape` as `new`."""
    before = math.prod(shape[:place.d]) * place.outer
    after = math.prod(shape) // (before * count)
    for d, size in enumerate(new):
        major = math.prod(new[:d])
        outer = before // major if before % major == 0 else 0
        if outer and size % (outer * count) == 0 and size // (outer * count) * math.prod(new[d + 1:]) == after:
            return Place(d, outer)
    raise Mixed


class Places:
    """The place of the examples in each value of a graph. `even` has the dimensions along which values without examples
    are constant. Of values of several tensors it is that of each."""

    def __init__(self, graph, dimensions, count):
        self.count, self.found, self.even = count, {}, {}
        self.mixing, self.sums = [], set()  # operators that mix examples; sums over all of them, and values of sums
        self.differing = []  # operators with tables or constants of each example, which part of a batch may not have
        self.lost = set()  # values of the batch without a place
        inputs = graph.graph.find_nodes(op="placeholder")
        for node, d in zip(inputs[len(inputs) - len(dimensions):], dimensions):
            if d is not None:
                self.found[node] = Place(d)
        for node in graph.graph.nodes:
            if node.op == "call_function":
                self.enter(node)

    def take(self, graph, other, count):
        """Makes these the places of `graph`, whose operators are those of `other` on `count` examples."""
        own = dict(zip(other.graph.nodes, graph.graph.nodes, strict=True))
        self.found = {own[node]: place for node, place in self.found.items()}
        self.sums, self.count = {own[node] for node in self.sums}, count

    def enter(self, node):
        operands = [value for value in node.all_input_nodes if value in self.found]
        has_sum = not self.sums.isdisjoint(node.all_input_nodes)
        if not self.lost.isdisjoint(node.all_input_nodes):
            self.lost.add(node)
        if not operands:
            self.even[node] = self.even_dimensions(node)
            if has_sum:
                self.sums.add(node)
            return
        try:
            if has_sum:
                raise Mixed
            place = self.place_of(node)
        except Mixed as why:
            self.mixing.append(node)
            self.lost.add(node)
            self.differing += [node] if isinstance(why, Differs) else []
            return
        if place is None:
            self.sums.add(node)
        else:
            self.found[node] = place

    def of(self, value):
        return self.found.get(value) if isinstance(value, torch.fx.Node) else None

    def even_dimensions(self, node):
        """Dimensions along which a value without examples is constant."""
        name, results = name_of(node), results_of(node)
        if not results:
            return set()
        rank = results[0].ndim
        if name in CONSTANTS:
            return set(range(rank))
        operands = [value for value in node.all_input_nodes if results_of(value)]
        if not operands:
            return set()
        if node.target is python_operator.getitem:
            return self.even.get(operands[0], set())
        if name in ("mm", "addmm"):
            a = node.args[1 if name == "addmm" else 0]
            return {0} & self.even.get(a, set())
        if (name in UNIFORM or is_pointwise(node)) and all(
                self.is_even(value, -d) for value in operands for d in range(1, results_of(value)[0].ndim + 1)):
            return set(range(rank))
        if name in ALONG | SAME:
            changed = dimensions_along(node, rank) if name in ORDERED else set()
            return self.even.get(operands[0], set()) - changed
        if name == "index":
            return self.even_indexed(node, rank)
        if name == "embedding":
            return {d for d in range(rank - 1) if self.is_even(node.args[1], d - rank + 1)}
        if name == "cat":
            joined = (node.args[1] if len(node.args) > 1 else 0) % rank
            return {d for d in range(rank) if d != joined and all(self.is_even(value, d - rank) for value in operands)}
        if is_pointwise(node):
            return {d for d in range(rank) if all(self.is_even(value, d - rank) for value in operands)}
        return self.even_moved(node, name, operands[0])

    def even_indexed(self, node, rank):
        """Even dimensions of table[indices]. An index of an even dimension of the table takes equal elements."""
        table, indices = node.args
        if any(index is None or shape_of(index) is None or index.meta["val"].dtype == torch.bool for index in indices):
            return set()
        own = len(shape_of(table))
        taking = [index for at, index in enumerate(indices) if not self.is_even(table, at - own)]
        chosen = rank - (own - len(indices))  # dimensions of the indices, which are broadcast
        return {d for d in range(rank) if (all(self.is_even(index, d - chosen) for index in taking) if d < chosen
                                           else self.is_even(table, d - rank))}

    def even_moved(self, node, name, x):
        """Even dimensions after an operator that moves, adds, drops or views dimensions of x."""
        shape, new = shape_of(x), shape_of(node)
        if shape is None or new is None:
            return set()
        even, added = set(), len(new) - len(shape)
        if name in ("expand", "repeat"):
            even = {d for d in range(len(new)) if d < added or shape[d - added] == 1}
        for d in self.even.get(x, set()):
            if shape[d] == 1:
                continue
            with contextlib.suppress(Mixed):
                place = (move(Place(d), shape, new, shape[d]) if name in VIEWS
                         else self.rearranged(node, name, Place(d), shape))
                if place is not None and new[place.d] == shape[d]:
                    even.add(place.d)
        return even

    def is_even(self, value, d):
        """Returns whether a value is constant along dimension `d`, counted from the last one, which is negative."""
        shape = tuple(results_of(value)[0].shape)
        return len(shape) < -d or shape[d] == 1 or len(shape) + d in self.even.get(value, set())

    def common(self, node, operands, rank):
        """The place in the result of operands that are broadcast to `rank` dimensions."""
        places = [Place(place.d + rank - len(shape_of(value)), place.outer)
                  for value in operands if (place := self.of(value))]
        if any(place != places[0] for place in places):
            raise Mixed
        d = places[0].d - rank
        uneven = [value for value in operands if not (self.of(value) or self.is_even(value, d))]
        if uneven and self.lost.isdisjoint(uneven):
            raise Differs  # tables or constants of each place: these are no examples
        if uneven:
            raise Mixed
        return places[0]

    def place_of(self, node):
        name, arguments = name_of(node), list(node.args)
        x, place = next(((value, self.of(value)) for value in arguments if self.of(value)), (None, None))
        if node.target is python_operator.getitem:
            return place
        if name in ("cat", "stack"):
            return self.joined(node)
        if name == "index" and place is None and len(node.all_input_nodes) == 2:  # rows of a table
            at, index = next((at, index) for at, index in enumerate(arguments[1]) if index is not None)
            return Place(at + self.of(index).d, self.of(index).outer)
        if place is None:
            raise Mixed
        shape, rank = shape_of(x), len(shape_of(x))
        if is_pointwise(node) or name in LOSSES:
            operands = [value for value in node.all_input_nodes if shape_of(value) is not None]
            found = self.common(node, operands, max(len(shape_of(value)) for value in operands))
            return None if name in LOSSES and not shape_of(node) else found
        if name in SAME:
            return place
        if name in VIEWS:
            return move(place, shape, shape_of(node), self.count)
        if name in ("mm", "addmm", "bmm", "baddbmm"):
            return self.of_product(node, name)
        if name in REDUCTIONS:
            return self.reduced(node, place, rank)
        moved = self.rearranged(node, name, place, shape)
        if moved is not None:
            return moved
        return self.of_layer(node, x, place, rank)

    def joined(self, node):
        rank = len(shape_of(node))
        values = [value for value in node.args[0] if shape_of(value) != (0,) or rank == 1]  # PyTorch ignores others
        place = self.common(node, values, len(shape_of(values[0])))
        d = (node.args[1] if len(node.args) > 1 else 0) % rank
        if name_of(node) == "stack":
            return Place(place.d + (d <= place.d), place.outer)
        if d == place.d:
            raise Mixed
        return place

    def of_product(self, node, name):
        added = node.args[0] if name in ("addmm", "baddbmm") else None
        a, b = node.args[-2:] if added is None else node.args[1:3]
        left, right, batch = self.of(a), self.of(b), name in ("bmm", "baddbmm")
        place = left or right
        if batch and place.d == 0 and all(self.of(value) == place or (not self.of(value) and self.is_even(value, -3))
                                          for value in (a, b)):
            pass
        elif left and not right and left.d == (1 if batch else 0):
            place = left
        elif right and not left and right.d == (2 if batch else 1):
            place = right
        else:
            raise Mixed
        if added is not None:
            own, d = self.of(added), place.d - len(shape_of(node))
            if own and own != place or not own and not self.is_even(added, d):
                raise Mixed
        return place

    def reduced(self, node, place, rank):
        name, arguments = name_of(node), node.args
        if "dim" in node.kwargs:
            raise Mixed
        at = 2 if name in ("linalg_vector_norm", "norm") else 1
        dimensions = arguments[at] if len(arguments) > at else None
        dimensions = [dimensions] if isinstance(dimensions, int) else dimensions
        dimensions = {d % rank for d in dimensions} if dimensions else set(range(rank))
        if place.d in dimensions:
            if shape_of(node) == ():
                return None  # the loss
            raise Mixed
        keeps = len(results_of(node)[0].shape) == rank
        return place if keeps else Place(place.d - sum(d < place.d for d in dimensions), place.outer)

    def rearranged(self, node, name, place, shape):
        """The place after an operator that moves, adds, drops or cuts dimensions; None for others."""
        arguments, rank = node.args, len(shape)
        order = None
        if name == "permute":
            order = [d % rank for d in arguments[1]]
        elif name in ("transpose", "t"):
            order = list(range(rank))
            a, b = arguments[1:3] if name == "transpose" else (0, rank - 1)
            order[a], order[b] = order[b], order[a]
        if order is not None:
            return Place(order.index(place.d), place.outer)
        if name == "unsqueeze":
            d = arguments[1] % (rank + 1)
            return Place(place.d + (d <= place.d), place.outer)
        if name == "squeeze":
            chosen = arguments[1] if len(arguments) > 1 else range(rank)
            chosen = {d % rank for d in ([chosen] if isinstance(chosen, int) else chosen)}
            dropped = {d for d in chosen if shape[d] == 1}
            if place.d in dropped:
                raise Mixed
            return Place(place.d - sum(d < place.d for d in dropped), place.outer)
        if name == "expand":
            return Place(place.d + len(shape_of(node)) - rank, place.outer)
        if name == "view_as_complex" and place.d < rank - 1:
            return place
        if name in ("select", "unbind"):
            d = (arguments[1] if len(arguments) > 1 else 0) % rank
            if d == place.d:
                raise Mixed
            return Place(place.d - (d < place.d), place.outer)
        return None

    def of_layer(self, node, x, place, rank):
        name, arguments = name_of(node), node.args
        if name in ALONG:
            if place.d in dimensions_along(node, rank):
                raise Mixed
            return place
        if name in ("native_layer_norm", "_fused_rms_norm") and place.d < rank - len(arguments[1]):
            return place
        if name == "embedding" and self.of(arguments[1]) and not self.of(arguments[0]):
            return place
        if name == "gather" and self.of(arguments[0]) == self.of(arguments[2]) and arguments[1] % rank != place.d:
            return place
        if name == "scatter" and arguments[1] % rank != place.d:
            tensors = [value for value in arguments[2:] if isinstance(value, torch.fx.Node)]
            return self.common(node, [arguments[0], *tensors], rank)
        if name == "constant_pad_nd":
            at = rank - 1 - place.d
            if not any(arguments[1][2 * at:2 * at + 2]):
                return place
        if name in ("nll_loss_forward", "nll_loss2d_forward"):
            own = Place(0 if place.d == 0 else place.d - 1, place.outer)
            if place.d != 1 and x is arguments[0] and self.of(arguments[1]) == own:
                return None if arguments[3] else own
        if name in IMAGES and place == Place(0) and not any(map(self.of, arguments[1:])):
            return place
        raise Mixed


def dimensions_along(node, rank):
    """The dimensions along which an operator of ALONG works."""
    name = name_of(node)
    at = 2 if name in ("topk", "split", "split_with_sizes", "unsafe_split", "roll") else 1
    default = 0 if "split" in name or name == "slice" else -1
    d = node.args[at] if len(node.args) > at else node.kwargs.get("dim", default)
    return {k % rank for k in ([d] if isinstance(d, int) else d)}


def is_pointwise(node):
    return torch.Tag.pointwise in getattr(node.target, "tags", ())


def choices(batch):
    """Dimensions of equal size, at most one of each tensor: those of most tensors, and first dimensions, first."""
    shapes = [tuple(value.shape) for value in batch]
    sizes = dict.fromkeys(size for shape in shapes for size in shape if size > 1)
    found = []
    for size in sizes:
        rows = [[*(d for d, own in enumerate(shape) if own == size), None] for shape in shapes]
        found += [row for row in itertools.islice(itertools.product(*rows), MOST_CHOICES) if any(
            d is not None for d in row)]
    return sorted(found, key=lambda row: (row.count(None), max(d or 0 for d in row), sum(d or 0 for d in row)))


def find_dimensions(graph, batch):
    """The dimension of the examples in each tensor of a batch, None for tensors without examples. Where no choice keeps
    the examples apart, as with batch norms, it is 0 for all tensors with the most frequent first size."""
    for row in choices(batch)[:MOST_CHOICES]:
        count = next(value.shape[d] for value, d in zip(batch, row, strict=True) if d is not None)
        if not Places(graph, row, count).mixing:
            return list(row)
    sizes = [len(value) if value.ndim else 1 for value in batch]
    most = max(sizes, key=sizes.count)
    return [0 if size in (1, most) else None for size in sizes]


# ---- rows by example ----

def put_rows_by_example(graph, places):
    """Changes the graph so that dimensions with several outer elements have the examples first: [examples, outer,
    inner]. `places` are the graph's. Returns whether it has changed anything."""
    has_changed, count = False, places.count

    def call(function, *arguments):
        return graph.graph.call_function(function, arguments)

    def parts_of(shape, place):
        """Sizes with the dimension of the examples in parts, and the order that exchanges the first two parts."""
        d, order = place.d, list(range(len(shape) + 2))
        order[d], order[d + 1] = d + 1, d
        return [*shape[:d], place.outer, count, shape[d] // (place.outer * count), *shape[d + 1:]], order

    def spread(node):
        """The elements of a value in the order of the model, in any shape."""
        place = places.of(node)
        if place is None or place.outer == 1:
            return node
        sizes, order = parts_of(shape_of(node), place)
        sizes = [sizes[d] for d in order]
        return call(ATEN.permute.default, call(ATEN.reshape.default, node, sizes), order)

    def view(x, new, place):
        found = spread(x)
        if place.outer > 1:
            sizes, order = parts_of(new, place)
            found = call(ATEN.permute.default, call(ATEN.reshape.default, found, sizes), order)
        return call(ATEN.reshape.default, found, list(new))

    for node in list(graph.graph.nodes):
        before = [value for value in node.all_input_nodes if (own := places.of(value)) and own.outer > 1]
        after = places.of(node)
        with graph.graph.inserting_before(node):
            if name_of(node) in VIEWS and after is not None and (before or after.outer > 1):
                x, new = node.args[0], shape_of(node)
                if places.of(x) == after and shape_of(x)[:after.d + 1] == new[:after.d + 1]:
                    continue
                found = view(x, new, after)
                found.meta["val"] = node.meta["val"]
                places.found[found] = after
                node.replace_all_uses_with(found)
                graph.graph.erase_node(node)
                has_changed = True
            elif before and after is None and node not in places.sums:
                changed = {value: call(ATEN.reshape.default, spread(value), list(shape_of(value))) for value in before}
                node.args, node.kwargs = torch.fx.map_arg((node.args, node.kwargs),
                                                          lambda value, changed=changed: changed.get(value, value))
            elif name_of(node) in VIEWS:  # operands may have other strides
                node.target = ATEN.reshape.default
    graph.recompile()
    return has_changed
