"""The loss of a part of the batch as an addend of the loss of the whole batch.

Ranks and micro-batches have n parts of equal numbers of examples. A loss L(output, batch) is one of

    mean    the mean of the n losses
    sum     their sum, which is n times their mean
    masked  S(part) / c(part), where c counts targets, such as cross_entropy with ignore_index: the mean of the losses
            in which c is the mean of all parts' counts

L of a batch with every example twice is L for a mean and 2 L for a sum. Another loss, such as one that compares
examples with one another, is refused. Counts are found in the traced loss (stages.py); such a loss runs as its
graph.

The loss is separated from the model by calling it with a stand-in that gives the model's outputs. A loss that reads
parts of the model, such as `model.head.weight`, has to be a mean over the batch.
"""

import math
import warnings

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from .decompositions import decompositions
from .export import LossOf, call_with, plain_kernels
from .operations import value_of
from .stages import LossGraph, find_counts, mean_of_counts

READS_PARTS = "the loss reads parts of the model: it has to be a mean over the batch"


class Called(Exception):
    """The loss calls the model once more, with these arguments."""


class StandIn:
    """Gives the outputs of the model's first calls, and the parts of `model`, if there is one."""

    def __init__(self, outputs):
        self.outputs, self.calls, self.model = outputs, 0, None

    def __getattr__(self, name):
        return getattr(self.__dict__["model"], name)

    def __getitem__(self, key):
        return self.model[key]

    def __call__(self, *arguments, **options):
        self.calls += 1
        if self.calls > len(self.outputs):
            raise Called(arguments, options)
        return self.outputs[self.calls - 1]


def next_output(model, loss, outputs, batch):
    """The model's output at the first call of the loss that `outputs` does not answer."""
    try:
        loss(StandIn(outputs), *batch)
    except Called as call:
        arguments, options = call.args
        return model(*arguments, **options)
    raise AssertionError("the loss does not call the model")


def outputs_of(model, loss, batch, find_kind):
    """All outputs of the model in the loss, and the result of find_kind(outputs), which raises Called without some."""
    outputs = []
    while True:
        try:
            return outputs, find_kind(outputs)
        except Called:
            outputs.append(next_output(model, loss, outputs, batch))


def twice(value, dimension=0, count=None):
    """A value with its examples repeated: along `dimension` if that has `count` of them, else along the first one."""
    if not isinstance(value, torch.Tensor) or not value.ndim:
        return value
    is_there = value.ndim > dimension and value.shape[dimension] == count
    return torch.cat([value, value], dimension if is_there else 0)


@torch.no_grad()
def is_sum(loss, outputs, batches):
    """Returns whether the loss is a sum over the examples; otherwise it is a mean. Random outputs of these shapes
    decide, with the first of the batches that has a loss: normal ones, or, where the loss takes none of these, as a
    logarithm of probabilities, ones between 0 and 1."""
    for draw in (torch.randn, torch.rand):
        def random(value, draw=draw):
            is_float = isinstance(value, torch.Tensor) and value.is_floating_point()
            return draw(value.shape, dtype=value.dtype) if is_float else value

        try:
            found = kind_of(loss, tree_map(random, outputs), batches)
        except NotImplementedError:
            raise
        except (RuntimeError, ValueError):  # elements that the loss refuses
            if draw is torch.rand:
                raise
            continue
        if found:
            return found == "sum"
    return False


def kind_of(loss, outputs, batches):
    """"sum" or "mean", with the first of the batches that has a finite loss for these outputs; None: no batch has."""
    for batch in batches:
        once = float(loss(StandIn(outputs), *batch))
        dimensions = getattr(loss, "dimensions", None) or [0] * len(batch)
        count = next(len(value) for value, d in zip(batch, dimensions, strict=True) if d is not None)
        doubled = [value if d is None else twice(value) for value, d in zip(batch, dimensions, strict=True)]
        both = math.nan
        for dimension in dict.fromkeys((max(d or 0 for d in dimensions), 0)):  # the outputs may have it elsewhere
            try:
                both = float(loss(StandIn(tree_map(lambda value, d=dimension: twice(value, d, count), outputs)),
                                  *doubled))
            except (IndexError, RuntimeError, ValueError):  # sizes that do not agree
                continue
            for factor, kind in ((1, "mean"), (2, "sum")):
                if abs(both - factor * once) <= 1e-3 * max(abs(once), abs(both)):
                    return kind
        if math.isfinite(once):  # else no example of the part has a target
            raise NotImplementedError(f"the loss is neither a mean nor a sum over the batch: it is {once:g}, and "
                                      f"{both:g} with every example twice")
    return None


