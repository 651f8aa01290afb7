"""Trains the graph of a model's loss on DTensors, in the stages of a plan, with torch.distributed.pipelining.

Each rank holds the weights of its own stage, or of its chunks, as DTensors on the mesh of the stage. The first step
traces the loss of one micro-batch and cuts it (stages.py). A stage runs its part of the graph on DTensors, and DTensors
pass between stages. The schedule is GPipe, 1F1B or interleaved 1F1B, as the plan says. Ranges that the plan recomputes
run under activation checkpointing, which keeps the values that the plan saves. Counts of targets are those of
the whole batch. Gradients are summed over the ranks once in a step, but for weights that are gathered for each pass
(ZeRO 3). A value that the plan pins is resharded where its operator computes it.
"""

import copy
import functools

import torch
from torch import distributed
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, get_schedule_class
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.experimental import implicit_replication
from torch.utils.checkpoint import (CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts,
                                    noop_context_fn)

from .checkpoints import Checkpointed
from .operations import settled, value_of
from .placements import (Meshes, StepGradients, batch_dimensions, clip_gradients, cut_batch, cut_micro_batch, data_of,
                         evaluation_of, for_pass, kept_whole, place, placements_of, splits_batch, weights_of)
from .stages import cut, find_counts, mean_of_counts, trace_loss

class Segment:
    """Operators of a part that run together. One checkpoint recomputes them in the backward pass, but for the results
    of those in `saved`; None: nothing is recomputed."""

    def __init__(self, saved=None):
        self.operators, self.saved, self.is_saving = [], saved, False

    def run(self, body, arguments):
        """body(*arguments), which calls enter() before each operator."""
        if self.saved is None:
            return body(*arguments)
        contexts = noop_context_fn
        if self.saved:
            contexts = functools.partial(create_selective_checkpoint_contexts, self.policy)
        return checkpoint(body, *arguments, use_reentrant=False, context_fn=contexts)

    def enter(self, node):
        self.is_saving = self.saved is not None and node in self.saved

    def policy(self, *_, **__):
        return CheckpointPolicy.MUST_SAVE if self.is_saving else CheckpointPolicy.PREFER_RECOMPUTE


def segments_of(part, recomputed, saved):
    """`recomputed` has pairs of names, [begin, end); `saved` the names of operators whose values are kept."""
    begins, ends = ({name for name in names} for names in zip(*recomputed)) if recomputed else (set(), set())
    segments = []
    for node in part.operators:
        if node.name in begins:
            segments.append(Segment(set()))
        elif not segments or (node.name in ends and segments[-1].saved is not None):
            segments.append(Segment())
        segments[-1].operators.append(node)
        if segments[-1].saved is not None and node.name in saved:
            segments[-1].saved.add(node)
    return segments


