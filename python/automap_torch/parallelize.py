"""Puts a model on the ranks of a process group as a plan says.

    torch.distributed.init_process_group("gloo")
    plan = json.load(open("torch.json"))                    # automap export --format torch
    training = automap_torch.parallelize(model, loss, plan)
    optimizer = torch.optim.AdamW(training.parameters())    # as ever
    for batch in batches:
        value = training.step(*batch)                       # loss and gradients, on every rank
        optimizer.step()
        optimizer.zero_grad()
    value = training.evaluate(*batch)                       # loss alone, in the model's evaluation mode

Every rank builds the model with the same weights and gets the whole batch; its shards are cut here. Parameters, their
gradients and the optimizer's state become DTensors with the placements of the plan. There are three ways to train:

    several stages,      torch.distributed.pipelining on the graph of the loss (pipelines.py). Recomputation is by range
    recomputation,       of operators. In the graph a batch norm is sums over the whole batch; nn.BatchNorm2d would
    buffers, or mixed    normalise the shard of each rank. So would other operators that mix examples, which the plan
    examples             states (mixes_examples). A loss that reads parts of the model, such as a tied table, has its
                         graph, too: FSDP2 gives parts to their own modules alone. So has a model with scalars of the
                         batch, such as its own loss: ranks divide by the count of targets of the whole batch.
    ZeRO alone           FSDP2, fully_shard, where axes of the batch alone split weights; with copies of the shards
                         where some of these axes split no weight
    other plans          DTensor's operators compute with shards of weights and insert the collectives. Weights that
                         axes of the batch split are gathered for a pass. All weights are gathered for an operator that
                         DTensor cannot split.
"""

import dataclasses
import inspect
import math
import warnings

import torch
from torch import distributed
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_common import TrainingState
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.experimental import implicit_replication
from torch.nn._reduction import legacy_get_string
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from .checkpoints import Checkpointed
from .decompositions import by_channel, group_norm
from .export import KEY, LossOf, call_with, examples_first, find_kind, loss_of_examples, plain_kernels
from .functions import COMPILING, patched
from .losses import PartOfLoss
from .operations import Settled, is_by_example, on_shards, split_by_batch
from .operators import DTYPES
from .pipelines import GraphTraining
from .placements import (Meshes, StepGradients, batch_dimensions, clip_gradients, cut_batch, cut_micro_batch, data_of,
                         evaluation_of, for_pass, place, placements_of, splits_batch, weights_of)

FORMAT = "automap-dtensor-1"
TYPES = {name: dtype for dtype, name in DTYPES.items()}
CONTAINERS = torch.nn.ModuleList, torch.nn.ModuleDict  # they have no forward pass
CONVOLUTIONS = torch.nn.modules.conv._ConvNd


class Training(Checkpointed):
    """A model on one mesh."""

    def __init__(self, model, loss, plan, device, is_sum=False):
        """`is_sum`: the loss is a sum over the examples, not a mean."""
        stage = plan["stages"][0]
        self.model, self.loss, self.count, self.stage = model, loss, plan["n_microbatches"], stage
        self.mesh = Meshes(device).of(stage["device_mesh"])
        self.data, self.dimensions = data_of([stage], self.count), batch_dimensions(plan)
        self.splits_batch = splits_batch(self.mesh, self.data)
        self.part_of_loss = PartOfLoss(loss, is_sum)
        self.place(weights_of(stage))

    def parameters(self):
        return self.model.parameters()

    def named_parameters(self):
        return self.model.named_parameters()

    def ranks_of(self, _):
        return self.stage["device_mesh"]["ranks"]

    def clip_grad_norm_(self, most):
        """As torch.nn.utils.clip_grad_norm_ of the whole model; returns the norm before."""
        return clip_gradients(self.parameters(), most)

    def step(self, *batch):
        """Adds the gradients of a batch to the parameters; returns its loss on every rank."""
        return self.passes_over(batch)

    def evaluate(self, *batch):
        """Returns the loss of a batch on every rank, with the model in its evaluation mode, without gradients."""
        with evaluation_of(self.model), torch.no_grad():
            return self.passes_over(batch)

    def passes_over(self, batch):
        """The loss of a batch, and its gradients unless they are off."""
        cuts = [cut_micro_batch(batch, part, self.count, self.dimensions) for part in range(self.count)]
        return sum(self.pass_over(cut, part, cuts) for part, cut in enumerate(cuts))


