"""The loss of a part of the batch as an addend of the loss of the whole batch.

Ranks and micro-batches have n parts of equal numbers of examples. A loss L(output, batch) is one of

    mean    the mean of the n losses
    sum     their sum, which is n times their mean
    masked  S(part) / c(part), where c counts targets, such as cross_entropy with ignore_index: the mean of the losses
            in which c is the mean of all parts' counts

kinds.py tells sums from means, and refuses others, such as losses that compare examples with one another. Counts are
found in the traced loss (stages.py); such a loss runs as its graph.

The loss is separated from the model by calling it with a stand-in that gives the model's outputs.
"""

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_flatten, tree_unflatten

from .decompositions import decompositions
from .export import plain_kernels
from .operations import value_of
from .stages import LossGraph, find_counts, mean_of_counts


class Called(Exception):
    """The loss calls the model once more, with these arguments."""


class StandIn:
    """Gives the outputs of the model's first calls."""

    def __init__(self, outputs):
        self.outputs, self.calls = outputs, 0

    def __call__(self, *arguments, **options):
        self.calls += 1
        if self.calls > len(self.outputs):
            raise Called(arguments, options)
        return self.outputs[self.calls - 1]


class PartOfLoss:
    """The loss of parts of a batch, whose mean over the parts is the loss of the whole batch."""

    def __init__(self, loss, is_sum):
        self.loss, self.is_sum, self.is_open, self.graph, self.counts = loss, is_sum, False, None, {}
        self.calls = 0  # of the model in the loss

    def value(self, model, batch, parts, plain):
        """Computes the loss of the part `batch`, whose tensors may be DTensors. `parts` are all parts as plain tensors,
        and `plain()` is the loss of this part as the user has written it."""
        if len(parts) == 1:
            return plain()
        factor = len(parts) if self.is_sum else 1
        if self.is_open and not self.counts:
            return plain() * factor
        outputs = self.outputs_of(model, batch, parts)
        if self.counts:
            return self.of_outputs(outputs, batch, parts) * factor
        return self.loss(StandIn(outputs), *batch) * factor

    def outputs_of(self, model, batch, parts):
        """All outputs of the model in the loss, which is traced at the first time."""
        outputs = []
        while not self.is_open or len(outputs) < self.calls:
            try:
                if not self.is_open:
                    self.trace(outputs, parts[0])
                    self.is_open, self.calls = True, len(outputs)
                    break
            except Called:
                pass
            try:
                self.loss(StandIn(outputs), *batch)
            except Called as call:
                arguments, options = call.args
                outputs.append(model(*arguments, **options))
        return outputs

    def trace(self, outputs, batch):
        """The graph of the loss of the outputs, and its counts."""
        leaves, structure = tree_flatten(outputs)
        shapes = FakeTensorMode(allow_non_fake_inputs=True)

        def fake(value):
            with shapes:
                return torch.empty(value.shape, dtype=value.dtype) if isinstance(value, torch.Tensor) else value

        def function(leaves, batch):
            return (self.loss(StandIn(tree_unflatten(leaves, structure)), *batch),)

        with plain_kernels(), torch.enable_grad():  # also in an evaluation
            graph = make_fx(functionalize(function), decomposition_table=decompositions(), tracing_mode="fake")(
                [fake(leaf) for leaf in leaves], tuple(map(fake, batch)))
        graph.graph.eliminate_dead_code()
        names = [("output", k) for k in range(len(leaves))] + [("batch", k) for k in range(len(batch))]
        self.graph = LossGraph(graph, names)
        self.counts = find_counts(self.graph)

    def of_outputs(self, outputs, batch, parts):
        """The loss by its graph, with the counts of the whole batch."""
        leaves, _ = tree_flatten(outputs)
        given = {"output": leaves, "batch": batch}
        values = {node: given[kind][k] for node, (kind, k) in self.graph.inputs.items()}
        counts = mean_of_counts(self.graph, self.counts, parts)
        for node in self.graph.operators:
            values[node] = value_of(self.graph, node, values, counts)
        return values[self.graph.loss]
