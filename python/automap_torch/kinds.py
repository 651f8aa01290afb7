"""The kind of a loss, found in its trace: whether parts of the batch give addends of the loss of the whole batch.

    kind = LossKind(graph, doubled, count)      traces of a batch and of one with every example twice
    kind.is_sum, kind.why_whole

Values whose shapes differ between the traces have elements of each example. Others that depend on the batch are its
statistics. A statistic has a degree: twice the examples give 2^degree times its value. Sums over examples have
degree 1 and means 0. A loss that is linear in such sums is a mean over the batch if it has degree 0, and a sum if it
has degree 1. Any other loss needs the whole batch, such as the root of a mean, or a mean plus a sum.

Scalars that sum tensors of the batch alone, such as the number of targets, are counts. Ranks and micro-batches use
those of the whole batch (stages.py), so that linear values may be multiplied and divided by them.
"""

import operator as python_operator

from .examples import LOSSES, SAME, VIEWS, is_pointwise, name_of, results_of
from .functions import place

PRODUCTS = {"mm", "bmm", "addmm", "baddbmm", "dot", "mv", "addmv"}  # sums, where they contract the examples
# Operators whose result is linear in one tensor, or in several of equal degrees.
LINEAR = SAME | VIEWS | {"neg", "permute", "transpose", "t", "expand", "unsqueeze", "squeeze", "select", "slice", "sum",
                         "mean", "cat", "stack", "add", "sub", "rsub", "unbind", "split", "where", "index", "gather"}
LIMITS = {"clamp", "clamp_min", "clamp_max", "maximum", "minimum"}  # of counts, such as max(count, 1)
NLL = {"nll_loss_forward", "nll_loss2d_forward"}
SUM = 2  # PyTorch's number of reduction="sum"
NOT_LINEAR = "it is not linear in a mean or a sum over the batch"


class LossKind:
    """`is_sum`: the loss is a sum over the examples, not a mean. `why_whole`: why it is neither, as a clause, or
    None."""

    def __init__(self, graph, doubled, count):
        """`count`: of tensors in the batch, the last inputs of the graphs."""
        self.degrees, self.whys = {}, {}  # of values that depend on the batch; None: not linear
        self.free, self.of_examples, self.why_whole = set(), set(), None
        nodes = list(graph.graph.nodes)
        inputs = [node for node in nodes if node.op == "placeholder"]
        self.free.update(inputs[len(inputs) - count:])
        for node, other in zip(nodes, doubled.graph.nodes, strict=True):
            grows = [value.shape for value in results_of(node)] != [value.shape for value in results_of(other)]
            if grows:
                self.of_examples.add(node)
            if node.op == "placeholder" and grows:
                self.degrees[node] = 0
            elif node.op in ("call_function", "get_attr"):
                self.enter(node, other)
        loss = nodes[-1].args[0][0]
        degree = self.degrees.get(loss, 0)
        self.is_sum = degree == 1
        if degree not in (0, 1) and self.why_whole is None:
            self.why_whole = self.whys.get(loss) or "the loss is neither a mean nor a sum over the batch"

    def enter(self, node, other):
        """`other` is the node in the trace of twice the examples."""
        if all(value in self.free for value in node.all_input_nodes):
            self.free.add(node)
        operands = [value for value in node.all_input_nodes if value in self.degrees]
        if not operands:
            return
        problem = None
        unfit = next((value for value in operands if self.degrees[value] is None), None)
        if unfit and node in self.of_examples:  # examples that depend on one another, or on a statistic of the batch
            degree = 0
            if unfit in self.free and self.why_whole is None:
                self.why_whole = self.whys[unfit]
        elif unfit:
            degree, self.whys[node] = None, self.whys[unfit]
        elif node not in self.of_examples and not self.of_examples.isdisjoint(operands):
            degree, problem = self.of_reduction(node, operands)
        else:
            degree, problem = self.of_function(node, operands)
        if degree is not None and is_pointwise(node):
            degree, problem = degree_of_numbers(node, other, degree)
        self.degrees[node] = degree
        if problem:
            self.whys[node] = f"{name_of(node) or 'the loss'}{place(node)}: {problem}"

    def of_reduction(self, node, operands):
        """The degree of a statistic of values with examples; None with the problem."""
        name = name_of(node)
        if name in NLL:
            weight = node.args[2]
            if weight is not None and weight not in self.free:
                return None, "its weights of classes are parts of the model (expected a constant)"
            return 0, None
        if name in LOSSES:
            at = 3 if name == "binary_cross_entropy" else 2
            reduction = node.args[at] if len(node.args) > at else node.kwargs.get("reduction", 1)
            return int(reduction == SUM), None
        if name not in PRODUCTS | {"sum", "mean"}:
            return None, "it is no sum over the examples, and the loss needs that of the whole batch"
        if node in self.free and results_of(node)[0].ndim:
            return None, "it is a statistic of the batch's tensors, and the loss needs that of the whole batch"
        degree, problem = self.of_function(node, operands)
        return (degree if degree is None else degree + (name != "mean")), problem

    def of_function(self, node, operands):
        name, degrees = name_of(node), {self.degrees[value] for value in operands}
        statistics = [value for value in operands if value not in self.of_examples and value not in self.free]
        is_statistic = node not in self.of_examples and bool(statistics)
        if node.target is python_operator.getitem:
            if name_of(node.args[0]) in NLL and node not in self.of_examples:
                return int(node.args[1] == 1 or node.args[0].args[3] == SUM), None
            return degrees.pop(), None
        if name in ("mul", "div") or name in PRODUCTS:
            factors = [value for value in node.args[-2:] if value in operands]
            is_below = name == "div" and node.args[1] in statistics
            if is_statistic and (is_below or len([value for value in factors if value in statistics]) > 1):
                return None, NOT_LINEAR
            return sum(-self.degrees[value] if name == "div" and value is node.args[1] else self.degrees[value]
                       for value in factors), None
        tensors = [value for value in node.all_input_nodes if results_of(value)]
        has_constant = len(operands) < len(tensors) or (name in ("add", "sub", "rsub") and any(
            isinstance(value, (int, float)) and value for value in node.args[:2]))
        if name in LINEAR:
            if degrees == {0} or len(degrees) == 1 and not (has_constant and name in ("add", "sub", "rsub", "cat",
                                                                                      "stack")):
                return degrees.pop(), None
            return None, "it adds a sum over the batch to a value that is none"
        if not is_statistic and name in LIMITS and all(value in self.free for value in operands):
            return max(degrees), None
        if degrees == {0} and not is_statistic:
            return 0, None
        return None, NOT_LINEAR


def degree_of_numbers(node, other, degree):
    """The degree with numbers that depend on the batch's size, as in `total / len(x)`; None with the problem."""
    for at, (own, twice) in enumerate(zip(node.args, other.args)):
        if not isinstance(own, (int, float)) or own == twice:
            continue
        if name_of(node) not in ("mul", "div") or twice != 2 * own:
            return None, "it has a number of the batch's size"
        degree += -1 if name_of(node) == "div" and at == 1 else 1
    return degree, None
