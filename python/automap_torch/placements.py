"""Meshes and placements of a plan as those of DTensor."""

import contextlib

import torch
from torch import distributed
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor


def placement_of(text):
    return Shard(int(text[6:-1])) if text.startswith("Shard") else Replicate()


def placements_of(row):
    return [placement_of(text) for text in row["placements"]]


def data_of(stages, count):
    """The placements of the tensors of a batch, in their order. An axis that does not divide the examples of one of
    `count` micro-batches, with those before it, splits the whole batch in the plan, and no micro-batch here."""
    rows = [row for stage in stages for row in stage["parameters"] if row["role"] == "data"]
    sizes, found = stages[0]["device_mesh"]["shape"], []
    for row in sorted(rows, key=lambda row: row["number"]):
        placements, left = placements_of(row), row["shape"][0] // count if row.get("shape") else 0
        for d, placement in enumerate(placements):
            if placement.is_shard(0) and left % sizes[d]:
                placements[d] = Replicate()
            elif placement.is_shard(0):
                left //= sizes[d]
        found.append(placements)
    return found


def weights_of(stage):
    """The placements of a stage's parameters and buffers by name. A weight that is whole where its optimizer state is
    split is kept like its state, and gathered for each pass (ZeRO 1 and 2)."""
    found, states = {}, {}
    for row in stage["parameters"]:
        if row["role"] == "optimizer":
            states[row["path"].partition(".")[2]] = placements_of(row)
        elif row["role"] != "data":
            found[row["path"]] = placements_of(row)
    for name, placements in found.items():
        taken = {placement.dim for placement in placements if placement.is_shard()}
        for d, state in enumerate(states.get(name, [])):
            if placements[d].is_replicate() and state.is_shard() and state.dim not in taken:
                placements[d] = state
    return found


def splits_batch(mesh, data):
    """Returns whether each axis of the mesh splits the batch."""
    return [any(placements[d].is_shard() for placements in data) for d in range(mesh.ndim)]


class Meshes:
    """The DeviceMesh of each description; equal descriptions share one. All ranks make all meshes in one order."""

    def __init__(self, device):
        self.device, self.made = device, {}

    def of(self, row):
        key = (tuple(row["ranks"]), tuple(row["shape"]), tuple(row["dim_names"]))
        if key not in self.made:
            ranks = torch.tensor(row["ranks"]).reshape(row["shape"])
            self.made[key] = DeviceMesh(self.device, ranks, mesh_dim_names=key[2])
        return self.made[key]


def place(model, value, mesh, placements):
    """Makes a parameter, or a buffer, of the model a DTensor in all modules that share it, and returns it."""
    placed = distribute_tensor(value.detach(), mesh, placements)
    if isinstance(value, torch.nn.Parameter):
        placed = torch.nn.Parameter(placed, requires_grad=value.requires_grad)
    for module in model.modules():
        for own in (module._parameters, module._buffers):
            own.update({name: placed for name, other in own.items() if other is value})
    return placed


def batch_dimensions(plan):
    """The dimension of the examples in each tensor of a batch, as export() found it; None: it has no examples."""
    rows = [row for stage in plan["stages"] for row in stage["parameters"] if row["role"] == "data"]
    return [row.get("batch_dimension", 0) for row in sorted(rows, key=lambda row: row["number"])]


def cut_micro_batch(batch, part, count, dimensions):
    """Every so manyth example of the tensors of a batch; all elements of tensors whose dimension of examples is
    None."""
    for value, d in zip(batch, dimensions, strict=True):
        if d is not None and value.shape[0] % count:
            raise ValueError(f"a batch of shape {list(value.shape)}: the plan has {count} micro-batches")
    return [value if d is None else value[part::count].contiguous()  # as the batch of the user, which may view it
            for value, d in zip(batch, dimensions, strict=True)]


def cut_batch(value, mesh, placements):
    """This rank's shard of a tensor that every rank has, as a DTensor, without communication."""
    local = value
    for d, placement in enumerate(placements):
        if placement.is_shard():
            size = mesh.size(d)
            if local.shape[placement.dim] % size:
                raise ValueError(f"a batch of shape {list(value.shape)}: {size} ranks do not divide dimension "
                                 f"{placement.dim}")
            local = local.chunk(size, placement.dim)[mesh.get_local_rank(d)]
    return DTensor.from_local(local.contiguous(), mesh, placements, run_check=False)


def kept_whole(stage):
    """The weights that are whole in a step, though they are kept like their split state (ZeRO 1 and 2)."""
    kept = weights_of(stage)
    return {row["path"] for row in stage["parameters"]
            if row["path"] in kept and row["role"] not in ("data", "optimizer")
            and placements_of(row) != kept[row["path"]]}


def for_pass(value, wanted):
    """A weight with the placements of a pass: itself where it has them already, so that its gradient is a sum of this
    rank alone until StepGradients.end()."""
    if list(value.placements) == wanted:
        return value
    return value.redistribute(value.device_mesh, wanted)


@contextlib.contextmanager
def evaluation_of(model):
    """Inside, the model is in its evaluation mode."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


class StepGradients:
    """The gradients of a step, summed over the ranks once. `leaves` has the weights that are gathered for the whole
    step, by the parameter that they stand for."""

    def __init__(self, parameters, leaves=None):
        self.parameters, self.leaves = list(parameters), leaves or {}
        self.earlier = [parameter.grad for parameter in self.parameters]
        for parameter in self.parameters:
            parameter.grad = None

    def end(self, count=1):
        """`count`: micro-batches whose mean the gradients are, where their losses are not divided by it."""
        for parameter, before in zip(self.parameters, self.earlier, strict=True):
            gradient = self.leaves.get(parameter, parameter).grad
            if gradient is not None and list(gradient.placements) != list(parameter.placements):
                gradient = gradient.redistribute(parameter.device_mesh, parameter.placements)
            if gradient is not None and count > 1:
                gradient = gradient / count
            parameter.grad = gradient if before is None else before if gradient is None else before + gradient


@torch.no_grad()
def clip_gradients(parameters, most, group=None):
    """Scales gradients, DTensors, so that the norm of all together is at most `most`; returns the norm before.
    The ranks of `group` have other parameters each; None: all ranks have the same ones."""
    parameters = [parameter for parameter in parameters if parameter.grad is not None]
    norm = torch.nn.utils.get_total_norm([parameter.grad for parameter in parameters])
    norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
    if group is not None:
        square = norm.double() ** 2
        distributed.all_reduce(square, group=group)
        norm = square.sqrt()
    if parameters:
        torch.nn.utils.clip_grads_with_norm_(parameters, most, norm)
    return float(norm)


def gathered(value):
    """A value on every rank: itself where it is whole already, so that its gradient may be a sum of this rank alone."""
    if not isinstance(value, DTensor):
        return value
    return for_pass(value, [Replicate()] * value.device_mesh.ndim)