def add_parts(module, arguments, output):
    """The output of an embedding whose rows are split, added up at once: DTensor forgets which rows a rank lacks
    after the first sum, and the model may read the output twice."""
    return Settled.apply(output) if hasattr(output, "placements") else output


MEANS = {torch.nn.functional.mse_loss, torch.nn.functional.smooth_l1_loss, torch.nn.functional.huber_loss,
         torch.nn.functional.soft_margin_loss, torch.nn.functional.binary_cross_entropy}


def mean_of_shards(function, call):
    """A loss of MEANS with its mean as an operator of its own: DTensor's gradient of the kernel divides by the number
    of elements of a shard, not by that of the whole tensor."""
    legacy = [call.arguments.pop(name, None) for name in ("size_average", "reduce")]
    if any(value is not None for value in legacy):
        call.arguments["reduction"] = legacy_get_string(*legacy, emit_warning=False)
    if call.arguments["reduction"] != "mean":
        return function(**call.arguments)
    call.arguments["reduction"] = "none"
    return function(**call.arguments).mean()


RECURRENT = {"gru", "lstm", "rnn_relu", "rnn_tanh"}


def steps_first(function, arguments):
    """A recurrent layer with batch_first=True as one without: DTensor cannot transpose in place, as the kernel does."""
    output, *states = function(arguments[0].transpose(0, 1), *arguments[1:-1], False)
    return output.transpose(0, 1), *states


class OnShards(TorchFunctionMode):
    """Computes on shards where DTensor has no operator, recurrent layers with their steps first, and group
    normalisation and means of losses by sums: DTensor gives PyTorch's kernels the sizes of the whole tensor, or of a
    shard."""

    def __torch_function__(self, function, types, arguments=(), options=None):
        options = options or {}
        if getattr(function, "__name__", "") in RECURRENT and isinstance(arguments[2], list) and arguments[-1]:
            return steps_first(function, arguments)
        if function is torch._weight_norm:  # DTensor has no gradient of the kernel
            direction, size, dimension = arguments
            return direction * (size / torch.norm_except_dim(direction, 2, dimension))
        if function is torch.prelu:  # nor of this one
            x, slope = arguments
            return torch.where(x > 0, x, x * (slope if x.ndim < 2 else by_channel(slope, x)))
        if arguments and is_by_example(getattr(function, "__name__", ""), arguments[0], arguments, options):
            return on_shards(function, *arguments, **options)
        if function is not torch.nn.functional.group_norm and function not in MEANS:
            return function(*arguments, **options)
        call = inspect.signature(function).bind(*arguments, **options)
        call.apply_defaults()
        if function in MEANS:
            return mean_of_shards(function, call)
        x, groups, weight, bias, epsilon = call.args
        return group_norm(x, weight, bias, x.shape[0], None, None, groups, epsilon)[0]


