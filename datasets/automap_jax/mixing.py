"""Finds operators that mix the examples of a batch, such as a reversal or a cumulative sum over them.

Micro-batches cannot run such an operator: it needs examples of others. A step is given as two graphs of equal
operators, with the whole batch and with a micro-batch. A dimension that differs between them holds examples. Example b
of B is in micro-batch b mod M, so that slices and padding in proportion to the batch keep examples apart.

    rows = local_rows(whole, micro)              # iotas that index examples, such as logits[arange(n), labels]
    name = mixing_operator(whole, micro, nodes, rows)
"""

import math

from .step_graph import Constant, Graph, depending, depending_results, numbers, traced, users_of

# Operators through which an iota remains an index of examples: with a wrapped negative value, beside other indices.
INDEX_OPERATORS = {"add", "broadcast_in_dim", "concatenate", "convert_element_type", "copy", "expand_dims", "lt",
                   "reshape", "select_n", "squeeze"}  # fmt: skip
# Operators on the last dimensions of their operands, by the number of these.
LAST_DIMENSIONS = {"cholesky": 2, "eig": 2, "eigh": 2, "geqrf": 2, "hessenberg": 2, "householder_product": 2, "lu": 2,
                   "qr": 2, "schur": 2, "svd": 2, "triangular_solve": 2, "tridiagonal": 2}  # fmt: skip
# Operators along one dimension, by the parameter that names it.
ALONG = {"approx_top_k": "reduction_dimension", "cumlogsumexp": "axis", "cummax": "axis", "cummin": "axis",
         "cumprod": "axis", "cumsum": "axis", "sort": "dimension", "top_k": "axis"}  # fmt: skip


class Pair:
    """An operator in both graphs, with the shapes of its values."""

    def __init__(self, whole, micro, node, twin):
        self.node, self.twin, self.name, self.params = node, twin, node.primitive.name, node.params
        self.ins = [self.shapes_of(whole, micro, value) for value in node.inputs]
        self.outs = [self.shapes_of(whole, micro, value) for value in node.outputs]

    @staticmethod
    def shapes_of(whole, micro, value):
        return ((), ()) if isinstance(value, Constant) else (whole.shapes[value], micro.shapes[value])

    @staticmethod
    def split(shapes):
        """Returns the dimensions that hold examples, of (shape in the whole, shape in the micro-batch)."""
        return [d for d, (a, b) in enumerate(zip(*shapes, strict=True)) if a != b]

    def in_proportion(self, place, at, pick=lambda value: value):
        """Returns whether numbers of parameter `place`, one for each dimension, are in proportion to dimension `at`."""
        whole, micro = self.params[place], self.twin.params[place]
        if whole is None:
            return True
        sizes = [shape[at] for shape in self.ins[0]]
        return pick(whole[at]) * sizes[1] == pick(micro[at]) * sizes[0]


def local_rows(whole, micro):
    """Finds the values that count examples and have no use but as indices of examples, from an iota on. In a
    micro-batch they count its own examples. Returns {value: the operator that makes it}."""
    users, found = users_of(whole.nodes), {}
    for node in whole.nodes:
        if node.primitive.name == "iota" and whole.shapes[node.outputs[0]] != micro.shapes[node.outputs[0]]:
            found |= index_values(whole, micro, node, users)
    return found


def index_values(whole, micro, iota, users):
    """Returns {value: the operator that makes it} of an iota and of the indices made of it; empty if it has another
    use, such as an index of a table that holds no examples."""
    reached, open_nodes = {}, [(iota, 0)]  # and the component of the indices
    while open_nodes:
        node, component = open_nodes.pop()
        for value in node.outputs:
            if value in reached:
                continue
            reached[value] = node
            if value in whole.outputs:
                return {}
            for user in (whole.nodes[k] for k in users.get(value, ())):
                if user.primitive.name in INDEX_OPERATORS:
                    at = user.inputs.index(value) if user.primitive.name == "concatenate" else component
                    open_nodes.append((user, at))
                    continue
                split = Pair.split(Pair.shapes_of(whole, micro, user.inputs[0]))
                if not is_indexing(user) or [at for at, used in enumerate(user.inputs) if used == value] != [1]:
                    return {}
                if indexed_dimensions(user)[component:component + 1] not in [(d,) for d in split]:
                    return {}
    return reached


