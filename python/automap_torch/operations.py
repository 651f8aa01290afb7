"""Operators of a traced graph on tensors and DTensors.

An operator whose shards DTensor cannot compute runs once more on gathered operands.
"""

import operator as python_operator

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.experimental import register_sharding
from torch.utils._pytree import tree_leaves, tree_map

from .placements import gathered

ATEN = torch.ops.aten


def broadcast_in_dim(x, shape, dimensions):
    kept = set(dimensions)
    for d in range(len(shape)):
        if d not in kept:
            x = x.unsqueeze(d)
    return x.expand(shape)


def settled(value):
    """A DTensor without pending sums, which can pass to another stage."""
    if isinstance(value, DTensor) and any(placement.is_partial() for placement in value.placements):
        return value.redistribute(placements=[Replicate() if placement.is_partial() else placement
                                              for placement in value.placements])
    return value


class Settled(torch.autograd.Function):
    """A value whose pending sums end here, in both passes: DTensor has no way from one kind of them to another."""

    @staticmethod
    def forward(ctx, value):
        return settled(value)

    @staticmethod
    def backward(ctx, gradient):
        return settled(gradient)


def split_by_batch(x):
    """The input of a convolution, which DTensor splits by the batch alone. On meshes of two axes it differentiates
    convolutions by their input, too, or fails."""
    if not isinstance(x, DTensor):
        return x
    x = x if x.requires_grad else x.detach().requires_grad_()
    return x.redistribute(placements=placements_by_batch(x))


def placements_by_batch(x):
    """Returns the local elements of a DTensor that only the batch dimension splits."""
    return [placement if placement.is_shard(0) else Replicate() for placement in x.placements]


def on_shards(function, x, *settings, **options):
    """A function of one tensor without an operator of DTensor: on shards of the batch, whole in other dimensions."""
    placements = placements_by_batch(x)
    found = function(x.redistribute(placements=placements).to_local(), *settings, **options)
    if isinstance(found, torch.Tensor):
        return DTensor.from_local(found, x.device_mesh, placements, run_check=False)
    return type(found)(DTensor.from_local(part, x.device_mesh, placements, run_check=False) for part in found)


# Names of functions of one tensor that work in other dimensions than the first one, the batch.
WINDOWS = {"avg_pool1d", "avg_pool2d", "avg_pool3d", "adaptive_avg_pool1d", "adaptive_avg_pool2d",
           "adaptive_avg_pool3d", "max_pool3d", "max_pool3d_with_indices", "interpolate"}
ORDERS = {"cumsum", "sort", "topk", "argmax", "argmin"}


def is_by_example(name, x, arguments, options):
    """Returns whether on_shards gives the result of a function of this name."""
    if not isinstance(x, DTensor) or name not in WINDOWS | ORDERS:
        return False
    at = 2 if name == "topk" else 1
    dimension = options.get("dim", arguments[at] if len(arguments) > at else -1)
    if name in ORDERS:
        return isinstance(dimension, int) and x.ndim > 1 and dimension % x.ndim != 0
    return True


def convolution(x, kernel, bias, *settings):
    """On shards of the batch with whole kernels, whose gradients are sums of the own shard. DTensor's own gradient of a
    convolution fails where its input needs one and its bias or its kernel does not, as in a pipeline."""
    mesh = next(value.device_mesh for value in (x, kernel) if isinstance(value, DTensor))
    if not isinstance(x, DTensor):
        x = DTensor.from_local(x, mesh, [Replicate()] * mesh.ndim, run_check=False)
    placements = placements_by_batch(x)
    sums = [Partial() if placement.is_shard() else Replicate() for placement in placements]

    def local(value):
        return gathered(value).to_local(grad_placements=sums) if isinstance(value, DTensor) else value

    found = ATEN.convolution.default(x.redistribute(placements=placements).to_local(), local(kernel), local(bias),
                                     *settings)
    return DTensor.from_local(found, mesh, placements, run_check=False)


def dense(value):
    """A DTensor whose own shard is contiguous: DTensor looks at the strides of the whole tensor alone."""
    local = value.to_local()
    if local.is_contiguous():
        return value
    return DTensor.from_local(local.contiguous(), value.device_mesh, value.placements, run_check=False,
                              shape=value.shape, stride=value.stride())