class Stage(torch.nn.Module):
    """One part of the graph with its weights: forward(*given, batch_0=..., batch_1=...) gives its results."""

    def __init__(self, graph, part, row, mesh, values, data, is_last):
        super().__init__()
        self.graph, self.part, self.mesh, self.data, self.is_last = graph, part, mesh, data, is_last
        self.splits_batch = splits_batch(mesh, data)
        self.counts = {}  # values of the whole batch that replace those of a micro-batch
        self.leaves = {}
        self.changed = {}  # new values of buffers by name, of each micro-batch
        recomputed = [(entry["begins"]["op_name"], entry["ends"]["op_name"]) for entry in row["recompute"]]
        self.segments = segments_of(part, recomputed, {entry["op_name"] for entry in row["saved"]})
        self.names = {}
        for number, (name, value) in enumerate(values.items()):
            self.names[name] = f"value_{number}"
            if isinstance(value, torch.nn.Parameter):
                self.register_parameter(self.names[name], value)
            else:
                self.register_buffer(self.names[name], value)
        self.pinned = {pin["op_name"]: pin for pin in row.get("pinned", [])}
        whole = kept_whole(row)
        self.kept_whole = [name for name in self.names if name in whole]  # every rank gathers them in this order

    def input(self, node, batch):
        kind, name = self.graph.inputs[node]
        if kind == "batch":
            return cut_batch(batch[f"batch_{name}"], self.mesh, self.data[name])
        value = getattr(self, self.names[name])
        return self.leaves[value] if value in self.leaves else for_pass(value, self.placements_in_pass(value))

    def placements_in_pass(self, value):
        return [Replicate() if is_batch else placement
                for placement, is_batch in zip(value.placements, self.splits_batch, strict=True)]

    def gather_for_step(self):
        """Gathers the weights that all passes of a step use whole."""
        self.leaves = {}
        for name in self.kept_whole:
            value = getattr(self, self.names[name])
            wanted = self.placements_in_pass(value)
            if list(value.placements) != wanted:
                self.leaves[value] = value.detach().redistribute(self.mesh, wanted).requires_grad_(value.requires_grad)
        return self.leaves

    def forward(self, *given, **batch):
        values = dict(zip(self.part.given, map(Contiguous.apply, given)))
        values.update((node, self.input(node, batch)) for node in self.part.inputs)
        position = 0
        for segment in self.segments:
            self.run(segment, values)
            position += len(segment.operators)
            for node in [node for node in values if self.part.last_use.get(node, -1) < position]:
                del values[node]
        self.keep_buffers(values)
        results = tuple(Contiguous.apply(settled(values[node])) for node in self.part.results)
        return results[0] if self.is_last else results

    def run(self, segment, values):
        """Adds the results of a segment that are used after it."""
        operators = segment.operators
        own = set(operators)
        needed = [node for node in operators if any(user not in own for user in node.users)]
        inputs = list(dict.fromkeys(node for operator in operators for node in operator.all_input_nodes
                                    if node not in own))

        def body(*arguments):
            local = dict(zip(inputs, arguments))
            for node in operators:
                segment.enter(node)
                local[node] = self.in_place(node, value_of(self.graph, node, local, self.counts))
            return tuple(local[node] for node in needed)

        arguments = [values[node] for node in inputs]
        values.update(zip(needed, segment.run(body, arguments)))

    def in_place(self, node, value):
        """The value of an operator with the sharding that a pin gives it."""
        pin = self.pinned.get(node.name)
        if pin is None or not isinstance(value, torch.Tensor):
            return value
        if value.ndim != pin["rank"]:
            raise ValueError(f"the pin of {node.name} has {pin['rank']} dimensions (expected {value.ndim})")
        if not isinstance(value, DTensor):  # of constants alone: each rank has it
            value = DTensor.from_local(value, self.mesh, [Replicate()] * self.mesh.ndim, run_check=False)
        return value.redistribute(self.mesh, placements_of(pin))

    @torch.no_grad()
    def keep_buffers(self, values):
        """Keeps the new values of buffers until change_buffers(): all micro-batches read the old ones."""
        for name, node in self.part.buffers.items():
            value = values[node]
            if isinstance(value, DTensor):
                value = value.redistribute(self.mesh, getattr(self, self.names[name]).placements)
            self.changed.setdefault(name, []).append(value.clone())

    @torch.no_grad()
    def change_buffers(self, count):
        """Gives each buffer its new value, the mean over the `count` micro-batches of a step. Before them the schedule
        has passed values of no micro-batch, in its first step."""
        for name, found in self.changed.items():
            found = found[-count:]
            is_float = found[0].is_floating_point() and len(found) > 1
            getattr(self, self.names[name]).copy_(sum(found) / len(found) if is_float else found[-1])
        self.changed = {}


def without_operators(row):
    """The row of a stage without operators of the plan's graph, which another graph of the model does not have."""
    return row | {"begins": {"op_name": None}, "recompute": [], "saved": [], "pinned": []}


class FilledStage(PipelineStage):
    """Finds the shapes of values with zeros for integers that a stage gets. PipelineStage has uninitialised memory,
    with indices out of range."""

    def _to_tensor(self, value):
        found = super()._to_tensor(value)
        if not (isinstance(value, torch.Tensor) or found.is_floating_point() or found.is_complex()):
            local = found.to_local() if isinstance(found, DTensor) else found
            local.zero_()
        return found


