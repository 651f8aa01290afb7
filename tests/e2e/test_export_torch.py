"""Plans exported for PyTorch train there: `automap export --format dtensor` on ranks of the CPU, by gloo.

The reading code is the one that docs/commands.md shows: it is taken from there and run. An MLP and a GPT-2,
written here in PyTorch over the parameters of the modules, are trained from the committed state and data
with every parameter, state and batch distributed as the plan says; their losses must be those of one device,
which are committed too. Pipelines of two stages, cut between layers, train in torch.distributed.pipelining
under the schedule that the export names.

Run as `AUTOMAP=build/automap .venv-torch/bin/python tests/e2e/test_export_torch.py [MODEL ...]`.
"""
# labels: cpu e2e torch
# timeout: 600
# cost: 40
# python: torch

import functools
import json
import logging
import math
import os
import pathlib
import re
import subprocess
import sys
import tempfile

AUTOMAP = os.environ.get("AUTOMAP")

try:
    import torch
    import torch.distributed
    import torch.multiprocessing
    from torch.distributed.pipelining import PipelineStage
    from torch.distributed.pipelining.schedules import get_schedule_class
    from torch.distributed.tensor import DTensor, Replicate, Shard
    from torch.distributed.tensor.experimental import implicit_replication
    from torch.nn import functional

    import numpy as np
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)
if not AUTOMAP or not os.path.exists(AUTOMAP):
    print("skipped: no automap program")
    sys.exit(77)
if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
    print("skipped: torch was built without gloo")
    sys.exit(77)

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODELS = ROOT / "datasets" / "models"
TOLERANCE = 1e-5
BASELINE = ["--baseline"]
PIPELINE = ["--space", "pipeline", "--micro-batches", "4", *BASELINE]
TWO_AXES = ["--mesh", "data=2,model=2"]
FULL = os.environ.get("AUTOMAP_FULL") == "1"
STEPS = 20 if FULL else 2
SEQUENCE = "megatron_sequence"
PLANS = {  # numbers of ranks, and options of the search
    "data_parallel": ((2, 4) if FULL else (2,), [*BASELINE, "data_parallel"]),
    "megatron": ((4,), [*BASELINE, "megatron", *TWO_AXES]),
    SEQUENCE: ((4,), [*BASELINE, SEQUENCE, *TWO_AXES]),
    "zero1": ((2,), [*BASELINE, "zero1"]),
    "zero2": ((4,) if FULL else (2,), [*BASELINE, "zero2"]),
    "zero3": ((2, 4) if FULL else (2,), [*BASELINE, "zero3"]),
    "searched": ((2, 4) if FULL else (4,), ["--even"]),
    "searched 2x2": ((4,), ["--even", *TWO_AXES]),
    "random": ((4,) if FULL else (), ["--even", "--searcher", "random", "--seed", "1", *TWO_AXES]),  # DTensor is slow
    "micro-batches": ((2,), ["--even", *BASELINE, "data_parallel", "--micro-batches", "4"]),
}
PIPELINES = {
    "even pipeline": (4, [*PIPELINE, "even_pipeline", "--mesh", "data=2"]),
    "gpipe": (2, [*PIPELINE, "even_pipeline", "--mesh", "data=1", "--schedule", "gpipe"]),
    "megatron_3d": (4, [*PIPELINE, "megatron_3d", "--mesh", "data=1,model=2", "--even"]),
}


def documented():
    """The functions of the reading code in docs/commands.md."""
    text = (ROOT / "docs" / "commands.md").read_text()
    block = re.search(r"```python\n(.*?)```", text, re.DOTALL)[1]
    names = {}
    exec(compile(block, "docs/commands.md", "exec"), names)
    return names


def dense(w, name, x):
    y = x @ w[f"{name}.kernel"]
    return y + w[f"{name}.bias"] if f"{name}.bias" in w else y