def is_indexing(node):
    return node.primitive.name == "gather" or node.primitive.name.startswith("scatter")


def indexed_dimensions(node):
    """The dimensions of the operand of a gather or scatter that its indices count, in their order."""
    found = node.params["dimension_numbers"]
    return found.start_index_map if node.primitive.name == "gather" else found.scatter_dims_to_operand_dims


def counting_iota(whole, node, component, rows):
    """Returns the iota in `rows` {value: the operator that makes it} that is a component of the indices of a gather or
    scatter, or None."""
    value = node.inputs[1]
    while not isinstance(value, Constant) and value in rows:
        made = rows[value]
        if made.primitive.name == "iota":
            return made
        if made.primitive.name == "concatenate":
            widths = [1 if isinstance(part, Constant) else whole.shapes[part][-1] for part in made.inputs]
            is_last = made.params["dimension"] == len(whole.shapes[value]) - 1
            if not is_last or any(width != 1 for width in widths) or component >= len(made.inputs):
                return None
            value, component = made.inputs[component], 0
            continue
        if made.primitive.name in ("add", "lt"):
            return None
        value = made.inputs[made.primitive.name == "select_n"]  # of a wrapped index the one that is not negative
    return None


def mixes_by_index(whole, pair, rows):
    """Returns whether a gather or scatter moves values between examples of its operand."""
    is_gather, mapped = pair.name == "gather", indexed_dimensions(pair.node)
    batching = getattr(pair.params["dimension_numbers"], "operand_batching_dims", ())
    for d in Pair.split(pair.ins[0]):
        if d in batching:
            continue
        if d in mapped and counting_iota(whole, pair.node, mapped.index(d), rows) is None:
            return True
        is_window = d not in mapped and is_gather
        if is_window and pair.params["slice_sizes"][d] != pair.ins[0][0][d]:
            return True
    return False


def adds_to_base(whole, pair):
    """Returns whether a scatter adds a sum over the examples to other numbers than zeros, as each micro-batch would."""
    base = pair.node.inputs[0]
    made = next((node for node in whole.nodes if base in node.outputs), None)
    is_zero = made and made.primitive.name == "broadcast_in_dim" and isinstance(made.inputs[0], Constant) \
        and made.inputs[0].value == 0
    return not Pair.split(pair.outs[0]) and not is_zero


def unit_after(pair, unit):
    """Element e of a dimension of examples is of example e // unit. Returns the unit after a reshape; None if a
    micro-batch would reshape its own examples otherwise, such as to pairs of neighbours."""
    (before, _), (after, _) = pair.ins[0], pair.outs[0]
    split = Pair.split(pair.ins[0]), Pair.split(pair.outs[0])
    if any(len(dimensions) != 1 for dimensions in split):
        return unit
    stride = unit * math.prod(before[split[0][0] + 1:])
    width = math.prod(after[split[1][0] + 1:])
    unit = stride // width if width else 0
    return unit if unit and all(shape[split[1][0]] % unit == 0 for shape in pair.outs[0]) else None


def unit_of(pair, known, units):
    """Returns the unit of the results of an operator, None if it mixes examples. `units` are the different ones of the
    operands, `known` is one of them, or 1: an element of one operand has to meet the same example of the others."""
    if pair.name == "reshape":
        return unit_after(pair, known)
    if pair.name == "slice" and pair.params["strides"]:
        strides = [pair.params["strides"][d] for d in Pair.split(pair.ins[0])]
        return known // math.prod(strides) if all(known % stride == 0 for stride in strides) else None
    return None if len(units) > 1 and not is_indexing(pair.node) and not bodies_of(pair) else known


