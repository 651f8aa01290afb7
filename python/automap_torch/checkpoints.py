"""The state of a training under any plan as the state of one process: tensors by the names of PyTorch.

    state = training.state_dict(optimizer)        on every rank; rank 0 has the tensors, others get {}
    {"model": {"layers.0.weight": tensor},
     "optimizer": {"state": {"layers.0.weight": {"exp_avg": tensor}}, "groups": [{"lr": 0.1}]}}

state["model"] is that of model.state_dict() in one process. A training under another plan, or on another number of
ranks, continues from a state.
"""

import torch
from torch import distributed
from torch.distributed.tensor import DTensor, distribute_tensor

from .optimizers import listed


def gather(value):
    """A tensor with all elements, on the CPU; others as they are. All ranks of a DTensor's mesh call it."""
    if not isinstance(value, torch.Tensor):
        return value
    value = value.full_tensor() if isinstance(value, DTensor) else value
    return value.detach().cpu().clone()


def spread(value, like):
    """A tensor that every rank has, with the placements of `like`."""
    value = value.to(like.device, copy=True)
    if not isinstance(like, DTensor):
        return value
    return distribute_tensor(value, like.device_mesh, like.placements, src_data_rank=None)


def groups_of(optimizer):
    return [group for each in listed(optimizer) for group in each.param_groups]


class Checkpointed:
    """A training of `model`. ranks_of(name) gives the ranks that have a parameter or a buffer, in order."""

    def held(self):
        """Returns the tensors of model.state_dict() that this rank has, by key, and the first rank that has each."""
        names = {value: name for name, value in [*self.model.named_parameters(), *self.model.named_buffers()]}
        rank, found, first = distributed.get_rank(), {}, {}
        for key, value in self.model.state_dict(keep_vars=True).items():
            ranks = self.ranks_of(names.get(value, key))
            if rank in ranks:
                found[key], first[key] = value, ranks[0]
        return found, first

    def trained(self, optimizer):
        """The parameters of this rank that an optimizer has, by name, with the state of their optimizer."""
        own = {value: each.state for each in listed(optimizer) for group in each.param_groups
               for value in group["params"]}
        return {name: (value, own[value]) for name, value in self.named_parameters()
                if value in own and self.ranks_of(name)}

    @torch.no_grad()
    def state_dict(self, optimizer=None):
        """The state of the model, and of the optimizer of this rank's parameters(), or of a list of them, on rank 0; {}
        on others. Every rank calls it."""
        rank, (found, first) = distributed.get_rank(), self.held()
        model, state, groups = {}, {}, []
        for key, value in found.items():
            value = gather(value)
            if first[key] == rank:
                model[key] = value
        if optimizer is not None:
            for name, (value, own) in self.trained(optimizer).items():
                entry = {key: gather(part) for key, part in own.get(value, {}).items()}
                if entry and self.ranks_of(name)[0] == rank:
                    state[name] = entry
            groups = [{key: value for key, value in group.items() if key not in ("params", "param_names")}
                      for group in groups_of(optimizer)]
        parts = [None] * distributed.get_world_size() if rank == 0 else None
        distributed.gather_object((model, state), parts)
        if rank:
            return {}
        models, states = ({key: value for part in parts for key, value in part[k].items()} for k in range(2))
        whole = {"model": {key: models[key] for key in self.model.state_dict(keep_vars=True)}}
        return whole | ({"optimizer": {"state": states, "groups": groups}} if optimizer is not None else {})

    @torch.no_grad()
    def load_state_dict(self, state, optimizer=None):
        """Continues from a result of state_dict(), which every rank has, of any plan of this model."""
        found, _ = self.held()
        missing = [key for key in found if key not in state["model"]]
        if missing:
            raise ValueError(f"the state has no parameter {missing[0]} (expected a state of this model)")
        for key, value in found.items():
            value.copy_(spread(state["model"][key], value))
        if optimizer is None:
            return
        saved, groups = state["optimizer"], groups_of(optimizer)
        if len(saved["groups"]) != len(groups):
            raise ValueError(f"the state has {len(saved['groups'])} groups of parameters (expected "
                             f"{len(groups)}, those of the optimizer)")
        for group, settings in zip(groups, saved["groups"]):
            group.update(settings)
        for name, (value, own) in self.trained(optimizer).items():
            if name in saved["state"]:
                own[value] = {
                    key: part if not isinstance(part, torch.Tensor)
                    else spread(part, value) if part.shape == value.shape and value.ndim else part.clone()
                    for key, part in saved["state"][name].items()}
