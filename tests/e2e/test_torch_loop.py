"""The loop of a user's training gives under a plan what it gives in one process.

Each turn evaluates the model, adds the gradients of two batches, clips them, and updates the weights, their moving
averages and the rate. The model computes otherwise in its evaluation mode, has frozen layers and two optimizers, whose
state is saved and loaded.

Run as `AUTOMAP=build/automap .venv-torch/bin/python tests/e2e/test_torch_loop.py`.
"""
# labels: cpu e2e torch
# timeout: 300
# cost: 10
# python: torch

import json
import logging
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "launch"))
from program import skip_where_missing, succeed

with skip_where_missing():
    import torch
    import torch.distributed
    import torch.export._trace  # noqa: F401, before processes are forked, each of which would import it
    import torch.multiprocessing
    from torch import nn
    from torch.distributed.tensor import DTensor
    from torch.nn import functional
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))
import automap_torch

TURNS, RANKS, TOLERANCE = 2, 2, 2e-5
STAGES = ["--stages", "2", "--micro-batches"]
# Model: plans.
CASES = {"layers": {"tensors": ["--tensor", "2"], "zero1": ["--baseline", "zero1", "--micro-batches", "2"],
                    "stages": [*STAGES, "2"]},
         "batches": {"stages": [*STAGES, "1"]}}


class Network(nn.Module):
    """Frozen layers, and others that compute otherwise in an evaluation."""

    def __init__(self, norm):
        super().__init__()
        self.first = nn.Sequential(nn.Linear(16, 32), nn.RMSNorm(32)).requires_grad_(False)
        self.up, self.norm, self.head = nn.Linear(32, 32), norm, nn.Linear(32, 8)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x):
        x = self.first(x)
        added = self.norm(torch.tanh(self.up(x)))
        return self.head(x + 0.5 * added if self.training else self.dropout(x) + added)


def loss(model, x, y):
    return functional.cross_entropy(model(x), y)


def make(name):
    """The model, and batches of which some targets are ignored; the same in every process."""
    torch.manual_seed(1)
    model = Network(nn.LayerNorm(32) if name == "layers" else nn.BatchNorm1d(32))
    batches = [(torch.randn(8, 16), torch.randint(0, 8, (8,))) for _ in range(2 * TURNS)]
    for k, (_, y) in enumerate(batches):
        y[:k] = -100
    return model, batches


def optimizers_of(parameters):
    """One for matrices, one for vectors. A stage may have none of them, which optimizers allow in a group."""
    return [torch.optim.SGD([{"params": [value for value in parameters if (value.ndim > 1) == is_matrix]}],
                            lr=rate, momentum=0.9) for is_matrix, rate in ((True, 0.1), (False, 0.2))]


def train(parameters, batches, step, evaluate, clip, updates):
    """Returns the losses and norms of a training, and the averages of its parameters."""
    found, schedules = [], [torch.optim.lr_scheduler.StepLR(update, 1, 0.5) for update in updates]
    own = nn.ParameterList(parameters)
    averages = AveragedModel(own, multi_avg_fn=get_ema_multi_avg_fn(0.5))
    for turn in range(TURNS):
        found += [evaluate(*batches[-1]), step(*batches[2 * turn]), step(*batches[2 * turn + 1]), float(clip(0.5))]
        for update, schedule in zip(updates, schedules, strict=True):
            update.step()
            update.zero_grad()
            schedule.step()
        averages.update_parameters(own)
    return [*found, evaluate(*batches[-1])], list(averages.module.parameters())


def train_alone(_, name, folder):
    torch.set_num_threads(1)
    model, batches = make(name)
    updates = optimizers_of(list(model.parameters()))
    automap_torch.export(model, loss, updates, batches[0], folder)

    def step(*batch):
        value = loss(model, *batch)
        value.backward()
        return value.item()

    def evaluate(*batch):
        model.eval()
        value = loss(model, *batch).item()
        model.train()
        return value

    found, averages = train(list(model.parameters()), batches, step, evaluate,
                            lambda most: nn.utils.clip_grad_norm_(model.parameters(), most), updates)
    names = [key for key, _ in model.named_parameters()]
    torch.save((found, dict(zip(names, averages, strict=True))), folder / "alone.pt")


def check_state(training, updates, file):
    """New optimizers that load the state of others have it."""
    state = training.state_dict(updates)
    if state:
        torch.save(state, file)
    torch.distributed.barrier()
    new = optimizers_of(list(training.parameters()))
    training.load_state_dict(torch.load(file), new)
    for update, other in zip(updates, new, strict=True):
        assert update.param_groups[0]["lr"] == other.param_groups[0]["lr"]
        assert update.state.keys() == other.state.keys()
        for value, own in update.state.items():
            before, after = own["momentum_buffer"], other.state[value]["momentum_buffer"]
            assert torch.equal(before.to_local(), after.to_local()) and before is not after


def train_rank(rank, name, plan, folder):
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/{plan}.store", rank=rank,
                                         world_size=RANKS)
    model, batches = make(name)
    training = automap_torch.parallelize(model, loss, json.loads((folder / "torch.json").read_text()))
    parameters = list(training.parameters())
    updates = optimizers_of(parameters)
    found, averages = train(parameters, batches, training.step, training.evaluate, training.clip_grad_norm_, updates)
    wanted, wanted_averages = torch.load(folder / "alone.pt", weights_only=False)
    worst = max(abs(a - b) / abs(b) for a, b in zip(found, wanted, strict=True))
    assert worst <= TOLERANCE, f"{name} under {plan}: a loss or a norm is off by {worst:.1e}: {found}, {wanted}"
    for (key, _), value in zip(training.named_parameters(), averages, strict=True):
        if key in wanted_averages:
            value = value.full_tensor() if isinstance(value, DTensor) else value
            torch.testing.assert_close(value, wanted_averages[key], atol=1e-5, rtol=1e-5, msg=f"the average of {key}")
    assert all(module.training for module in model.modules())
    check_state(training, updates, folder / f"{plan}.pt")
    torch.distributed.destroy_process_group()


def main():
    for name, plans in CASES.items():
        with tempfile.TemporaryDirectory() as path:
            folder = pathlib.Path(path)
            torch.multiprocessing.start_processes(train_alone, (name, folder), nprocs=1, start_method="fork")
            for plan, options in plans.items():
                succeed("search", folder / "model.hlo", "--cluster", f"nominal:{RANKS}", "--for", "torch", "--quiet",
                        *options, "-o", folder / "plan.json")
                succeed("export", folder / "plan.json", folder / "model.hlo", "--format", "torch", "-o",
                        folder / "torch.json")
                torch.multiprocessing.start_processes(train_rank, (name, plan, folder), nprocs=RANKS,
                                                      start_method="fork")
                print(f"{name}, {plan}: {RANKS} ranks train as one process", flush=True)


if __name__ == "__main__":
    main()
