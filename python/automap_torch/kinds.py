"""The kind of a loss, found in its trace: whether parts of the batch give addends of the loss of the whole batch.

    kind = LossKind(graph, doubled, count, mixing)  traces of a batch and of one with every example twice
    kind.is_sum, kind.why_whole

Values whose shapes differ between the traces have elements of each example. Others that depend on the batch are its
statistics. A statistic has a degree: twice the examples give 2^degree times its value. Sums over examples have
degree 1 and means 0. A loss that is linear in such sums is a mean over the batch if it has degree 0, and a sum if it
has degree 1. Any other loss needs the whole batch, such as the root of a mean, or a mean plus a sum.

Scalars that sum tensors of the batch alone, such as the number of targets, are counts. Ranks and micro-batches use
those of the whole batch (stages.py), so that linear values may be multiplied and divided by them. So they do for counts
with a limit or with a number added, such as max(count, 1).
"""

import operator as python_operator
from itertools import zip_longest

import torch
from torch._subclasses.fake_tensor import FakeTensor

from .examples import ALONG, LOSSES, SAME, VIEWS, is_pointwise, name_of, results_of
from .functions import place

PRODUCTS = {"mm", "bmm", "addmm", "baddbmm", "dot", "mv", "addmv"}  # sums, where they contract the examples
# Operators whose result is linear in one tensor, or in several of equal degrees.
LINEAR = SAME | VIEWS | {"neg", "permute", "transpose", "t", "expand", "unsqueeze", "squeeze", "select", "slice", "sum",
                         "mean", "cat", "stack", "add", "sub", "rsub", "unbind", "split", "where", "index", "gather"}
LIMITS = {"clamp", "clamp_min", "clamp_max", "maximum", "minimum"}
FILLS = {"full": 1, "new_full": 2, "full_like": 1, "fill": 1, "scalar_tensor": 0}  # the place of the number
NLL = {"nll_loss_forward", "nll_loss2d_forward"}
SUM = 2  # PyTorch's number of reduction="sum"
NOT_LINEAR = "it is not linear in a mean or a sum over the batch"
OF_SIZE = "it has a number of the batch's size"


def changes_sum(node, sums, constants):
    """Returns whether a node is a limit of one of `sums`, or this one and a number, such as max(count, 1)."""
    operands = node.all_input_nodes
    return (name_of(node) in LIMITS | {"add", "sub", "rsub"} and sum(value in sums for value in operands) == 1
            and all(value in sums or value in constants for value in operands))