class TensorTraining(Training):
    """Parameters as DTensors, on which the model computes."""

    def place(self, placements):
        self.module, self.has_passed = LossOf(self.model, self.loss), False
        self.computes_whole = self.reads_whole = False
        convolutions = [module for module in self.model.modules() if isinstance(module, CONVOLUTIONS)]
        self.differentiates_batch = bool(convolutions)
        kernels = {id(value) for module in convolutions for value in module.parameters()}
        self.whole_names = {name for name, value in self.model.named_parameters() if id(value) in kernels}
        for name, value in [*self.model.named_parameters(), *self.model.named_buffers()]:
            place(self.model, value, self.mesh, placements[name])
        for module in self.model.modules():
            if isinstance(module, torch.nn.Embedding):
                module.register_forward_hook(add_parts)
        for module in convolutions:
            module.register_forward_pre_hook(lambda _, inputs: tuple(map(split_by_batch, inputs)))

    def step(self, *batch):
        gradients = StepGradients(self.model.parameters())
        value = self.passes_over(batch)
        gradients.end()
        return value

    def pass_over(self, batch, _, cuts):
        while True:
            whole = [Replicate()] * self.mesh.ndim
            placed = [cut_batch(value, self.mesh, whole if self.reads_whole else placements)
                      for value, placements in zip(batch, self.data, strict=True)]
            if self.differentiates_batch:  # else DTensor's gradient of a convolution fails on meshes of two axes
                placed = [value.requires_grad_() if value.is_floating_point() else value for value in placed]
            try:
                value = self.differentiate(placed, cuts)
                break
            except (AssertionError, NotImplementedError, RuntimeError, ValueError):
                if self.reads_whole or self.has_passed:
                    raise
                # DTensor cannot split an operator of the model so: whole weights, then the whole batch as well.
                self.reads_whole, self.computes_whole = self.computes_whole, True
                if self.reads_whole and self.mesh.get_rank() == 0:
                    warnings.warn("DTensor cannot split an operator of the model as the plan does: each rank computes "
                                  "the whole batch", stacklevel=4)
                for parameter in self.model.parameters():
                    parameter.grad = None
        self.has_passed = self.has_passed or torch.is_grad_enabled()
        return float(value.detach().full_tensor())

    def differentiate(self, batch, cuts):
        """The part of a micro-batch in the loss, with its gradients."""
        values = {}
        for name, value in [*self.model.named_parameters(), *self.model.named_buffers()]:
            is_whole = self.computes_whole or name in self.whole_names
            wanted = [Replicate() if is_whole or is_batch else placement
                      for placement, is_batch in zip(value.placements, self.splits_batch, strict=True)]
            values[name] = for_pass(value, wanted)

        def model(*arguments, **options):
            return call_with(self.model, values, arguments, options)

        def plain():
            return call_with(self.module, {f"model.{name}": value for name, value in values.items()}, tuple(batch))

        # Masks and positions are plain tensors.
        with implicit_replication(), plain_kernels(is_trace=False), OnShards():
            value = self.part_of_loss.value(model, batch, cuts, plain) / self.count
            value = value.redistribute(self.mesh, [Replicate()] * self.mesh.ndim)
            if torch.is_grad_enabled():
                value.backward()
        return value


def mesh_of_shards(mesh, placements, rows):
    """The mesh of FSDP2, and the number of ranks that hold a weight between its passes.

    The mesh has one axis of all ranks, or, where some axes split no weight, one axis of copies and one of the shards of
    a copy (hybrid sharded data parallelism). Axes that split the optimizer's state alone are before those that split
    weights as well: ranks of the latter are neighbours, and gather weights among themselves in the backward pass."""
    def splitting(found):
        return {d for row in found for d, placement in enumerate(row) if placement.is_shard()}

    splits = splitting(placements.values())
    inner = splitting(placements_of(row) for row in rows if row["role"] == "weight")
    copies = [d for d in range(mesh.ndim) if d not in splits and mesh.size(d) > 1]
    order = sorted(range(mesh.ndim), key=lambda d: (d not in copies, d in inner))
    count, holders = (math.prod(mesh.size(d) for d in axes) for axes in (copies, inner))
    if not copies:
        return DeviceMesh(mesh.device_type, mesh.mesh.permute(order).flatten(), mesh_dim_names=("shard",)), holders
    ranks = mesh.mesh.permute(order).reshape(count, -1)
    return DeviceMesh(mesh.device_type, ranks, mesh_dim_names=("copy", "shard")), holders