def mean_cross_entropy(logits, labels):
    scores = functional.log_softmax(logits, -1)
    return -torch.gather(scores, -1, labels.long()[..., None]).mean()


def mlp_loss(w, x, y):
    for layer in range(2):
        x = torch.relu(dense(w, str(layer), x))
    return mean_cross_entropy(dense(w, "2", x), y)


def layer_norm(w, name, x):
    return functional.layer_norm(x, x.shape[-1:], w[f"{name}.scale"], w[f"{name}.bias"], 1e-6)


def attention(w, name, x, heads=8):
    def split(part):
        return dense(w, f"{name}.{part}", x).unflatten(-1, (heads, -1)).transpose(1, 2)

    query, key, value = map(split, ("query", "key", "value"))
    scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    mixed = torch.softmax(scores.masked_fill(hidden, -1e9), -1) @ value
    return dense(w, f"{name}.output", mixed.transpose(1, 2).flatten(2))


def gpt2_layer(w, name, x):
    x = x + attention(w, f"{name}.attention", layer_norm(w, f"{name}.attention_norm", x))
    inner = functional.gelu(dense(w, f"{name}.mlp_in", layer_norm(w, f"{name}.mlp_norm", x)), approximate="tanh")
    return x + dense(w, f"{name}.mlp_out", inner)


def gpt2(w, x):
    """The whole model, or one stage of a pipeline that is cut between layers."""
    if "token_table" in w:
        x = functional.embedding(x, w["token_table"]) + w["position_table"]
    for layer in range(2):
        if f"layers.{layer}.mlp_in.kernel" in w:
            x = gpt2_layer(w, f"layers.{layer}", x)
    return layer_norm(w, "norm", x) @ w["softmax_table"].t() if "softmax_table" in w else x


def gpt2_loss(w, tokens, targets):
    return mean_cross_entropy(gpt2(w, tokens), targets)