def unit_by_size(pair, units, shapes):
    """Returns the unit of a result of a gather, a scatter or a loop: of the operands with as many elements that hold
    examples, None if these have none or different ones."""
    def sizes(shapes):
        return [shapes[0][d] for d in Pair.split(shapes)]

    found = {units[value] for value, own in zip(pair.node.inputs, pair.ins, strict=True)
             if not isinstance(value, Constant) and value in units and sizes(own) == sizes(shapes)}
    return found.pop() if len(found) == 1 else None


def mixes_in_windows(pair):
    """Returns whether a window of a pooling operator or of a convolution covers several examples."""
    if pair.name == "conv_general_dilated":
        specs = pair.params["dimension_numbers"]
        return any(d in specs.lhs_spec[2:] for d in Pair.split(pair.ins[0])) and bool(Pair.split(pair.outs[0]))
    sizes = pair.params["window_dimensions"]
    return any(sizes[d] != 1 for d in Pair.split(pair.ins[0]))


def bodies_of(pair):
    """Returns the bodies of a loop or a branch, [(whole, micro-batch)]."""
    names = [name for name in ("jaxpr", "body_jaxpr", "cond_jaxpr") if name in pair.params]
    bodies = [(pair.params[name], pair.twin.params[name]) for name in names]
    return [*bodies, *zip(pair.params.get("branches", ()), pair.twin.params.get("branches", ()))]


def dependents_inside(pair, depends):
    """For each body of a loop or a branch, in the order of bodies_of(): which of its inputs depend on the data.
    `depends` says so of the operands."""
    params = pair.params
    if pair.name == "scan":
        first, last = params["num_consts"], params["num_consts"] + params["num_carry"]
        carried = depending_results(pair.name, params, depends, len(pair.outs))[:last - first]
        return [[*depends[:first], *(a or b for a, b in zip(depends[first:last], carried)), *depends[last:]]]
    if pair.name == "while":
        first, last = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
        carried, later = None, depends[last:]
        while later != carried:
            carried = later
            later = [a or b for a, b in zip(carried, depending(params["body_jaxpr"].jaxpr,
                                                               [*depends[first:last], *carried]))]
        return [[*depends[first:last], *carried], [*depends[:first], *carried]]
    return [depends[1:]] * len(bodies_of(pair))


def mixes_inside(pair, depends):
    """Returns whether the body of a loop or a branch mixes examples, or a scan takes them one after another."""
    if pair.name == "scan":
        first = pair.params["num_consts"] + pair.params["num_carry"]
        if any(0 in Pair.split(shapes) for shapes in pair.ins[first:]):
            return True
    bodies = bodies_of(pair)
    for (whole, micro), of_inputs in zip(bodies, dependents_inside(pair, depends) if bodies else (), strict=True):
        whole, micro = Graph(whole), Graph(micro)
        if len(whole.nodes) != len(micro.nodes):  # conversions that change nothing
            whole = Graph(traced(whole, whole.nodes, [whole.shapes[value] for value in whole.inputs]))
        if len(whole.nodes) != len(micro.nodes):
            return True
        rows = local_rows(whole, micro)
        known = {value for value, is_so in zip(whole.inputs, of_inputs, strict=True) if is_so}
        if mixing_operator(whole, micro, whole.nodes, rows, known=known) or counts_examples(whole, micro, rows):
            return True
    return False


def sums_other_rows(pair, known):
    """Returns whether an operator of a body combines rows by example of no data, such as those of random numbers: every
    micro-batch needs the result of all rows. `known` are the values that depend on the data."""
    split = [value for value, shapes in zip(pair.node.inputs, pair.ins, strict=True) if Pair.split(shapes)]
    return bool(split) and known.isdisjoint(split) and not any(map(Pair.split, pair.outs))