class ZeroTraining(Training):
    """Parameters sharded by FSDP2 over all ranks, or over the ranks of a copy. Each rank computes the mean loss of its
    part of the batch. Gradients are reduced in the last pass of a step, or in each one where the plan keeps them in
    shards (ZeRO 2 and 3); between copies in the last pass alone."""

    def place(self, placements):
        self.mesh, holders = mesh_of_shards(self.mesh, placements, self.stage["parameters"])
        dimensions, shards = {}, self.mesh.size(self.mesh.ndim - 1)
        for name, parameter in self.model.named_parameters():
            split = [placement.dim for placement in placements[name] if placement.is_shard()]
            is_even = len(split) == 1 and parameter.shape[split[0]] % shards == 0
            dimensions[parameter] = Shard(split[0] if is_even else 0)
        self.reduces_each = self.stage.get("sharded_gradients", False)
        self.gathers_each = any(text.startswith("Shard") for row in self.stage["parameters"] if row["role"] == "weight"
                        for text in row["placements"])
        options = {"mesh": self.mesh, "shard_placement_fn": dimensions.get,
                   "reshard_after_forward": holders if 1 < holders < shards else self.gathers_each}
        for module in [*units_of(self.model), self.model]:
            fully_shard(module, **options)
            if 1 < holders < shards:
                self.keep_in_groups(module._get_fsdp_state()._fsdp_param_group)

    def keep_in_groups(self, weights):
        """After the backward pass of each micro-batch but the last, the weights of an FSDP2 group stay with their
        `holders`, as after the forward pass. FSDP2 would take them back to shards over all ranks, and gather them
        from all ranks once more."""
        reshard = weights.reshard if weights else None

        def reshard_in_pass():
            state = weights._training_state
            if not self.is_last:
                weights._training_state = TrainingState.FORWARD
            reshard()
            weights._training_state = state

        if weights:
            weights.reshard = reshard_in_pass

    def evaluate(self, *batch):
        value = super().evaluate(*batch)
        for module in self.model.modules():  # else weights that FSDP2 gathered stay until a backward pass
            if isinstance(module, FSDPModule):
                module.reshard()
        return value

    def pass_over(self, batch, part, cuts):
        size, rank = self.mesh.size(), self.mesh.mesh.flatten().tolist().index(self.mesh.get_rank())
        for value in batch:
            if value.shape[0] % size:
                raise ValueError(f"a batch of shape {list(value.shape)}: {size} ranks do not divide it")
        is_last = self.is_last = part == self.count - 1
        self.model.set_requires_gradient_sync(is_last or self.reduces_each)
        self.model.set_requires_all_reduce(is_last)
        self.model.set_reshard_after_backward(is_last or self.gathers_each)
        self.model.set_is_last_backward(is_last)
        # Every so manyth example, as in micro-batches: `mixes_examples` of the plan is about such parts.
        shards = [[[value[at::size].contiguous() for value in cut] for at in range(size)] for cut in cuts]
        own = shards[part][rank]
        parts = [shard for cut in shards for shard in cut]
        value = self.part_of_loss.value(self.model, own, parts, lambda: self.loss(self.model, *own)) / self.count
        if torch.is_grad_enabled():
            value.backward()
        total = value.detach() / size
        distributed.all_reduce(total)  # a plan of one stage has all ranks
        return float(total)


def units_of(model):
    """The layers that are gathered one at a time: elements of lists of modules, which may be lists themselves."""
    lists = [module for module in model.modules() if isinstance(module, (*CONTAINERS, torch.nn.Sequential))]
    children = dict.fromkeys(child for module in reversed(lists) for child in module.children())  # inner ones first
    return [child for child in children
            if not isinstance(child, CONTAINERS) and any(True for _ in child.parameters())]


def is_zero(stage, count):
    """Returns whether the plan splits `count` micro-batches over all devices, and some weights with them."""
    sizes, data = stage["device_mesh"]["shape"], data_of([stage], count)
    has_split = any(placement.is_shard() for row in weights_of(stage).values() for placement in row)
    is_data = all(size == 1 or all(row[d].is_shard(0) for row in data) for d, size in enumerate(sizes))
    return has_split and is_data


class UsesOfTensors(TorchDispatchMode):
    """Notes whether an operator outside of the model's own call has one of the weights as an operand, whether one
    inside of it makes a scalar of the batch, and whether the model gives dataclasses or dictionaries of its own."""

    def __init__(self, model, weights, batch):
        super().__init__()
        self.weights, self.calls = {id(weight) for weight in weights}, 0
        self.is_outside = self.has_scalar = self.has_objects = False
        self.of_batch = {id(value): value for value in batch}
        self.hooks = [model.register_forward_pre_hook(self.enter), model.register_forward_hook(self.leave)]

    def enter(self, *_):
        self.calls += 1

    def leave(self, module, arguments, output):
        self.calls -= 1
        self.has_objects |= any(dataclasses.is_dataclass(value) or isinstance(value, dict)
                                for value in tree_leaves(output))

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        operands = tree_leaves((arguments, options))
        is_query = function.namespace == "prim"  # a device or a layout, not the elements
        self.is_outside |= not (self.calls or is_query) and any(id(value) in self.weights for value in operands)
        found = function(*arguments, **(options or {}))
        read = [value for value in operands if id(value) in self.of_batch]
        if read and not is_query:
            made = [value for value in tree_leaves(found) if isinstance(value, torch.Tensor)]
            self.of_batch.update((id(value), value) for value in made)
            self.has_scalar |= self.calls > 0 and any(value.ndim for value in read) and not all(
                value.ndim for value in made)
        return found