def whole(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


@torch.no_grad()
def sgd(state):
    for weight in state["params"].values():
        weight -= 0.25 * weight.grad


@torch.no_grad()
def adam(state):
    state["count"] += 1
    step = float(whole(state["count"]))
    rate = 0.001 * math.sqrt(1 - 0.999**step) / (1 - 0.9**step)
    for name, weight in state["params"].items():
        mean, variance = state["mean"][name], state["variance"][name]
        mean.mul_(0.9).add_(0.1 * weight.grad)
        variance.mul_(0.999).add_(0.001 * weight.grad * weight.grad)
        weight -= rate * mean / (variance.sqrt() + 1e-6)


TRAININGS = {"mlp_tiny": (mlp_loss, sgd), "gpt2_tiny": (gpt2_loss, adam)}
WITH_SEQUENCE = {"gpt2_tiny"}  # the others have no sequence dimension for the model axis to split


def tree(tensors):
    """{"state['params'][0]['bias']": ...} as {"params": {"0.bias": ...}}."""
    state = {}
    for path, tensor in tensors.items():
        _, part, *names = re.findall(r"\w+", path)
        if names:
            state.setdefault(part, {})[".".join(names)] = tensor
        else:
            state[part] = tensor
    state["params"] = {name: torch.nn.Parameter(weight) for name, weight in state["params"].items()}
    return state


class Place:
    """Distributes arrays by path as the one stage of an export says, and holds each against the plan."""

    def __init__(self, exported, plan):
        names = documented()
        self.stage, self.mesh = exported["stages"][0], names["meshes"](exported, "cpu")[0]
        self.distribute = names["distribute"]
        self.plan = {row["path"]: row["sharding"] for row in plan["parameters"]}
        axes = [(axis["axis"], axis["size"]) for axis in plan["stages"][0]["mesh"]]
        at = np.unravel_index(plan["stages"][0]["devices"].index(torch.distributed.get_rank()),
                              [size for _, size in axes])
        self.axes = {name: (number, size, at[number]) for number, (name, size) in enumerate(axes)}

    def __call__(self, values):
        placed = self.distribute(self.stage, self.mesh, values)
        assert placed.keys() == values.keys()
        for path, tensor in placed.items():
            part = values[path]
            for dimension, names in enumerate(self.plan[path]):
                for _, size, position in map(self.axes.get, names):
                    part = part.chunk(size, dimension)[position]
            assert torch.equal(tensor.to_local(), part), f"{path}: this rank has another part than in the plan"
            self.check(path, tensor)
        return placed

    def check(self, path, tensor):
        """That it is split as in the plan."""
        split = [[] for _ in self.plan[path]]
        for name, placement in zip(self.axes, tensor.placements, strict=True):
            assert placement.is_shard() or placement.is_replicate(), f"{path}: {placement}"
            if placement.is_shard():
                split[placement.dim].append(name)
        assert split == self.plan[path], f"{path}: {tensor.placements}, planned {self.plan[path]}"


def read(model, name):
    with np.load(MODELS / model / f"{name}.npz") as arrays:
        return {path: torch.from_numpy(array) for path, array in arrays.items()}


def batches(model):
    data = read(model, "data")
    for step in range(STEPS):
        yield {name: array[step % len(array)] for name, array in data.items()}


def clear_gradients(state):
    for weight in state["params"].values():
        weight.grad = None


def train(model, place, micro_batches=1):
    """Losses with all arrays placed by `place` ({path: tensor} -> {path: tensor}), and the state at the end."""
    loss_of, update = TRAININGS[model]
    placed = place(read(model, "state"))
    state, losses = tree(placed), []
    for batch in batches(model):
        total = 0.0
        for parts in zip(*(array.chunk(micro_batches) for array in batch.values()), strict=True):
            loss = loss_of(state["params"], *place(dict(zip(batch, parts, strict=True))).values()) / micro_batches
            loss.backward()
            total += float(whole(loss.detach()))
        update(state)
        clear_gradients(state)
        losses.append(total)
    return losses, placed


class Stage(torch.nn.Module):
    """A stage of a pipeline: plain tensors in and out, split over `data` as the batch is; within, DTensors."""

    def __init__(self, mesh, weights):
        super().__init__()
        self.weights, self.registered, self.mesh = weights, torch.nn.ParameterList(weights.values()), mesh
        self.placements = [Shard(0) if name == "data" else Replicate() for name in mesh.mesh_dim_names]

    def forward(self, x):
        x = gpt2(self.weights, DTensor.from_local(x, self.mesh, self.placements))
        return x.redistribute(self.mesh, self.placements).to_local()

    def loss(self, logits, targets):
        logits, targets = (DTensor.from_local(x, self.mesh, self.placements) for x in (logits, targets))
        return mean_cross_entropy(logits, targets).full_tensor()


class PipelineRank:
    """The part of a pipeline on a rank: its stage, with the stage's weights, under the schedule of the export."""

    def __init__(self, model, exported):
        names, rows = documented(), exported["stages"]
        meshes = names["meshes"](exported, "cpu")
        columns = zip(*(row["device_mesh"]["ranks"] for row in rows), strict=True)
        groups = {rank: group for ranks in columns for group in [torch.distributed.new_group(ranks)] for rank in ranks}
        self.number = next(k for k, mesh in enumerate(meshes) if mesh.get_coordinate() is not None)
        self.is_last = self.number == len(rows) - 1
        self.place = functools.partial(names["distribute"], rows[self.number], meshes[self.number])
        state = read(model, "state")
        self.state = tree(self.place(state))
        self.state.setdefault("count", state["state['count']"])  # one stage alone has it
        module = Stage(meshes[self.number], self.state["params"])
        stage = PipelineStage(module, self.number, len(rows), torch.device("cpu"),
                              group=groups[torch.distributed.get_rank()])
        kind = get_schedule_class(exported["schedule"])
        # Each stage is given a loss: without one it would have no backward pass.
        self.schedule = kind(stage, exported["n_microbatches"], loss_fn=module.loss)

    def step(self, batch):
        """The loss, on ranks of the last stage."""
        own = [tensor.to_local() for tensor in self.place(batch).values()]
        losses = []
        if self.is_last:
            self.schedule.step(target=own[0], losses=losses)
        else:
            self.schedule.step(*own)
        adam(self.state)
        clear_gradients(self.state)
        return float(sum(loss.detach() for loss in losses)) / len(losses) if self.is_last else None


def train_pipeline(model, exported):
    """Losses on ranks of the last stage, else None."""
    rank = PipelineRank(model, exported)
    losses = [rank.step(batch) for batch in batches(model)]
    return losses if rank.is_last else None


def committed(model):
    return json.loads((MODELS / model / "losses.json").read_text())["losses"][:STEPS]


def check(model, what, losses):
    worst = max(abs(a - b) / abs(b) for a, b in zip(losses, committed(model), strict=True))
    assert worst <= TOLERANCE, f"{model}, {what}: a loss is off by {worst:.1e}"
    return worst


def train_plan(model, what, plan, file):
    """Trains under one export; how far the losses are off."""
    exported = json.loads(file.read_text())
    if len(exported["stages"]) > 1:
        with implicit_replication():
            losses = train_pipeline(model, exported)
        return check(model, what, losses) if losses else None
    place = Place(exported, json.loads(plan.read_text()))
    with implicit_replication():  # attention's mask is a plain tensor
        losses, placed = train(model, place, exported["n_microbatches"])
    for path, tensor in placed.items():
        place.check(path, tensor)
    return check(model, what, losses)


def work(rank, folder, cases, world):
    """One rank: trains every case, and reports the results."""
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)  # gloo has no all-to-all of its own
    store = f"file://{folder}/store{world}"
    torch.distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=world)
    for model, what, *files in cases:
        worst = train_plan(model, what, *files)
        if rank == world - 1:
            print(f"{model:10} {what:18} on {world} ranks: losses off by {worst:.1e}", flush=True)
    torch.distributed.destroy_process_group()


