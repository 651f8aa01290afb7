"""The recomputation of a plan: which operators of a step it covers, and jax.checkpoint of a user's function with it.

    document = json.load(open("jax.json"))                 # automap export --format jax
    loss = automap_jax.checkpoint(document, loss)          # inside of the step: jax.value_and_grad(loss)(...)

A stage of the document has rows [primitive, shape of the result, operators of the module, numbers of the recomputed
ones]. Forward operators of one primitive and shape are numbered in their order, over all stages.
"""

import functools
import warnings

import jax
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jax.custom_derivatives import SymbolicZero

from .operators import CHEAP
from .step_graph import Constant, Graph, depending_results, evaluate, numbers, operand_arrays

NAME = "automap"


def numbered(graph, chosen):
    """{(primitive, shape of the result): [the nodes among the numbers `chosen` of a graph, in their order]}. A node
    that stands for several equal ones is there as often."""
    places = {}
    for k in chosen:
        node = graph.nodes[k]
        places.setdefault((node.primitive.name, tuple(graph.shapes[node.outputs[0]])), []).append(k)
    return places


def fitting(nodes, count):
    """The nodes, or each of them once, if a module that has `count` of them has equally many for each; else None."""
    return next((some for some in (nodes, list(dict.fromkeys(nodes))) if some and count % len(some) == 0), None)


def recomputed_of(rows, graph, forward):
    """The nodes among the numbers `forward` of a graph that the rows recompute: a node for several equal ones if all of
    these are. Where XLA's module has other numbers of these than the graph, all are recomputed if most are; these rows
    are returned beside, with their nodes.

    returns    ({node}, [(name, shape, recomputed, of the module, nodes)])
    """
    places, found, lost = numbered(graph, forward), set(), []
    for name, shape, count, chosen in rows:
        nodes = places.get((name, tuple(shape)), [])
        known = fitting(nodes, count)
        if known:
            again = {number * len(known) // count for number in chosen}
            found |= {known[at] for at in again}.difference(
                known[at] for at in range(len(known)) if at not in again)
            continue
        found |= set(nodes) if 2 * len(chosen) >= count else set()
        if len(chosen) < count and name not in CHEAP and nodes:
            lost.append((name, shape, len(chosen), count, nodes))
    return found, lost


def warn_of_lost(lost):
    """Names the operators that are recomputed otherwise than planned."""
    for name, shape, chosen, count, nodes in lost:
        warnings.warn(f"the plan recomputes {chosen} of {count} operators {name} of shape {shape}, "
                      f"the step has {len(nodes)}: {'all' if 2 * chosen >= count else 'none'} are recomputed")


def saved_of(graph, forward, recomputed):
    """The forward nodes whose results the backward pass takes from the forward pass: those that the plan does not
    recompute, but for cheap ones that follow from arguments and saved values."""
    had, saved = set(graph.inputs), set()
    for k in forward:
        node = graph.nodes[k]
        if k in recomputed:
            continue
        if node.primitive.name not in CHEAP or not had.issuperset(numbers(node)):
            saved.add(k)
        had.update(node.outputs)
    return saved


class Derivative:
    """Results of a function and their tangents as one graph. Its calls name the saved values.

    graph      its inputs are the arrays, then the tangents of those that `active` numbers
    named      for each node of the graph, its values that get the name
    """

    def __init__(self, rows, function, primals, active, tangents):
        changed = []  # tangents of results that can change

        def differentiated(primals, tangents):
            def moved(*values):
                arrays = list(primals)
                for k, value in zip(active, values, strict=True):
                    arrays[k] = value
                return function(*arrays)

            results, changes = jax.jvp(moved, [primals[k] for k in active], tangents)
            changed[:] = [change for change in changes if change.dtype != jax.dtypes.float0]
            return results, list(changed)

        self.graph = Graph(jax.make_jaxpr(differentiated)(primals, tangents))
        self.count = len(self.graph.outputs) - len(changed)  # of the function's results
        needed = {value for value in self.graph.outputs[:self.count] if not isinstance(value, Constant)}
        forward = []
        for k in reversed(range(len(self.graph.nodes))):
            if not needed.isdisjoint(self.graph.nodes[k].outputs):
                forward.insert(0, k)
                needed.update(numbers(self.graph.nodes[k]))
        recomputed, lost = recomputed_of(rows, self.graph, forward)
        warn_of_lost(lost)
        saved = saved_of(self.graph, forward, recomputed)
        moving = set(self.graph.inputs[len(primals):])  # a scan gives results and tangents
        self.named = {}
        for k, node in enumerate(self.graph.nodes):
            depends = [not isinstance(value, Constant) and value in moving for value in node.inputs]
            found = depending_results(node.primitive.name, node.params, depends, len(node.outputs))
            moving.update(value for value, is_so in zip(node.outputs, found, strict=True) if is_so)
            self.named[k] = [value for value in node.outputs if k in saved and value not in moving]

    def __call__(self, arrays):
        """The results of the function, and a tangent for each of them."""
        values = dict(zip(self.graph.inputs, arrays, strict=True))
        for k, node in enumerate(self.graph.nodes):
            evaluate([node], values)
            values.update((value, checkpoint_name(values[value], NAME)) for value in self.named[k])
        found = operand_arrays(self.graph.outputs, values)
        changes = iter(found[self.count:])
        return found[:self.count], [next(changes) if jax.numpy.issubdtype(result.dtype, jax.numpy.inexact)
                                    else np.zeros(np.shape(result), jax.dtypes.float0) for result in found[:self.count]]


def checkpoint(document, function):
    """`function` under jax.checkpoint, which saves and recomputes the same values as the plan. Its results and
    gradients are those of `function`.

    document   the parsed output of `automap export --format jax`
    function   the function that the step differentiates, such as the loss: a function of trees of arrays, with
               the whole batch

    Without recomputation in the plan the function is returned as it is. Operators inside of a scan are recomputed.
    """
    rows = [row for stage in document.get("stages", []) for row in stage.get("recomputed") or []]
    if not rows:
        return function

    @functools.wraps(function)
    def checkpointed(*arguments, **keywords):
        leaves, structure = jax.tree.flatten((arguments, keywords))
        trees = []  # of the result

        def flat(*arrays):
            given, named = structure.unflatten(arrays)
            results, tree = jax.tree.flatten(function(*given, **named))
            trees.append(tree)
            return results

        whole = jax.custom_jvp(flat)

        @functools.partial(whole.defjvp, symbolic_zeros=True)
        def derivative(primals, tangents):
            active = [k for k, tangent in enumerate(tangents) if not isinstance(tangent, SymbolicZero)]
            moving = [tangents[k] for k in active]
            return Derivative(rows, flat, list(primals), active, moving)([*primals, *moving])

        policy = jax.checkpoint_policies.save_only_these_names(NAME)
        results = jax.checkpoint(lambda *arrays: whole(*arrays), policy=policy)(*leaves)
        return trees[-1].unflatten(results)

    return checkpointed
