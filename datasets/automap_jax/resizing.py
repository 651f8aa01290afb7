"""The graph of a step for a part of its batch, from the graph for the whole batch.

    found = Examples(whole, {number of an input: dimension}, parts)
    micro = found.resized()

No operator is traced again, so that a step may have its batch size as a number: x.reshape(32, -1), jnp.ones((32, 1)).
The dimensions that hold examples follow from those of the data, through equal dimensions of operands and results, in
both directions. Dimensions that are not connected stay: jnp.sum(jnp.ones(32)) is 32 for every part. Element e of such a
dimension is of example e // unit; part m of M has every M-th example. A dimension of n elements has n / M in a part.

A scan that makes random numbers for the examples, such as dropout in each layer, needs those of the whole batch in each
part: `with_rows` gives it the numbers of the part's examples, by which it takes their rows.
"""

import dataclasses
import math

import jax
import numpy as np
from jax import lax

from .mixing import INDEX_OPERATORS, LAST_DIMENSIONS, counting_iota, indexed_dimensions, is_indexing
from .step_graph import Constant, Graph, evaluate, operand_arrays, traced

BODIES = ("jaxpr", "branches", "cond_jaxpr", "body_jaxpr")


def bodies_of(params):
    """{place in the parameters of an operator: its body}: (name, None) or (name, number of a branch)."""
    found = {}
    for name in BODIES:
        if isinstance(params.get(name), tuple):
            found |= {(name, k): body for k, body in enumerate(params[name]) if hasattr(body, "jaxpr")}
        elif hasattr(params.get(name), "jaxpr"):
            found[name, None] = params[name]
    return found


class Body:
    """A graph within a graph. Its values have the numbers from `base` on among all values."""

    def __init__(self, graph, base):
        self.graph, self.base = graph, base
        self.inputs = [base + value for value in graph.inputs]


