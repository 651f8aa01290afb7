"""The forward pass of a model as a graph of ATen operators, cut into the stages of a plan.

    graph = trace_loss(model, loss, batch)                 one micro-batch, without running it
    parts = cut(graph, starts, owners)                     a Part for each stage of the plan

The graph is that of `export` up to its gradients, so that its operators have the names of the exported module. A part
reads the values of the part before it; values that later parts need pass through it. A weight that several parts use
passes as well. Operators on constants, buffers and batches alone are repeated in each part that needs them.
"""

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from .decompositions import decompositions
from .examples import SAME, name_of
from .export import differentiate, plain_kernels, splittable, values_of, without_writes
from .kinds import changes_sum


class LossGraph:
    """The traced loss: its operators in order, its inputs by kind and name, and the new values of buffers."""

    def __init__(self, graph, names):
        self.module = graph
        nodes = list(graph.graph.nodes)
        inputs = graph.graph.find_nodes(op="placeholder")
        self.inputs = dict(zip(inputs, names, strict=True))
        self.operators = [node for node in nodes if node.op in ("call_function", "get_attr")]
        results = pytree.tree_leaves(nodes[-1].args[0])
        buffers = [name for kind, name in names if kind == "buffer"]
        self.loss = results[0]
        self.buffers = {name: source_of(node) for name, node in zip(buffers, results[1:], strict=True)}


def source_of(node):
    """The buffer itself where a node is its copy, which the step does not change."""
    is_copy = node.target is torch.ops.aten.clone.default and node.args[0].op == "placeholder"
    return node.args[0] if is_copy else node


def trace_loss(model, loss, batch):
    """Traces the loss of a micro-batch with fake tensors."""
    shapes = FakeTensorMode(allow_non_fake_inputs=True)

    def fake(value):
        with shapes:
            return torch.empty(value.shape, dtype=value.dtype, device=value.device)

    parameters, buffers = ({name: fake(value) for name, value in values.items()} for values in values_of(model))
    loss_of = splittable(model, loss, batch)

    def results_of(parameters, buffers, batch):
        _, (value, own) = differentiate(model, loss_of, parameters, buffers, batch)
        return value, own

    with plain_kernels():
        graph = make_fx(functionalize(results_of), decomposition_table=decompositions(), tracing_mode="fake")(
            parameters, buffers, tuple(map(fake, batch)))
    without_writes(graph).graph.eliminate_dead_code()
    names = [("parameter", name) for name in parameters] + [("buffer", name) for name in buffers]
    return LossGraph(graph, names + [("batch", k) for k in range(len(batch))])


SUMS = (torch.ops.aten.sum.default, torch.ops.aten.sum.dim_IntList, torch.ops.aten.mean.default,
        torch.ops.aten.mean.dim)


def find_counts(graph):
    """Scalars that sum batches alone over all examples, such as the number of targets of cross_entropy: in every
    micro-batch the loss divides by that of the whole batch. Limits of such sums, or sums and a number, are counts, too,
    with their sum as a value; others have None."""
    reads_batch = {node: kind == "batch" for node, (kind, _) in graph.inputs.items()}
    is_free, counts, sums, counted = dict(reads_batch), {}, set(), set()
    for node in graph.operators:
        operands = node.all_input_nodes
        is_free[node] = all(is_free[value] for value in operands)
        reads_batch[node] = any(reads_batch[value] for value in operands)
        if not (is_free[node] and reads_batch[node]):
            continue
        constants = {value for value in operands if is_free[value] and not reads_batch[value]}
        if node.target in SUMS and node.meta["val"].ndim == 0:
            counts[node] = None
            if name_of(node) == "sum" and counted.isdisjoint(operands):
                sums.add(node)
        elif changes_sum(node, sums, constants):
            counts[node] = next(value for value in operands if value in sums)
            sums.add(node)
        elif name_of(node) in SAME and not sums.isdisjoint(operands):
            sums.add(node)
        if node in counts or not counted.isdisjoint(operands):
            counted.add(node)
    return counts


