"""Puts a model on the ranks of a process group as a plan says.

    torch.distributed.init_process_group("gloo")
    plan = json.load(open("torch.json"))                    # automap export --format torch
    training = automap_torch.parallelize(model, loss, plan)
    optimizer = torch.optim.AdamW(training.parameters())    # as ever
    for batch in batches:
        value = training.step(*batch)                       # loss and gradients, on every rank
        optimizer.step()
        optimizer.zero_grad()

Every rank builds the model with the same weights and gets the whole batch; its shards are cut here. Parameters, their
gradients and the optimizer's state become DTensors with the placements of the plan. Weights that are split over the
batch's axes are gathered for a pass, as by ZeRO; over other axes DTensor's operators compute with shards and insert
the collectives. Where they cannot, all weights are gathered. Micro-batches add their gradients. Plans of one stage
alone.
"""

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.experimental import implicit_replication
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from .export import LossOf

FORMAT = "automap-dtensor-1"


def placement_of(text):
    return Shard(int(text[6:-1])) if text.startswith("Shard") else Replicate()


def mesh_of(stage, device):
    row = stage["device_mesh"]
    ranks = torch.tensor(row["ranks"]).reshape(row["shape"])
    return DeviceMesh(device, ranks, mesh_dim_names=tuple(row["dim_names"]))


class Training:
    """A model whose parameters are DTensors."""

    def __init__(self, model, loss, plan, device):
        if plan.get("format") != FORMAT:
            raise ValueError(f"expected format {FORMAT}, found {plan.get('format')}")
        if len(plan["stages"]) > 1:
            raise NotImplementedError("a plan of several stages (search --for torch --space single_stage finds others)")
        self.model, self.loss, self.count = model, loss, plan["n_microbatches"]
        self.mesh = mesh_of(plan["stages"][0], device)
        rows = {row["path"]: row for row in plan["stages"][0]["parameters"]}
        self.module, self.computes_whole = LossOf(model, loss), False
        self.has_passed = False
        self.data = [row for row in rows.values() if row["role"] == "data"]
        self.splits_batch = [any(row["placements"][d].startswith("Shard") for row in self.data)
                             for d in range(self.mesh.ndim)]
        for name, value in list(model.named_parameters()) + list(model.named_buffers()):
            if name not in rows:
                raise ValueError(f"the plan has no parameter {name} (expected a plan of this model's export)")
            self.replace(name, value, rows[name]["placements"])

    def replace(self, name, value, placements):
        """Makes a parameter, or a buffer, of the model a DTensor."""
        path, _, own = name.rpartition(".")
        module = self.model.get_submodule(path)
        placed = distribute_tensor(value.detach(), self.mesh, [placement_of(text) for text in placements])
        if own in module._parameters:
            module._parameters[own] = torch.nn.Parameter(placed, requires_grad=value.requires_grad)
        else:
            module._buffers[own] = placed

    def parameters(self):
        return self.model.parameters()

    def named_parameters(self):
        return self.model.named_parameters()

    def step(self, *batch):
        """Adds the gradients of a batch to the parameters; returns its loss on every rank."""
        total = 0.0
        for part in range(self.count):
            placed = self.place(batch, part)
            try:
                value = self.pass_over(placed)
            except (NotImplementedError, RuntimeError):
                if self.computes_whole or self.has_passed:
                    raise
                self.computes_whole = True  # DTensor cannot split an operator of the model so
                for parameter in self.model.parameters():
                    parameter.grad = None
                value = self.pass_over(placed)
            self.has_passed = True
            value = value.detach()
            total += float(value.full_tensor() if hasattr(value, "full_tensor") else value)
        return total

    def pass_over(self, batch):
        """The part of a micro-batch in the loss, with its gradients. Weights that the axes of the batch split are
        gathered for it."""
        values = {}
        for name, value in [*self.model.named_parameters(), *self.model.named_buffers()]:
            wanted = [Replicate() if self.computes_whole or is_batch else placement
                      for placement, is_batch in zip(value.placements, self.splits_batch, strict=True)]
            values[f"model.{name}"] = value.redistribute(self.mesh, wanted)
        with implicit_replication(), sdpa_kernel(SDPBackend.MATH):  # masks and positions are plain tensors
            value = functional_call(self.module, values, tuple(batch)) / self.count
            value = value.redistribute(self.mesh, [Replicate()] * self.mesh.ndim)
            value.backward()
        return value

    def place(self, batch, part):
        """Every so manyth example of a batch, on the ranks; the rows of the plan are in the order of the batch."""
        placed = []
        for value, row in zip(batch, self.data, strict=True):
            cut = value[part :: self.count] if self.count > 1 else value
            placed.append(distribute_tensor(cut, self.mesh, [placement_of(text) for text in row["placements"]]))
        return placed


def parallelize(model, loss, plan, device="cpu"):
    """The model under a plan of `automap export --format torch`, parsed; `loss` is that of `export`."""
    return Training(model, loss, plan, device)