class Reshape(torch.autograd.Function):
    """DTensor's own gradient of a view fails on shards that are not contiguous, or that are strided by other sizes."""

    @staticmethod
    def forward(ctx, value, shape):
        ctx.shape = value.shape
        return dense(value).reshape(shape)

    @staticmethod
    def backward(ctx, gradient):
        if isinstance(gradient, DTensor):
            gradient = compute(lambda value: dense(value).reshape(ctx.shape), [gradient], {})
        return gradient, None


def reshape(value, shape):
    return Reshape.apply(value, shape) if isinstance(value, DTensor) else value.reshape(shape)


def gather(x, dimension, index, **options):
    """DTensor masks the rows that a rank lacks by the index as given: the index has the shards of x in other
    dimensions first, and the sums of masked rows end here."""
    if isinstance(x, DTensor) and isinstance(index, DTensor):
        index = index.redistribute(placements=[
            placement if placement.is_shard() and placement.dim != dimension % x.ndim else Replicate()
            for placement in x.placements])
    return Settled.apply(ATEN.gather.default(x, dimension, index, **options))


@register_sharding(ATEN.log_sigmoid_backward.default)
def log_sigmoid_backward(gradient, x, buffer):
    """The placements of the result and of the operands, which DTensor lacks. On GPUs the buffer is empty."""
    rows = [Replicate(), *(Shard(d) for d in range(len(x.shape)) if buffer.shape == x.shape)]
    return [([placement], [placement] * 3) for placement in rows]


@register_sharding([ATEN.hardtanh_backward.default, ATEN.hardswish_backward.default,
                    ATEN.hardsigmoid_backward.default, ATEN.softshrink_backward.default,
                    ATEN.hardshrink_backward.default])
def activation_backward(gradient, x, *settings):
    """The placements of the result and of the operands, which DTensor lacks for these functions of one element."""
    rows = [Replicate(), *(Shard(d) for d in range(len(x.shape)))]
    return [([placement], [placement, placement, *[None] * len(settings)]) for placement in rows]


PRIMS = {"broadcast_in_dim": broadcast_in_dim, "div": torch.div,
         "sum": lambda x, dimensions, **_: x.sum(dimensions),
         "var": lambda x, dimensions, correction=1, **_: x.var(dimensions, correction=correction)}


def function_of(target):
    """The function that computes an operator of the graph on DTensors."""
    if target is python_operator.getitem:
        return target
    space, _, name = target._schema.name.partition("::")
    if space == "prims" and name in PRIMS:
        return PRIMS[name]
    if target is ATEN.convolution.default:
        return convolution
    if target is ATEN.gather.default:
        return gather
    if target is ATEN.embedding.default:  # sums of masked rows end here
        return lambda *arguments, **options: Settled.apply(target(*arguments, **options))
    if target in (ATEN.view.default, ATEN._unsafe_view.default):
        return reshape
    if target in (ATEN.sum.dim_IntList, ATEN.mean.dim):  # DTensor takes no dimensions for none, PyTorch for all
        return lambda x, dimensions, *rest, **options: target(x, dimensions or list(range(x.ndim)), *rest, **options)
    if target is ATEN.copy_.default:  # the new value of a buffer
        return lambda _, value: value
    return target


def compute(function, arguments, options):
    """An operator on DTensors and plain tensors; on whole operands where DTensor has no rule for their shards."""
    try:
        return function(*arguments, **options)
    except (NotImplementedError, RuntimeError):
        if not any(isinstance(value, DTensor) for value in tree_leaves(arguments)):
            raise
        return function(*tree_map(gathered, arguments), **options)


def value_of(graph, node, values, counts):
    """The result of an operator of the graph for the values of its operands. `counts` has the results of some."""
    if node.op == "get_attr":
        return getattr(graph.module, node.target)
    if node in counts:
        return counts[node]
    arguments, options = torch.fx.map_arg((node.args, node.kwargs), values.__getitem__)
    name = getattr(node.target, "_schema", None) and node.target._schema.name.split("::")[1]
    if arguments and is_by_example(name, arguments[0], arguments, options):
        return on_shards(node.target, *arguments, **options)
    return compute(function_of(node.target), arguments, options)