def is_sum_of(model, loss, batch):
    """Returns whether the loss is a sum over the examples, found from shapes alone, before the model runs."""
    shapes = FakeTensorMode(allow_non_fake_inputs=True)

    def fake(value):
        with shapes:
            return torch.empty(value.shape, dtype=value.dtype)

    values = {name: fake(value) for name, value in [*model.named_parameters(), *model.named_buffers()]}

    def fake_model(*arguments, **options):
        with shapes:
            return call_with(model, values, arguments, options)

    for function in (loss, with_parts(model, loss)):
        try:
            with plain_kernels():
                return outputs_of(fake_model, function, tuple(map(fake, batch)),
                                  lambda outputs, function=function: is_sum(function, outputs, [batch]))[1]
        except (AttributeError, TypeError):  # the stand-in has no parts
            continue
    warnings.warn(READS_PARTS, stacklevel=2)
    return False


def with_parts(model, loss):
    """The loss of stand-ins that have the parts of the model, with one random number as all elements of a parameter."""
    values = {f"model.{name}": torch.rand((), dtype=value.dtype).expand(value.shape) if value.is_floating_point()
              else torch.zeros((), dtype=value.dtype).expand(value.shape)
              for name, value in [*model.named_parameters(), *model.named_buffers()]}

    def loss_of(stand_in, *batch):
        def own(parts, *batch):
            stand_in.model = parts
            return loss(stand_in, *batch)

        return call_with(LossOf(model, own), values, batch)

    loss_of.dimensions = getattr(loss, "dimensions", None)
    return loss_of


class PartOfLoss:
    """The loss of parts of a batch, whose mean over the parts is the loss of the whole batch."""

    def __init__(self, loss):
        self.loss, self.is_open, self.graph, self.counts = loss, False, None, []
        self.calls, self.factor = 0, 1  # calls of the model in the loss

    def value(self, model, batch, parts, plain):
        """Computes the loss of the part `batch`, whose tensors may be DTensors. `parts` are all parts as plain tensors,
        and `plain()` is the loss of this part as the user has written it."""
        if len(parts) == 1:
            return plain()
        if not self.is_open:
            value = self.first_value(model, batch, parts, plain)
            self.is_open = True
            return value
        if not self.counts:
            return plain() * self.factor
        outputs = []
        while len(outputs) < self.calls:
            outputs.append(next_output(model, self.loss, outputs, batch))
        return self.of_outputs(outputs, batch, parts)

    def first_value(self, model, batch, parts, plain):
        """Finds the kind of the loss besides."""
        try:
            outputs, adds = outputs_of(model, self.loss, batch, lambda outputs: is_sum(self.loss, outputs, parts))
        except (AttributeError, TypeError):  # the stand-in has no parts
            warnings.warn(READS_PARTS, stacklevel=2)
            return plain()
        self.calls, self.factor = len(outputs), len(parts) if adds else 1
        self.trace(outputs, parts[0])
        if self.counts:
            return self.of_outputs(outputs, batch, parts)
        return self.loss(StandIn(outputs), *batch) * self.factor

    def trace(self, outputs, batch):
        """The graph of the loss of the outputs, and its counts."""
        leaves, structure = tree_flatten(outputs)
        shapes = FakeTensorMode(allow_non_fake_inputs=True)

        def fake(value):
            with shapes:
                return torch.empty(value.shape, dtype=value.dtype) if isinstance(value, torch.Tensor) else value

        def function(leaves, batch):
            return (self.loss(StandIn(tree_unflatten(leaves, structure)), *batch),)

        with plain_kernels():
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