def automap(*arguments):
    done = subprocess.run([AUTOMAP, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, f"automap {' '.join(map(str, arguments))}: {done.returncode} {done.stderr}"


def export(folder, model, what, options, devices, *rest):
    module = MODELS / model / "model.hlo.pb"
    plan, file = (folder / f"{model}.{what}.{devices}.{form}.json" for form in ("plan", "dtensor"))
    automap("search", module, "--cluster", f"nominal:{devices}", *options, "-o", plan, "--quiet")
    automap("export", plan, module, "--format", "dtensor", *rest, "-o", file)
    return model, what, plan, file


def plans_of(model):
    """All plans with AUTOMAP_FULL, else every other one: each plan with one of the two models."""
    first, step = (0, 1) if FULL else (0 if model in WITH_SEQUENCE else 1, 2)
    return [name for name in list(PLANS)[first::step] if name != SEQUENCE or model in WITH_SEQUENCE]


def run(world, folder, models):
    cases = [export(folder, model, what, PLANS[what][1], world)
             for model in models for what in plans_of(model) if world in PLANS[what][0]]
    if "gpt2_tiny" in models:
        cases += [export(folder, "gpt2_tiny", what, options, world, "--whole-layers")
                  for what, (ranks, options) in PIPELINES.items() if ranks == world]
    torch.multiprocessing.start_processes(work, (str(folder), cases, world), nprocs=world, start_method="fork")


def main():
    models = sys.argv[1:] or list(TRAININGS)
    for model in models:
        losses, _ = train(model, dict)
        worst = check(model, "one device", losses)
        print(f"{model:10} in PyTorch on one device: losses off by {worst:.1e}", flush=True)
    with tempfile.TemporaryDirectory() as name:
        for world in (2, 4):
            run(world, pathlib.Path(name), models)
    return 0


if __name__ == "__main__":
    sys.exit(main())