class LossKind:
    """`is_sum`: the loss is a sum over the examples, not a mean. `why_whole`: why it is neither, as a clause, or
    None."""

    def __init__(self, graph, doubled, count, mixing):
        """`count`: of tensors in the batch, the last inputs of the graphs. `mixing`: the operators of `graph` that mix
        examples."""
        self.degrees, self.whys = {}, {}  # of values that depend on the batch; None: not linear
        self.free, self.of_examples, self.why_whole = set(), set(), None
        self.mixing, self.counted, self.sums = set(mixing), set(), set()  # values of counts; sums that are counts
        nodes = list(graph.graph.nodes)
        inputs = graph.graph.find_nodes(op="placeholder")
        self.free.update(inputs[len(inputs) - count:])
        for node, other in zip(nodes, doubled.graph.nodes, strict=True):
            grows = [value.shape for value in results_of(node)] != [value.shape for value in results_of(other)]
            if grows:
                self.of_examples.add(node)
            if node.op == "placeholder" and grows:
                self.degrees[node] = 0
            elif node.op == "get_attr":
                self.enter_constant(node, getattr(graph, node.target), getattr(doubled, other.target))
            elif node.op == "call_function":
                self.enter(node, other)
        loss = nodes[-1].args[0][0]
        degree = self.degrees.get(loss, 0)
        self.is_sum = degree == 1
        if degree not in (0, 1) and self.why_whole is None:
            self.why_whole = self.whys.get(loss) or "the loss is neither a mean nor a sum over the batch"

    def enter_constant(self, node, own, twice):
        """`twice` is the tensor in the trace of twice the examples, such as torch.tensor(len(x))."""
        self.free.add(node)
        if node in self.of_examples:
            self.degrees[node] = 0
        elif isinstance(own, FakeTensor) or torch.equal(own, twice):
            return
        elif torch.equal(2 * own, twice):
            self.degrees[node] = 1
        else:
            self.refuse(node, OF_SIZE)

    def refuse(self, node, problem):
        """Parts of the batch have another value at `node`, whatever reads it."""
        self.degrees[node] = None
        self.whys[node] = f"{name_of(node) or 'the loss'}{place(node)}: {problem}"
        self.why_whole = self.why_whole or self.whys[node]

    def enter(self, node, other):
        """`other` is the node in the trace of twice the examples."""
        if all(value in self.free for value in node.all_input_nodes):
            self.free.add(node)
        operands = [value for value in node.all_input_nodes if value in self.degrees]
        degree, is_of_size = 0, not operands and node not in self.of_examples
        unfit = next((value for value in operands if self.degrees[value] is None), None)
        problem = self.problem_of_examples(node, operands) if node in self.of_examples else None
        if problem:
            self.refuse(node, problem)
            return
        if unfit and node in self.of_examples:  # examples that depend on one another, or on a statistic of the batch
            if unfit in self.free and self.why_whole is None:
                self.why_whole = self.whys[unfit]
        elif unfit:
            degree, self.whys[node] = None, self.whys[unfit]
        elif node not in self.of_examples and not self.of_examples.isdisjoint(operands):
            degree, problem = self.of_reduction(node, operands)
        elif operands:
            degree, problem = self.of_function(node, operands)
        if degree is not None:
            with_numbers = degree_of_numbers(node, other, degree, self.of_examples)
            if with_numbers is None:
                self.refuse(node, OF_SIZE)
                return
            if is_of_size and with_numbers == 0:  # a constant, or a value of weights
                return
            degree = with_numbers
        elif problem and node in self.of_examples:
            self.refuse(node, problem)
            return
        self.degrees[node] = degree
        self.enter_count(node)
        if problem:
            self.whys[node] = f"{name_of(node) or 'the loss'}{place(node)}: {problem}"

    def problem_of_examples(self, node, operands):
        """Why a value with examples differs in parts of the batch, where the planner does not find that; None or a
        clause."""
        if node in self.mixing and name_of(node) in ALONG and (node in self.free or name_of(node) == "slice"):
            return "it mixes examples"
        divisors = node.args[1:2] if name_of(node) == "div" else ()
        if any(value in operands and value not in self.of_examples | self.free for value in divisors):
            return "it divides examples by a statistic of the batch"
        return None

    def enter_count(self, node):
        """Notes sums of the batch's tensors alone, and values of counts."""
        if node not in self.free or node in self.of_examples or results_of(node)[0].ndim:
            if not self.counted.isdisjoint(node.all_input_nodes):
                self.counted.add(node)
            return
        operands = node.all_input_nodes
        is_sum = name_of(node) == "sum" and self.counted.isdisjoint(operands)
        is_same = name_of(node) in SAME and not self.sums.isdisjoint(operands)
        if is_sum or is_same or self.changes_sum(node):
            self.sums.add(node)
        self.counted.add(node)

    def changes_sum(self, node):
        return changes_sum(node, self.sums, self.free - self.degrees.keys())

    def of_reduction(self, node, operands):
        """The degree of a statistic of values with examples; None with the problem."""
        name = name_of(node)
        if node in self.free and (name not in ("sum", "mean") or results_of(node)[0].ndim):
            return None, "it is a statistic of the batch's tensors, and the loss needs that of the whole batch"
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
        if self.changes_sum(node):
            return (1, None) if degrees == {1} else (None, NOT_LINEAR)
        if name in LINEAR:
            if degrees == {0} or len(degrees) == 1 and not (has_constant and name in ("add", "sub", "rsub", "cat",
                                                                                      "stack")):
                return degrees.pop(), None
            return None, "it adds a sum over the batch to a value that is none"
        if degrees == {0} and not is_statistic:
            return 0, None
        return None, NOT_LINEAR


def degree_of_numbers(node, other, degree, of_examples):
    """The degree with numbers that depend on the batch's size, as in `total / len(x)`; None where they give none.
    Integers of operators on values `of_examples` may be sizes."""
    name, is_function = name_of(node), is_pointwise(node)
    has_sizes = not is_function and not of_examples.isdisjoint([node, *node.all_input_nodes])
    pairs = [*zip_longest(node.args, other.args), *zip_longest(node.kwargs.values(), other.kwargs.values())]
    for at, (own, twice) in enumerate(pairs):
        if own == twice or not (isinstance(own, (int, float)) or isinstance(twice, (int, float))):
            continue
        if own is None or twice is None:  # one of them is the default
            return None
        is_fill = at == FILLS.get(name)
        if (is_fill or name in ("mul", "div")) and own in (2 * twice, twice / 2):
            degree += 1 if (own == twice / 2) != (name == "div" and at == 1) else -1
        elif is_fill or isinstance(own, float) or not has_sizes:
            return None
    return degree