def mean_of_counts(graph, counts, batches):
    """The mean of each count over micro-batches of plain tensors. A count of other counts has their means. A limit of a
    sum is that of the whole batch, divided by the number of micro-batches."""
    places = {node: name for node, (kind, name) in graph.inputs.items() if kind == "batch"}

    def value_of(node, values):
        if node not in values:
            if node.op == "get_attr":
                values[node] = getattr(graph.module, node.target)
            else:
                arguments, options = torch.fx.map_arg((node.args, node.kwargs), lambda value: value_of(value, values))
                values[node] = node.target(*arguments, **options)
        return values[node]

    known, means = [{node: batch[name].contiguous() for node, name in places.items()} for batch in batches], {}
    for node, part in counts.items():
        if part is None:
            means[node] = sum(value_of(node, values).double() for values in known) / len(batches)
        else:
            whole = {**known[0], part: value_of(part, known[0]) * len(batches)}
            means[node] = value_of(node, whole).double() / len(batches)
        for values in known:
            values[node] = means[node]
    return means


class Part:
    """The operators of one stage, the values that it gets and gives, and the buffers that it changes."""

    def __init__(self, operators, given, results, buffers):
        self.operators, self.given, self.results, self.buffers = operators, given, results, buffers
        used = [*results, *buffers.values()]
        self.last_use = {}
        for position, node in enumerate(operators):
            for value in node.all_input_nodes:
                self.last_use[value] = position
        self.last_use.update(dict.fromkeys(used, len(operators)))
        self.inputs = [value for value in self.last_use if value.op == "placeholder" and value not in given]


def bounds_of(graph, starts, owners):
    """The place at which each later part begins; an operator on a weight of the part before stays there. A part without
    a start begins with its first weight, without a place."""
    places = {node.name: k for k, node in enumerate(graph.operators)}
    bounds = []
    for part, name in enumerate(starts[1:], 1):
        if name is None:
            continue
        if name not in places:
            raise ValueError(f"the plan cuts at {name}, which the model's loss does not have (expected a plan of this "
                             "model's export)")
        place = max(places[name], bounds[-1] if bounds else 0)
        weights = [graph.inputs[value] for value in graph.operators[place].all_input_nodes if value in graph.inputs]
        if any(kind == "parameter" and owners[path] < part for kind, path in weights):
            place += 1
        bounds.append(place)
    return bounds


def find_homes(graph, starts, owners):
    """The part of each value: that of its place, of its weights or of its operands, whichever is last. None for
    batches, buffers and values of these and constants alone."""
    bounds = bounds_of(graph, starts, owners)
    homes = {node: owners[name] if kind == "parameter" else None for node, (kind, name) in graph.inputs.items()}
    for place, node in enumerate(graph.operators):
        operands = [homes[value] for value in node.all_input_nodes if homes[value] is not None]
        is_free = not operands
        homes[node] = None if is_free else max([*operands, sum(place >= bound for bound in bounds)])
    return homes


def cut(graph, starts, owners):
    """Cuts a graph where the operators of the names `starts` begin parts (the first name is not used; None: with the
    part's first weight). `owners` has the part of each parameter."""
    homes, count = find_homes(graph, starts, owners), len(starts)
    homes[graph.loss] = count - 1
    needed = [set() for _ in range(count)]  # the values that each part computes or reads

    def need(node, part):
        if node in needed[part]:
            return
        needed[part].add(node)
        if homes[node] is None or homes[node] == part:
            for value in node.all_input_nodes:
                need(value, part)

    for node in graph.buffers.values():
        if node.op != "placeholder" and homes[node] is None:
            homes[node] = count - 1  # counters of steps
    for node in [*graph.buffers.values(), *graph.operators]:
        if homes[node] is not None:
            need(node, homes[node])
    return build_parts(graph, needed, homes, count)


def build_parts(graph, needed, homes, count):
    """Values whose home is an earlier part pass through all parts up to the one that needs them."""
    order = {node: k for k, node in enumerate([*graph.inputs, *graph.operators])}
    last = {}
    for part in range(count):
        for node in needed[part]:
            if homes[node] is None or homes[node] == part:
                continue
            last[node] = part
    parts = []
    for part in range(count):
        given = [node for node, end in last.items() if homes[node] < part <= end]
        results = [node for node, end in last.items() if homes[node] <= part < end]
        if part == count - 1:
            results = [graph.loss]
        operators = [node for node in graph.operators
                     if node in needed[part] and (homes[node] is None or homes[node] == part)]
        buffers = {name: value for name, value in graph.buffers.items()
                   if value.op != "placeholder" and value in operators}
        parts.append(Part(operators, sorted(given, key=order.get), sorted(results, key=order.get), buffers))
    return parts