def counts_examples(whole, micro, rows):
    """Returns whether an operator of a body makes different numbers for the examples, such as random ones."""
    for node in whole.nodes:
        inputs = [Pair.shapes_of(whole, micro, value) for value in node.inputs]
        is_made = Pair.split(Pair.shapes_of(whole, micro, node.outputs[0])) and not any(map(Pair.split, inputs))
        if is_made and node.primitive.name != "broadcast_in_dim" and node.outputs[0] not in rows:
            return True
    return False


def mixes(whole, pair, rows, depends):
    split = Pair.split(pair.ins[0]) if pair.ins else []
    most = max((len(Pair.split(shapes)) for shapes in pair.ins), default=0)
    if any(len(Pair.split(shapes)) > max(most, 1) for shapes in pair.outs):
        return True  # examples beside examples, such as the scores of all pairs
    if pair.name == "rev":
        return any(d in pair.params["dimensions"] for d in split)
    if pair.name in ALONG:
        return pair.params.get(ALONG[pair.name], -1) % len(pair.ins[0][0]) in split
    if pair.name == "split" and pair.params["axis"] in split:
        total, own = (shape[pair.params["axis"]] for shape in pair.ins[0])
        return any(a * own != b * total for a, b in zip(pair.params["sizes"], pair.twin.params["sizes"], strict=True))
    if pair.name == "fft":
        return max(split, default=-1) >= len(pair.ins[0][0]) - len(pair.params["fft_lengths"])
    if pair.name in LAST_DIMENSIONS:
        return any(d >= len(shapes[0]) - LAST_DIMENSIONS[pair.name] for shapes in pair.ins for d in Pair.split(shapes))
    if pair.name == "slice":
        return not all(pair.in_proportion(place, d) for d in split for place in ("start_indices", "limit_indices"))
    if pair.name == "pad":
        return not all(pair.in_proportion("padding_config", d, lambda row, k=k: row[k])
                       for d in split for k in range(3))
    if pair.name == "dynamic_slice":
        return any(pair.params["slice_sizes"][d] != pair.ins[0][0][d] for d in split)
    if pair.name == "dynamic_update_slice":
        return any(pair.ins[1][0][d] != pair.ins[0][0][d] for d in split)
    if pair.name == "scatter-add" and adds_to_base(whole, pair):
        return True
    if is_indexing(pair.node):
        return mixes_by_index(whole, pair, rows)
    if pair.name == "conv_general_dilated" or "window_dimensions" in pair.params:
        return mixes_in_windows(pair)
    return mixes_inside(pair, depends)


def mixing_operator(whole, micro, nodes, rows, data=(), known=None):
    """Returns the label of the first of `nodes`, operators of the whole, that mixes examples; None: none does. `data`
    are values with a row for each example; in a body, `known` are the inputs that depend on the data."""
    wanted, units = {id(node) for node in nodes}, dict.fromkeys(data, 1)
    is_body, known = known is not None, set(data if known is None else known)
    for node, twin in zip(whole.nodes, micro.nodes, strict=True):
        pair = Pair(whole, micro, node, twin)
        depends = [not isinstance(value, Constant) and value in known for value in node.inputs]
        results = depending_results(node.primitive.name, node.params, depends, len(node.outputs))
        known.update(value for value, is_so in zip(node.outputs, results, strict=True) if is_so)
        if is_body and sums_other_rows(pair, known):
            return node.label
        if id(node) in wanted and twin.needs_all:
            return node.label
        if not any(Pair.split(shapes) for shapes in pair.ins):
            continue
        found = {units[value] for value in numbers(node) if value in units}
        unit = unit_of(pair, max(found, default=1), found)
        if id(node) in wanted and (unit is None or mixes(whole, pair, rows, depends)):
            return node.label
        for value, shapes in zip(node.outputs, pair.outs, strict=True):
            is_other = is_indexing(node) or bodies_of(pair)
            unit_here = unit_by_size(pair, units, shapes) if is_other else unit
            if Pair.split(shapes) and unit_here and (found or pair.name == "reshape"):
                units[value] = unit_here
    return None