def data_rows(plan):
    """The rows of the tensors of a batch, in their order."""
    rows = [row for stage in plan["stages"] for row in stage["parameters"] if row["role"] == "data"]
    return sorted(rows, key=lambda row: row["number"])


def batch_of(model, plan):
    """An empty batch of the plan's shapes, the examples first."""
    device = next((value.device for value in model.parameters()), None)
    return [torch.empty(row["shape"], dtype=TYPES[row["dtype"]], device=device) for row in data_rows(plan)]


def needs_graph(model, loss, plan):
    """Returns whether operators of the loss read weights outside of the model's call, as a tied head reads a table, or
    the model computes scalars of the batch, such as its own loss, or gives objects of other types than tensors. The
    loss is computed on shapes alone, those of the plan's batch."""
    shapes, module = FakeTensorMode(allow_non_fake_inputs=True), LossOf(model, loss)
    with shapes:
        batch = batch_of(model, plan)
        values = {name: torch.empty_like(value) for name, value in module.named_parameters()}
    uses = UsesOfTensors(model, values.values(), batch)
    try:
        with torch.no_grad(), plain_kernels(is_trace=False), patched(COMPILING), shapes, uses:
            call_with(module, values, tuple(batch))
    finally:
        for hook in uses.hooks:
            hook.remove()
    return uses.is_outside or uses.has_scalar or uses.has_objects


def parallelize(model, loss, plan, device="cpu"):
    """The model under a plan of `automap export --format torch`, parsed; `loss` is that of export()."""
    if plan.get("format") != FORMAT:
        raise ValueError(f"expected format {FORMAT}, found {plan.get('format')}")
    ranks = {rank for stage in plan["stages"] for rank in stage["device_mesh"]["ranks"]}
    if len(ranks) != distributed.get_world_size():
        raise ValueError(f"the plan has {len(ranks)} devices (expected {distributed.get_world_size()}, the ranks)")
    names = {name for stage in plan["stages"] for name in weights_of(stage)}
    own = dict([*model.named_parameters(), *model.named_buffers()])
    missing = [f"the plan has no parameter {name}" for name in own if name not in names]
    missing += [f"the model has no parameter {name}" for name in sorted(names - {KEY}) if name not in own]
    if missing:
        raise ValueError(f"{missing[0]} (expected a plan of this model's export)")
    first = plan["stages"][0]
    is_graph = (len(plan["stages"]) > 1 or first.get("recompute") or first.get("pinned")
                or any(True for _ in model.buffers()))
    dimensions = batch_dimensions(plan)
    is_uniform = len({value.dtype for value in model.parameters()}) == 1  # as FSDP2 has it
    loss, has_zero = loss_of_examples(loss, dimensions), is_uniform and is_zero(first, plan["n_microbatches"])
    is_sum, whole = False, None
    if has_zero or plan["n_microbatches"] > 1:
        leading = [None if d is None else 0 for d in dimensions]
        is_sum, whole = find_kind(model, loss, batch_of(model, plan), leading)
    if whole and plan["n_microbatches"] > 1:
        raise ValueError(f"{whole}, which micro-batches do not allow (expected a plan of search --micro-batches 1, or "
                         "such values as a tensor of the batch)")
    is_graph = is_graph or whole or plan.get("mixes_examples") or (any(dimensions) and not has_zero)
    if is_graph or needs_graph(model, loss, plan):
        kind = GraphTraining
    else:
        kind = ZeroTraining if has_zero else TensorTraining
    training = kind(model, loss, plan, device, is_sum)
    if any(dimensions):
        step, evaluate = training.step, training.evaluate
        training.step = lambda *batch: step(*examples_first(batch, dimensions))
        training.evaluate = lambda *batch: evaluate(*examples_first(batch, dimensions))
    return training