class Examples:
    """The dimensions that hold examples: units[value] = {dimension: unit}, for the values of the graph first."""

    def __init__(self, graph, data, parts):
        self.parts, self.shapes, self.dtypes, self.units = parts, [], [], []
        self.links, self.reshapes = {}, {}  # of (value, dimension); of a value: the other ones
        self.inner, self.constants = {}, {}  # {(id of a node, base): {place: Body}}; {id of a Constant: (value, it)}
        self.body = self.added(graph)
        self.graph = graph
        self.batch = next((self.shapes[graph.inputs[number]][dimension] for number, dimension in data.items()), 1)
        for number, dimension in data.items():
            self.mark(graph.inputs[number], dimension, 1)

    # ---- values and their links ----

    def added(self, graph):
        body = Body(graph, len(self.shapes))
        self.shapes += map(tuple, graph.shapes)
        self.dtypes += graph.dtypes
        self.units += [{} for _ in graph.shapes]
        indices = {value: node for node in graph.nodes for value in node.outputs
                   if node.primitive.name == "iota" or node.primitive.name in INDEX_OPERATORS}
        for node in graph.nodes:
            inputs = [self.number(body, value) for value in node.inputs]
            outputs = [body.base + value for value in node.outputs]
            self.add_links(node, inputs, outputs, body)
            for component, d in enumerate(indexed_dimensions(node) if is_indexing(node) else ()):
                iota = counting_iota(graph, node, component, indices)
                if iota and graph.shapes[iota.outputs[0]][iota.params["dimension"]] == self.shapes[inputs[0]][d]:
                    # Row e of the operand, such as of logits[arange(n), labels]. Columns of all pairs stay whole.
                    place = body.base + iota.outputs[0], iota.params["dimension"]
                    self.links.setdefault((inputs[0], d), []).append(place)
        return body

    def number(self, body, value):
        if not isinstance(value, Constant):
            return body.base + value
        if id(value) not in self.constants:
            self.constants[id(value)] = len(self.shapes), value
            self.shapes.append(np.shape(value.value))
            self.dtypes.append(None)
            self.units.append({})
        return self.constants[id(value)][0]

    def link(self, a, of_a, b, of_b):
        """Two dimensions hold the same examples, if they have one size."""
        if self.shapes[a][of_a] == self.shapes[b][of_b]:
            self.links.setdefault((a, of_a), []).append((b, of_b))
            self.links.setdefault((b, of_b), []).append((a, of_a))

    def link_all(self, a, b, without=(), shift=0):
        """All dimensions of `a` but those in `without` with those of `b`, in order; `shift` are further ones of b."""
        for at, d in enumerate(d for d in range(len(self.shapes[a])) if d not in without):
            self.link(a, d, b, at + shift)

    def add_links(self, node, inputs, outputs, body):
        name, params = node.primitive.name, node.params
        rule = getattr(self, "of_" + name.replace("-", "_"), None)
        if bodies_of(params):
            self.of_loop_or_branch(node, inputs, outputs, body)
        elif rule:
            rule(params, inputs, outputs)
        elif name.startswith("scatter"):
            self.of_scatters(params, inputs, outputs)
        elif name in LAST_DIMENSIONS:
            self.link_leading(inputs, outputs, LAST_DIMENSIONS[name])
        elif "axes" in params and len({self.shapes[value] for value in inputs}) == 1:  # a reduction
            for value in outputs:
                self.link_all(inputs[0], value, params["axes"])
        else:
            self.link_alike(inputs, outputs)

    def link_alike(self, inputs, outputs):
        """Values of one rank, such as those of elementwise operators, sorts and windows."""
        for out in outputs:
            for value in [*inputs, *outputs[:1]]:
                if len(self.shapes[value]) == len(self.shapes[out]) and value != out:
                    self.link_all(value, out)

    def link_leading(self, inputs, outputs, last):
        values = [value for value in [*inputs, *outputs] if len(self.shapes[value]) >= last]
        for value in values[1:]:
            for d in range(min(len(self.shapes[value]), len(self.shapes[values[0]])) - last):
                self.link(values[0], d, value, d)

    def of_broadcast_in_dim(self, params, inputs, outputs):
        for d, at in enumerate(params["broadcast_dimensions"]):
            self.link(inputs[0], d, outputs[0], at)

    def of_reshape(self, params, inputs, outputs):
        self.reshapes.setdefault(inputs[0], []).append(outputs[0])
        self.reshapes.setdefault(outputs[0], []).append(inputs[0])

    def of_transpose(self, params, inputs, outputs):
        for at, d in enumerate(params["permutation"]):
            self.link(inputs[0], d, outputs[0], at)

    def of_squeeze(self, params, inputs, outputs):
        self.link_all(inputs[0], outputs[0], params["dimensions"])

    def of_argmax(self, params, inputs, outputs):
        self.link_all(inputs[0], outputs[0], params["axes"])

    of_argmin = of_argmax

    def of_dot_general(self, params, inputs, outputs):
        (contracted, batch), (left, right), out = params["dimension_numbers"], inputs, outputs[0]
        for a, b in (*zip(*contracted), *zip(*batch)):
            self.link(left, a, right, b)
        free = [[d for d in range(len(self.shapes[value])) if d not in contracted[k] and d not in batch[k]]
                for k, value in enumerate(inputs)]
        places = [(left, d) for d in (*batch[0], *free[0])] + [(right, d) for d in free[1]]
        for at, (value, d) in enumerate(places):
            self.link(value, d, out, at)

    def of_conv_general_dilated(self, params, inputs, outputs):
        numbers, (image, kernel), out = params["dimension_numbers"], inputs, outputs[0]
        if params["batch_group_count"] == 1:
            self.link(image, numbers.lhs_spec[0], out, numbers.out_spec[0])
        if params["feature_group_count"] == 1:
            self.link(image, numbers.lhs_spec[1], kernel, numbers.rhs_spec[1])
        self.link(kernel, numbers.rhs_spec[0], out, numbers.out_spec[1])

    def of_concatenate(self, params, inputs, outputs):
        for value in inputs:
            for d in range(len(self.shapes[value])):
                if d != params["dimension"]:
                    self.link(value, d, outputs[0], d)

    def link_indexed(self, operand, indices, windows, batching, absent, window_dims):
        """An operand, indices into it, and the windows that they take or change. Windows lack the dimensions `absent`
        of the operand, and the first of each pair in `batching`, whose second one is of the indices."""
        absent = {*absent, *(d for d, _ in batching)}
        for d, at in zip([d for d in range(len(self.shapes[operand])) if d not in absent], window_dims):
            self.link(operand, d, windows, at)
        rest = [d for d in range(len(self.shapes[windows])) if d not in window_dims]
        for d, at in enumerate(rest):
            self.link(indices, d, windows, at)
        for d, of_indices in batching:
            self.link(operand, d, indices, of_indices)

    def of_gather(self, params, inputs, outputs):
        numbers = params["dimension_numbers"]
        batching = [*zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims)]
        self.link_indexed(*inputs, outputs[0], batching, numbers.collapsed_slice_dims, numbers.offset_dims)

    def of_scatters(self, params, inputs, outputs):
        numbers = params["dimension_numbers"]
        self.link_all(inputs[0], outputs[0])
        batching = [*zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims)]
        self.link_indexed(*inputs, batching, numbers.inserted_window_dims, numbers.update_window_dims)

    def link_bounded(self, a, b, bounds):
        """Links the dimensions of two values whose bounds, [numbers of each dimension], are shared by all parts."""
        for d, numbers in enumerate(bounds):
            if not any(number % self.parts for number in numbers):
                self.links.setdefault((a, d), []).append((b, d))
                self.links.setdefault((b, d), []).append((a, d))

    def of_slice(self, params, inputs, outputs):
        bounds = zip(params["start_indices"], params["limit_indices"],
                     [stride != 1 for stride in params["strides"] or [1] * len(self.shapes[inputs[0]])])
        self.link_bounded(inputs[0], outputs[0], bounds)

    def of_pad(self, params, inputs, outputs):
        self.link_bounded(inputs[0], outputs[0],
                          [(low, high, interior != 0) for low, high, interior in params["padding_config"]])

    def of_dynamic_slice(self, params, inputs, outputs):
        self.link_all(inputs[0], outputs[0])

    of_dynamic_slice = of_rng_bit_generator = of_slice

    def of_dynamic_update_slice(self, params, inputs, outputs):
        self.link_all(inputs[0], outputs[0])
        self.link_all(inputs[0], inputs[1])

    def of_split(self, params, inputs, outputs):
        for value, size in zip(outputs, params["sizes"], strict=True):
            bounds = [(size if d == params["axis"] else 0,) for d in range(len(self.shapes[value]))]
            self.link_bounded(inputs[0], value, bounds)

    def of_tile(self, params, inputs, outputs):
        for d, times in enumerate(params["reps"]):
            if times == 1:
                self.link(inputs[0], d, outputs[0], d)

    def of_optimization_barrier(self, params, inputs, outputs):
        for a, b in zip(inputs, outputs, strict=True):
            self.link_all(a, b)

    def of_iota(self, params, inputs, outputs):
        """Has no operand."""

    def of_random_bits(self, params, inputs, outputs):
        for d in range(len(self.shapes[inputs[0]])):
            self.link(inputs[0], d, outputs[0], d)

    def of_random_wrap(self, params, inputs, outputs):
        for d in range(min(len(self.shapes[inputs[0]]), len(self.shapes[outputs[0]]))):
            self.link(inputs[0], d, outputs[0], d)

    of_random_unwrap = of_random_seed = of_random_split = of_random_fold_in = of_random_wrap

    def of_loop_or_branch(self, node, inputs, outputs, body):
        name, params = node.primitive.name, node.params
        inner = {place: self.added(Graph(closed)) for place, closed in bodies_of(params).items()}
        self.inner[id(node), body.base] = inner

        def link_values(pairs, shift=0):
            for a, b in pairs:
                if not isinstance(b, Constant):
                    self.link_all(b, a, shift=shift)

        def results(of):
            return [value if isinstance(value, Constant) else of.base + value for value in of.graph.outputs]

        if name == "scan":
            of, count = inner["jaxpr", None], params["num_consts"] + params["num_carry"]
            carried = inputs[params["num_consts"]:count]
            link_values(zip(inputs[:count], of.inputs[:count]))
            link_values(zip(inputs[count:], of.inputs[count:]), 1)
            link_values(zip(carried, results(of)))
            link_values(zip(outputs, carried))
            link_values(zip(outputs[params["num_carry"]:], results(of)[params["num_carry"]:]), 1)
        elif name == "while":
            test, of = inner["cond_jaxpr", None], inner["body_jaxpr", None]
            first, second = params["cond_nconsts"], params["body_nconsts"]
            carried = inputs[first + second:]
            link_values(zip([*inputs[:first], *carried], test.inputs))
            link_values(zip([*inputs[first:first + second], *carried], of.inputs))
            link_values(zip(carried, results(of)))
            link_values(zip(outputs, carried))
        elif name == "cond":
            for of in inner.values():
                link_values(zip(inputs[1:], of.inputs))
                link_values(zip(outputs, results(of)))

    # ---- units ----

    def mark(self, value, dimension, unit):
        """Marks a dimension, and all those that hold the same examples."""
        open_places = [(value, dimension, unit)]
        while open_places:
            value, d, unit = open_places.pop()
            known = self.units[value].get(d)
            if known is not None:
                continue
            self.units[value][d] = unit
            open_places += [(*place, unit) for place in self.links.get((value, d), ())]
            for other in self.reshapes.get(value, ()):
                place = self.reshaped(self.shapes[value], d, unit, self.shapes[other])
                if place:
                    open_places.append((other, *place))

    def reshaped(self, before, d, unit, after):
        """(dimension, unit) of the examples after a reshape; None if they lie in no dimension."""
        stride, minor = unit * math.prod(before[d + 1:]), 1
        for at in reversed(range(len(after))):
            size = after[at]
            if size > 1 and stride < minor * size:
                unit, rest = divmod(stride, minor)
                return (at, unit) if not rest and size % (unit * self.parts) == 0 else None
            minor *= size
        return None

    def is_split(self):
        """Whether each value of the graph has a dimension of examples."""
        return [bool(self.units[self.body.base + value]) for value in range(len(self.graph.shapes))]

    # ---- a part of the batch ----

    def shape(self, value):
        return tuple(size // self.parts if d in self.units[value] else size
                     for d, size in enumerate(self.shapes[value]))

    def resized(self):
        """The graph for one part of the batch, with the same numbers. Operators that have no such form, as they need
        all examples, stay as they are: `needs_all` of their nodes is set. ValueError: a constant has rows for the
        examples."""
        for value, constant in self.constants.values():
            if self.units[value]:
                raise ValueError(f"a constant of shape {list(np.shape(constant.value))} has rows for the examples "
                                 "(expected an argument of the step)")
        graph = self.graph.copy()
        graph.shapes = [self.shape(value) for value in range(len(self.graph.shapes))]
        graph.nodes = [self.resized_node(node, self.body) for node in self.graph.nodes]
        self.check_shapes(graph.nodes, self.body)
        return graph

    def check_shapes(self, nodes, body):
        """Sets `needs_all` of nodes whose results have other shapes than expected."""
        def function(*arrays):
            values = dict(zip(body.graph.inputs, arrays, strict=True))
            for node in nodes:
                expected = [self.shape(body.base + value) for value in node.outputs]
                try:
                    evaluate([node], values)
                    found = [np.shape(values[value]) for value in node.outputs]
                except (TypeError, ValueError):
                    found = None
                if found != expected:
                    node.needs_all = True
                    values.update((value, jax.numpy.zeros(shape, body.graph.dtypes[value]))
                                  for value, shape in zip(node.outputs, expected))
            return ()

        jax.eval_shape(function, *(jax.ShapeDtypeStruct(self.shape(value), self.dtypes[value])
                                   for value in body.inputs))

    def resized_node(self, node, body):
        """The operator on one part of the batch."""
        name, params = node.primitive.name, dict(node.params)
        inputs = [self.number(body, value) for value in node.inputs]
        outputs = [body.base + value for value in node.outputs]
        of_input = self.units[inputs[0]] if inputs else {}
        if name == "broadcast_in_dim" or name == "iota":
            params["shape"] = self.shape(outputs[0])
        elif name == "tile":
            params["reps"] = tuple(times // self.parts if d in self.units[outputs[0]] and d not in of_input else times
                                   for d, times in enumerate(params["reps"]))
        elif name == "reshape":
            params["new_sizes"] = self.shape(outputs[0])
        elif name in ("random_bits", "rng_bit_generator"):
            first = len(self.shapes[inputs[0]]) if name == "random_bits" else 0
            params["shape"] = self.shape(outputs[-1])[first:]
        elif name in ("gather", "dynamic_slice"):
            params["slice_sizes"] = tuple(
                size // self.parts if d in of_input and size == self.shapes[inputs[0]][d] else size
                for d, size in enumerate(params["slice_sizes"]))
        elif name in ("slice", "pad", "split"):
            params |= self.resized_bounds(name, params, of_input)
        result = dataclasses.replace(node, params=params, inputs=list(node.inputs))
        for (place, number), inner in self.inner.get((id(node), body.base), {}).items():
            closed = self.resized_body(inner)
            if closed is None:
                result.params, result.needs_all = dict(node.params), True
                break
            was = params[place]
            params[place] = closed if number is None else (*was[:number], closed, *was[number + 1:])
        return result

    def resized_bounds(self, name, params, units):
        """The bounds of a slice, pad or split for one part, where they are multiples of the rows of all parts."""
        def scaled(d, *numbers):
            rows = units.get(d, 1) * self.parts
            is_cut = d in units and not any(number % rows for number in numbers)
            return tuple(number // self.parts if is_cut else number for number in numbers)

        if name == "pad":
            return {"padding_config": tuple((*scaled(d, low, high), interior)
                                            for d, (low, high, interior) in enumerate(params["padding_config"]))}
        if name == "split":
            return {"sizes": scaled(params["axis"], *params["sizes"])}
        found = [scaled(d, *bounds) for d, bounds in enumerate(zip(params["start_indices"], params["limit_indices"]))]
        return dict(zip(("start_indices", "limit_indices"), zip(*found))) if found else {}

    def resized_body(self, body):
        """The body of a loop or a branch on one part of the batch; None: an operator in it needs all examples."""
        nodes = [self.resized_node(node, body) for node in body.graph.nodes]
        self.check_shapes(nodes, body)
        if any(node.needs_all for node in nodes):
            return None
        return traced(body.graph, nodes, list(map(self.shape, body.inputs)))

    # ---- random numbers in loops ----

    def random_dimension(self, node, body):
        """The dimension of the examples of random bits of a key for all; None: other values, or no row by example."""
        if node.primitive.name != "random_bits" or any(self.units[self.number(body, value)] for value in node.inputs):
            return None
        result = body.base + node.outputs[0]
        found = [d for d, unit in self.units[result].items() if unit == 1 and self.shapes[result][d] == self.batch]
        return found[0] if len(found) == len(self.units[result]) == 1 else None

    def has_random_rows(self, node, body):
        """Whether a scan, or one in it, makes random numbers for the examples that it takes."""
        inner = self.inner[id(node), body.base]["jaxpr", None] if node.primitive.name == "scan" else None
        return inner is not None and any(self.units[self.number(body, value)] for value in node.inputs) and any(
            self.random_dimension(one, inner) is not None or self.has_random_rows(one, inner)
            for one in inner.graph.nodes)

    def taking_rows(self, node, body, rows):
        """A scan with one more constant, the value `rows`: the numbers of the examples, [examples, 1]. Its body takes
        these rows of random numbers for the examples."""
        inner, params = self.inner[id(node), body.base]["jaxpr", None], dict(node.params)
        nodes = [self.taking_rows(one, inner, "rows") if self.has_random_rows(one, inner) else one
                 for one in inner.graph.nodes]

        def function(rows, *arrays):
            values = {"rows": rows, **dict(zip(inner.graph.inputs, arrays, strict=True))}
            for one, changed in zip(inner.graph.nodes, nodes, strict=True):
                evaluate([changed], values)
                dimension = self.random_dimension(one, inner)
                if dimension is not None:
                    values[one.outputs[0]] = rows_by_number(values[one.outputs[0]], rows, dimension)
            return operand_arrays(inner.graph.outputs, values)

        shapes = [jax.ShapeDtypeStruct(self.shapes[value], self.dtypes[value]) for value in inner.inputs]
        params["jaxpr"] = jax.make_jaxpr(function)(jax.ShapeDtypeStruct((self.batch, 1), np.int32), *shapes)
        params["num_consts"] += 1
        if "linear" in params:  # older versions of JAX
            params["linear"] = (False, *params["linear"])
        return dataclasses.replace(node, params=params, inputs=[rows, *node.inputs])


def rows_by_number(array, numbers, dimension):
    """The rows of an array along a dimension; `numbers` has the shape [rows, 1]."""
    others = tuple(d for d in range(array.ndim) if d != dimension)
    places = lax.GatherDimensionNumbers(offset_dims=others, collapsed_slice_dims=(dimension,),
                                        start_index_map=(dimension,))
    sizes = tuple(1 if d == dimension else size for d, size in enumerate(array.shape))
    return lax.gather(array, numbers, places, sizes, mode="clip")


def with_rows(graph, data, parts):
    """The graph, or one whose scans take their rows of random numbers for the examples. `data` is that of Examples."""
    found = Examples(graph, data, parts)
    chosen = [found.has_random_rows(node, found.body) for node in graph.nodes]
    if not any(chosen):
        return graph
    counted = Graph(jax.make_jaxpr(lambda: lax.broadcasted_iota(np.int32, (found.batch, 1), 0))())
    changed, rows = graph.copy(), len(graph.shapes)
    changed.shapes, changed.dtypes = [*graph.shapes, *counted.shapes], [*graph.dtypes, *counted.dtypes]
    changed.nodes = [dataclasses.replace(node, outputs=[rows + value for value in node.outputs])
                     for node in counted.nodes]
    changed.nodes += [found.taking_rows(node, found.body, rows) if is_chosen else node
                      for node, is_chosen in zip(graph.nodes, chosen, strict=True)]
    return changed