class Contiguous(torch.autograd.Function):
    """A value at the border of a stage: dense, and so is its gradient."""

    @staticmethod
    def forward(ctx, value):
        return value.contiguous()

    @staticmethod
    def backward(ctx, gradient):
        return settled(gradient).contiguous()


class GraphTraining(Checkpointed):
    """A model whose graph trains on DTensors: its stages on ranks of their own, or one stage on all ranks.
    parameters() are those of this rank."""

    def __init__(self, model, loss, plan, device, is_sum=False):
        self.model, self.loss, self.plan, self.device = model, loss, plan, torch.device(device)
        self.count, self.rows = plan["n_microbatches"], plan["stages"]
        meshes = Meshes(device)
        self.meshes = [meshes.of(row["device_mesh"]) for row in self.rows]
        self.ranks = [row["device_mesh"]["ranks"] for row in self.rows]
        rank = distributed.get_rank()
        self.mine = [part for part, ranks in enumerate(self.ranks) if rank in ranks]
        self.group = self.make_group(rank)
        self.data = data_of(self.rows, self.count)
        self.unused = torch.nn.Parameter(torch.zeros((), device=self.device))
        self.owners, self.values = {}, {part: {} for part in self.mine}
        self.placements = [weights_of(row) for row in self.rows]
        owners = {name: part for part, placed in enumerate(self.placements) for name in placed}
        for name, value in [*model.named_parameters()]:
            part = self.owners[name] = owners[name]
            if part in self.mine:
                self.values[part][name] = place(model, value, self.meshes[part], self.placements[part][name])
        self.modules, self.schedule, self.graph, self.counts = [], None, None, {}
        self.shapes = None  # of the batch of the first step
        self.divisor = 1 if is_sum else self.count  # of the sum of the micro-batches' losses
        self.evaluation = None  # the stages of the model in its evaluation mode

    def make_group(self, rank):
        """Ranks at one place of every stage's mesh send to one another."""
        own = None
        for place_in_mesh in range(len(self.ranks[0])):
            ranks = list(dict.fromkeys(row[place_in_mesh] for row in self.ranks))
            if ranks != sorted(ranks):
                raise NotImplementedError(f"stages on ranks {ranks}: torch.distributed.pipelining has them in order")
            group = distributed.new_group(ranks)
            own = group if rank in ranks else own
        return own

    def named_parameters(self):
        """Returns the parameters of this rank by name. A stage without weights that need a gradient has a constant
        besides, as optimizers need one."""
        own = [(name, value) for part in self.mine for name, value in self.values[part].items()
               if isinstance(value, torch.nn.Parameter)]
        return own if any(value.requires_grad for _, value in own) else [*own, ("unused", self.unused)]

    def parameters(self):
        return [value for _, value in self.named_parameters()]

    def ranks_of(self, name):
        """The ranks of the stage that has a parameter or a buffer; all for a buffer that no stage has changed."""
        if name == "unused":
            return []
        return self.ranks[self.owners[name]] if name in self.owners else range(distributed.get_world_size())

    def clip_grad_norm_(self, most):
        """As torch.nn.utils.clip_grad_norm_ of the whole model, with the stages of other ranks; returns the norm
        before."""
        return clip_gradients(self.parameters(), most, self.group)

    def open(self, batch):
        """Traces a micro-batch, and makes the stages of this rank and the schedule."""
        graph = self.graph = trace_loss(self.model, self.loss, batch)
        self.counts = find_counts(graph) if self.count > 1 else {}
        rows = self.rows if self.model.training else list(map(without_operators, self.rows))
        parts = cut(graph, [row["begins"]["op_name"] for row in rows], self.owners)
        count = len(parts)
        self.place_buffers(graph, parts)
        self.modules = [Stage(graph, parts[part], rows[part], self.meshes[part], self.values[part], self.data,
                              is_last=part == count - 1) for part in self.mine]
        if count == 1:
            return
        stages = [FilledStage(module, part, count, self.device, group=self.group,
                              get_mesh=lambda *_, mesh=module.mesh: mesh)
                  for part, module in zip(self.mine, self.modules)]
        kind = get_schedule_class(self.plan["schedule"])
        self.schedule = kind(stages if issubclass(kind, PipelineScheduleMulti) else stages[0], self.count,
                             loss_fn=lambda value, _: value.full_tensor(), scale_grads=False)

    def place_buffers(self, graph, parts):
        """Buffers are where the graph reads or changes them."""
        placements = {name: row for placed in self.placements for name, row in placed.items()}
        self.owners |= {name: part for part, own in enumerate(parts) for name in own.buffers}
        for part in self.mine:
            read = [graph.inputs[node] for node in parts[part].inputs]
            needed = {*parts[part].buffers, *(name for kind, name in read if kind == "buffer")}
            for name in sorted(needed - self.values[part].keys()):
                self.values[part][name] = place(self.model, self.model.get_buffer(name), self.meshes[part],
                                                placements[name])

    def step(self, *batch):
        """Adds the gradients of a batch to the parameters of this rank; returns its loss on every rank."""
        named = self.prepare(batch)
        leaves = {}
        for module in self.modules:
            leaves |= module.gather_for_step()
        gradients = StepGradients(self.parameters(), leaves)
        with implicit_replication():  # masks and positions are plain tensors, in the backward pass as well
            losses = self.run_stages(named) if self.schedule else self.run_alone(named)
        gradients.end(self.divisor if self.schedule else 1)
        for module in self.modules:
            module.leaves = {}
            module.change_buffers(self.count)
        return self.total_of(losses)

    def evaluate(self, *batch):
        """Returns the loss of a batch on every rank, with the model in its evaluation mode, without gradients. The
        graph of this mode has other operators, which are cut by the weights of the stages."""
        if self.evaluation is None:
            self.evaluation = copy.copy(self)
            self.evaluation.modules, self.evaluation.schedule = [], None
        own = self.evaluation
        with evaluation_of(self.model):
            named = own.prepare(batch)
        with implicit_replication(), torch.no_grad():
            losses = own.run_stages(named) if own.schedule else own.run_alone(named)
        for module in own.modules:
            module.changed = {}
        return self.total_of(losses)

    def prepare(self, batch):
        """The micro-batches of a batch, whose counts the stages get. The first batch gives the graph."""
        dimensions = batch_dimensions(self.plan)
        cuts = [cut_micro_batch(batch, part, self.count, dimensions) for part in range(self.count)]
        shapes = [list(value.shape) for value in batch]
        if not self.modules:
            self.open(cuts[0])
            self.shapes = shapes
        if shapes != self.shapes:
            raise ValueError(f"a batch of shapes {shapes} (expected {self.shapes}, those of the first step's graph)")
        counts = mean_of_counts(self.graph, self.counts, cuts)
        for module in self.modules:
            module.counts = counts
        return [{f"batch_{k}": value for k, value in enumerate(values)} for values in cuts]

    def total_of(self, losses):
        """The loss of a batch on every rank, from those of its micro-batches on the ranks of the last stage."""
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        if losses:
            total += sum(float(value) for value in losses) / self.divisor
        distributed.broadcast(total, self.ranks[-1][0])
        return float(total)

    def run_alone(self, batches):
        losses = []
        for batch in batches:
            value = self.modules[0](**batch).full_tensor()
            if torch.is_grad_enabled():
                (value / self.divisor).backward()
            losses.append(value.detach())
        return losses

    def run_stages(self, batches):
        """The losses of the micro-batches on the ranks of the last stage; none on others."""
        losses, options = [], {}
        if 0 in self.mine:
            options["arg_mbs"] = [() for _ in batches]
        if len(self.rows) - 1 in self.mine:  # the graph has the loss, and ignores the target
            options.update(target_mbs=[batch["batch_0"] for batch in batches], losses=losses)
        run = self.schedule.step if torch.is_grad_enabled() else self.schedule.eval
        run(kwarg_mbs=batches, return_outputs=False, **options)
        return [value.detach() for value in losses]
