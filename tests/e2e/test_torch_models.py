"""Models, losses and optimizers as users write them: `automap run` and ranks under a plan have PyTorch's losses.

Values without a gradient, frozen parameters, groups of parameters, modules that share a block, dictionaries of
modules, tensors that are no buffers, views of the batch, indices of inner dimensions, and losses whose outputs have a
range. What a trace cannot have is refused by name and line, and plans of micro-batches where a constant has the
batch's size.

Run as `AUTOMAP=build/automap .venv-torch/bin/python tests/e2e/test_torch_models.py`.
"""
# labels: cpu e2e torch
# timeout: 300
# cost: 20
# python: torch

import contextlib
import json
import logging
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "launch"))
from clusters import write_cluster
from program import automap, skip_where_missing, succeed

with skip_where_missing():
    import torch
    import torch.distributed
    import torch.multiprocessing
    from torch import nn
    from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.fsdp._fully_shard import _fsdp_param_group
    from torch.nn import functional
    from torch.utils.checkpoint import checkpoint

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))
import automap_torch
from automap_torch.export import find_batch, find_kind, plain_kernels
from automap_torch.operations import value_of
from automap_torch.stages import find_counts, mean_of_counts, trace_loss

STEPS, TOLERANCE = 3, 2e-5


def turned(x, turns):
    """Pairs of features as complex numbers that are rotated, as positions of Llama."""
    return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2))) * turns).flatten(-2)


class Nested(nn.Module):
    """Blocks that are dictionaries of modules, a first layer that is frozen, and complex numbers."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(16, 16).requires_grad_(False)
        self.blocks = nn.ModuleList(nn.ModuleDict({"norm": nn.LayerNorm(16), "up": nn.Linear(16, 16)})
                                    for _ in range(2))
        self.slope, self.head = nn.PReLU(16), nn.utils.parametrizations.weight_norm(nn.Linear(16, 8))
        self.scale = torch.linspace(0.5, 2, 16)  # no buffer
        self.turns = torch.polar(torch.ones(8), torch.arange(8.0))

    def forward(self, x):
        x = turned(self.first(x) * self.scale, self.turns)
        for block in self.blocks:
            x = x + self.slope(block["up"](block["norm"](x)))
        return self.head(functional.relu6(x))


WEIGHT = torch.linspace(0.5, 2, 8)


def many_losses(model, x, y, labels):
    """Means, one of them over weighted targets."""
    found = model(x)
    shares = torch.sigmoid(found)
    return (functional.gaussian_nll_loss(found, y, functional.softplus(found), full=True)
            + functional.multi_margin_loss(found, labels.clamp(min=0), p=2, weight=WEIGHT)
            + functional.cross_entropy(found.view(-1, 8), labels.view(-1), WEIGHT, label_smoothing=0.1)
            + functional.multilabel_soft_margin_loss(found, (y > 0).float(), WEIGHT)
            + functional.binary_cross_entropy(shares, y.sigmoid(), WEIGHT)
            - torch.log(functional.softmax(found, -1)).mean())


class Written(nn.Module):
    """Writes into parts of tensors, other edges and sizes of images, and a compiled layer."""

    def __init__(self):
        super().__init__()
        self.image = nn.Conv2d(1, 2, 3, padding=1, padding_mode="circular")
        self.edges, self.pair = nn.ReplicationPad2d((1, 0, 2, 1)), nn.Bilinear(8, 4, 8)
        self.head = torch.compile(nn.Linear(8, 8), backend="eager")

    def forward(self, x):
        images = functional.interpolate(self.image(x.view(-1, 1, 4, 4)), size=(6, 7), mode="bicubic")
        rows = self.edges(images).mean(1)  # [examples, 9, 8]
        cache = torch.zeros(*rows.shape[:2], 16)
        cache[:, 1:, ::2] = rows[:, :-1]
        cache[:, 0, 1::2] = torch.cumprod(rows[:, 0].sigmoid(), -1)
        cache[:, :, 3].masked_fill_(rows[:, :, 0] > 0, 0.5)
        cache[cache > 2] = 2.0
        chosen = cache.index_select(2, torch.arange(15, -1, -2))
        corner = torch.diagonal(cache[:, :, :6], 2, 1, 2)
        return self.head(self.pair(chosen.mean(1), corner))


class Wrapped(nn.Module):
    """A part has the name `model`; a cache is empty at first."""

    def __init__(self):
        super().__init__()
        self.model = Written()

    def forward(self, x):
        return self.model(torch.cat([torch.tensor([]), x], -1))


def root_of_mean(model, x, y):
    """Neither a mean nor a sum over the batch."""
    return functional.mse_loss(model(x), y).sqrt()


def mask_of(words):
    """Places that see one another, which each example has anew, as in Hugging Face's models."""
    rows, own = torch.arange(len(words))[:, None], torch.arange(words.shape[1])
    places = own[None].expand(len(words), -1)
    parts = (torch.diff(places, prepend=places[:, :1] - 1) != 1).cumsum(-1)[rows, own]
    return (own <= own[:, None]) & (parts[:, :, None] == parts[:, None])


class SharedBlocks(nn.Module):
    """One block that is in a list twice, pairs of features by their places, rows in another order, a filter of
    frequencies, an order that later stages need, and kinds of words and a mask that are equal for all examples."""

    def __init__(self):
        super().__init__()
        block = nn.Sequential(nn.Linear(32, 32), nn.GELU())
        self.table, self.blocks = nn.Embedding(24, 32), nn.ModuleList([block, block])
        self.head, self.kinds = nn.Linear(28, 24), nn.Embedding(2, 32)
        self.register_buffer("kind", torch.arange(8)[None] % 2)
        self.register_buffer("order", torch.tensor([3, 1, 0, 2, -1, -2, -4, -3]))
        self.register_buffer("turns", torch.polar(torch.ones(8, 16), torch.randn(8, 16)), persistent=False)
        self.filter = nn.Parameter(torch.randn(5, 32, dtype=torch.complex64))

    def forward(self, words):
        x = self.table(words)
        order = x.mean(2).argsort(1)[:, :, None].expand(-1, -1, 28)
        x = x + self.kinds(self.kind.expand(len(words), -1))
        for block in self.blocks:
            x = x + block(x)
        scores = (x @ x.mT / 32).masked_fill(~mask_of(words)[:, None].flatten(0, 1), -torch.inf)
        x = x + scores.softmax(-1) @ x
        x = turned(x, self.turns) + torch.fft.irfft(torch.fft.rfft(x, dim=1) * self.filter, n=8, dim=1)
        x = x[:, self.order]
        x = x.view(*x.shape[:2], 8, 4)
        rows, columns = torch.tril_indices(8, 8, -1)
        return self.head((x @ x.mT)[:, :, rows, columns].gather(1, order))


def classify(model, words, y):
    return functional.cross_entropy(model(words).view(-1, 24), y.view(-1), reduction="sum")


class Stopped(nn.Module):
    """Sequences first, with values that have no gradient, a counter of steps, a running mean, a checkpoint, and slices
    of a list of parameters."""

    def __init__(self):
        super().__init__()
        self.weights = nn.ParameterList(torch.randn(shape) / 4 for shape in ((16, 24), (24,), (24, 16), (16,)))
        self.teacher, self.head = nn.Linear(16, 16), nn.Linear(16, 8)
        self.register_buffer("steps", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(16))

    def forward(self, x):
        up, bias = self.weights[:2]
        hidden = checkpoint(torch.tanh, torch.einsum("nbf,fg->nbg", x, up) + bias, use_reentrant=False)
        found = functional.linear(hidden, self.weights[2].T, self.weights[3])
        with torch.no_grad():
            wanted = self.teacher(x).tanh_()
            self.steps += 1
            self.mean.lerp_(hidden[..., :16].mean((0, 1)), 0.5)
        scores = self.head(found) / self.steps + self.head(found.detach()) - self.head(found.data / 2)
        return scores, functional.mse_loss(found, wanted)


def classify_places(model, x, labels):
    found, distance = model(x)
    return functional.cross_entropy(found.flatten(0, 1), labels.flatten()) + distance


def groups(named):
    """Biases learn faster and do not decay."""
    named = [(name, value) for name, value in named if value.requires_grad]
    return torch.optim.AdamW([{"params": [value for name, value in named if "bias" not in name]},
                              {"params": [value for name, value in named if "bias" in name], "lr": 3e-2,
                               "weight_decay": 0.0}], lr=1e-2, weight_decay=0.1)


def without_table(named):
    """The optimizer lacks the table, which has a gradient."""
    return torch.optim.SGD([value for name, value in named if "table" not in name], lr=1e-4, momentum=0.9,
                           nesterov=True)


def nested():
    torch.manual_seed(1)
    labels = torch.randint(0, 8, (16,))
    labels[:5] = -100
    return Nested(), many_losses, groups, (torch.randn(16, 16), torch.randn(16, 8), labels)


def written():
    torch.manual_seed(1)
    return (Wrapped(), root_of_mean, lambda named: torch.optim.Adam(
        [value for _, value in named], lr=1e-2, amsgrad=True, maximize=True), (torch.randn(8, 16), torch.randn(8, 8)))


def shared():
    torch.manual_seed(1)
    words = torch.randint(0, 24, (2, 8, 8))
    return SharedBlocks(), classify, without_table, (words[0], words[1])


def stopped():
    torch.manual_seed(1)
    return (Stopped(), classify_places, lambda named: torch.optim.SGD([value for _, value in named], lr=0.1),
            (torch.randn(6, 8, 16), torch.randint(0, 8, (6, 8))))


CASES = {stopped: {"stages": 2}, nested: {"hsdp_zero2": 4, "data_parallel": 2}, shared: {"stages": 2},
         written: {"parts": 2}}
PLANS = {"hsdp_zero2": ["--baseline", "hsdp_zero2", "--micro-batches", "2"],
         "data_parallel": ["--baseline", "data_parallel", "--micro-batches", "2"],
         "stages": ["--stages", "2", "--micro-batches", "2"], "parts": ["--stages", "2"]}


def train_alone(_, make, folder):
    """Exports the step, then trains it; afterwards the export has not changed the model."""
    torch.set_num_threads(1)
    model, loss, optimizer, batch = make()
    update = optimizer(list(model.named_parameters()))
    automap_torch.export(model, loss, update, batch, folder)
    losses, norms = [], []
    for _ in range(STEPS):
        value = loss(model, *batch)
        value.backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), float("inf")).item())
        update.step()
        model.zero_grad()
        losses.append(value.item())
    torch.save(model.state_dict(), folder / "trained.pt")
    losses.append(loss(model, *batch).item())
    (folder / "losses.json").write_text(json.dumps(losses))
    (folder / "norms.json").write_text(json.dumps(norms))


def local(value):
    return value.to_local() if hasattr(value, "to_local") else value


def go_on(rank, make, plan, folder, training, update):
    """The loss after the last step of a new training that has the state of another one."""
    file, state = folder / f"{plan}.pt", training.state_dict(update)
    if rank == 0:
        torch.save(state, file)
        trained = torch.load(folder / "trained.pt")
        assert state["model"].keys() == trained.keys(), state["model"].keys() ^ trained.keys()
        for name, value in trained.items():
            torch.testing.assert_close(state["model"][name], value, atol=1e-4, rtol=1e-4, msg=f"{name} under {plan}")
    else:
        assert not state
    torch.distributed.barrier()
    model, loss, optimizer, batch = make()
    again = automap_torch.parallelize(model, loss, json.loads((folder / f"{plan}.torch.json").read_text()))
    new = optimizer(list(again.named_parameters()))
    again.load_state_dict(torch.load(file), new)
    for own, other in zip(training.parameters(), again.parameters(), strict=True):
        before, after = update.state.get(own, {}), new.state.get(other, {})
        assert before.keys() == after.keys()
        assert all(value is None or torch.equal(local(value), local(after[key])) for key, value in before.items())
    return again.step(*batch)


def train_rank(rank, make, plan, folder, ranks):
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/{plan}.store", rank=rank,
                                         world_size=ranks)
    model, loss, optimizer, batch = make()
    training = automap_torch.parallelize(model, loss, json.loads((folder / f"{plan}.torch.json").read_text()))
    update = optimizer(list(training.named_parameters()))
    losses, norms, gathers, gather = [], [], [], _fsdp_param_group.foreach_all_gather

    def counted(weights, group, *rest):
        gathers.append(group.size())
        return gather(weights, group, *rest)

    _fsdp_param_group.foreach_all_gather = counted
    for _ in range(STEPS):
        losses.append(training.step(*batch))
        norms.append(training.clip_grad_norm_(float("inf")))
        update.step()
        most = norms[-1] / 3
        training.clip_grad_norm_(most)
        check("clipped gradients", [training.clip_grad_norm_(float("inf"))], [most])
        for value in training.parameters():
            value.grad = None
    counts = gathers.count(ranks)
    losses.append(go_on(rank, make, plan, folder, training, update))
    check(f"{make.__name__} on rank {rank} under {plan}", losses, json.loads((folder / "losses.json").read_text()))
    check(f"gradients of {make.__name__} under {plan}", norms, json.loads((folder / "norms.json").read_text()))
    if plan == "hsdp_zero2":  # state over all ranks, weights in groups of servers between the passes
        state = sum(update.state[value]["exp_avg"].to_local().numel() for value in update.state)
        whole = sum(value.numel() for value in training.parameters() if value.requires_grad)
        assert state <= whole / ranks * 1.1, (state, whole)
        found = [module._get_fsdp_state()._fsdp_param_group for module in training.model.modules()
                 if isinstance(module, FSDPModule)]
        meshes = [group.post_forward_mesh_info.mesh.shape for group in found if group]
        assert meshes and set(meshes) == {(2, 2)}, meshes
        assert counts == STEPS * len(meshes), gathers  # once in a step, not in each micro-batch
    if make is shared:
        expect_refusal("those of the first step's graph", lambda: training.step(*(value[:4] for value in batch)))
        model = make()[0]
        model.head = nn.Identity()
        expect_refusal("the model has no parameter head.bias", lambda: automap_torch.parallelize(
            model, loss, json.loads((folder / f"{plan}.torch.json").read_text())))
    torch.distributed.destroy_process_group()


def expect_refusal(words, call):
    try:
        call()
    except (NotImplementedError, TypeError, ValueError) as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"{words}: accepted")


def check(what, losses, wanted, tolerance=TOLERANCE):
    worst = max(abs(a - b) / abs(b) for a, b in zip(losses, wanted, strict=True))
    assert worst <= tolerance, f"{what}: a value is off by {worst:.1e}"


def run_alone(folder):
    """The losses of `automap run` on one device."""
    lines = succeed("run", folder / "model.hlo", "--plan", "none", "--state", folder / "state.npz", "--data",
                    folder / "data.npz", "--steps", STEPS, "--json").splitlines()
    return [json.loads(line)["loss"] for line in lines if '"loss"' in line]


def check_case(make, plans, folder):
    torch.multiprocessing.start_processes(train_alone, (make, folder), nprocs=1, start_method="fork")
    check(f"{make.__name__} in automap", run_alone(folder), json.loads((folder / "losses.json").read_text())[:STEPS])
    servers = write_cluster(folder / "servers.json", (("V100", 2),) * 2)
    for plan, ranks in plans.items():
        file = folder / f"{plan}.json"
        succeed("search", folder / "model.hlo", "--cluster", servers if plan == "hsdp_zero2" else f"nominal:{ranks}",
                "--for", "torch", "--quiet", *PLANS[plan], "-o", file)
        succeed("export", file, folder / "model.hlo", "--format", "torch", "-o", folder / f"{plan}.torch.json")
        torch.multiprocessing.start_processes(train_rank, (make, plan, folder, ranks), nprocs=ranks,
                                              start_method="fork")
        print(f"{make.__name__}, {plan}: {ranks} ranks have the losses of one process", flush=True)


class Lion(torch.optim.Optimizer):
    """As the package lion-pytorch has it."""

    def __init__(self, parameters, lr, weight_decay):
        super().__init__(parameters, {"lr": lr, "betas": (0.9, 0.99), "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            (beta1, beta2), rate = group["betas"], group["lr"]
            for value in group["params"]:
                mean = self.state[value].setdefault("exp_avg", torch.zeros_like(value))
                value.mul_(1 - rate * group["weight_decay"]).sub_(rate * mean.lerp(value.grad, 1 - beta1).sign())
                mean.lerp_(value.grad, 1 - beta2)


def check_transforms(_, folder):
    """Complex numbers and Fourier transforms in every direction, with each scale."""
    torch.set_num_threads(1)
    torch.manual_seed(1)
    fft, model, x = torch.fft, nn.Linear(12, 12), torch.randn(4, 6, 12)

    def loss(model, x):
        x = model(x)
        z = torch.complex(x, fft.fft(x, dim=1).real) / (1 + fft.fft2(x, norm="ortho").abs())
        y = fft.ifft2(z, dim=(1, 2), norm="forward") * fft.ifft(z, dim=1).conj() + torch.polar(x.exp(), x) ** 2
        w = fft.irfft2(fft.rfft2(y.imag, norm="forward") * 1j, s=(6, 9)) - fft.irfft(y, n=9, norm="ortho")
        shares = fft.hfft(z[..., :7], norm="ortho").tanh() + fft.ihfft(x).imag.sum(-1, keepdim=True)
        frames = torch.stft(x.flatten(1), 16, 5, 12, torch.hann_window(12), return_complex=True, normalized=True)
        shares = shares + frames.abs().mean((1, 2))[:, None, None]
        return (w ** 2).mean() + shares.mean() + (z.angle() * z.sgn().imag + (z.log() @ z.mT).real.mean()).mean()

    update, losses = torch.optim.SGD(model.parameters(), lr=0.01), []
    automap_torch.export(model, loss, update, (x,), folder)
    for _ in range(STEPS):
        update.zero_grad()
        losses.append(loss(model, x))
        losses[-1].backward()
        update.step()
    check("transforms", run_alone(folder), [value.item() for value in losses])


def check_alignments(_, folder):
    """ctc_loss, with inputs and targets of other lengths, has PyTorch's values and gradients."""
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model, words = nn.Linear(8, 6), torch.randint(1, 6, (4, 5))
    words[:, 1] = words[:, 0]  # a blank is between equal labels
    batch = torch.randn(4, 12, 8), words, torch.tensor([12, 9, 12, 4]), torch.tensor([5, 3, 2, 4])

    def loss(model, x, y, lengths, counts, reduction="mean"):
        scores = model(x).log_softmax(-1).transpose(0, 1)
        return functional.ctc_loss(scores, y, lengths, counts, reduction=reduction, zero_infinity=True)

    for reduction in ("none", "sum", "mean"):
        found = []
        for context in (contextlib.nullcontext(), plain_kernels()):
            with context:
                value = loss(model, *batch, reduction)
                found.append((value.detach(), *torch.autograd.grad(value.sum(), model.parameters())))
        assert all(torch.allclose(*pair, rtol=1e-4, atol=1e-5) for pair in zip(*found)), (reduction, found)
        assert found[0][0].ndim == 0 or found[0][0][3] == 0, found  # 4 labels and 1 blank need 5 inputs
    update = torch.optim.SGD(model.parameters(), lr=0.1)
    automap_torch.export(model, loss, update, batch, folder)
    check("ctc_loss", run_alone(folder)[:1], [loss(model, *batch).item()])
    assert find_kind(model, loss, batch, [0, 0, 0, 0]) == (False, None)
    expect_refusal("ctc_loss: expected scores", lambda: automap_torch.export(
        model, lambda model, x, y, *rest: loss(model, x, y.flatten(), *rest), update, batch, folder))


def check_optimizers(_, folder):
    """Optimizers with state of their own."""
    torch.set_num_threads(1)
    batch = torch.randn(8, 16), torch.randint(0, 8, (8,))

    def loss(model, x, y):
        scale = model.weight.view(8, 2, 8).std((1, 2), keepdim=True)
        return functional.cross_entropy(model(x) / scale[:, 0, 0], y)

    def squares(model, x, y):  # whose gradient has no singular value near 0, which Muon makes one near 1
        return (model(x) - functional.one_hot(y, 8)).square().mean()

    def follow(model, optimizers, tolerance, loss=loss):
        losses = []
        automap_torch.export(model, loss, optimizers, batch, folder)
        for _ in range(STEPS):
            losses.append(loss(model, *batch))
            model.zero_grad()
            losses[-1].backward()
            for optimizer in optimizers:
                optimizer.step()
        name = type(optimizers[0]).__name__
        check(name, run_alone(folder), [value.item() for value in losses], tolerance)

    for kind, settings in ((torch.optim.Adagrad, {"lr": 0.1, "lr_decay": 0.1, "initial_accumulator_value": 0.1}),
                           (torch.optim.RMSprop, {"momentum": 0.9, "centered": True, "weight_decay": 0.1}),
                           (torch.optim.NAdam, {"lr": 0.05, "weight_decay": 0.1, "decoupled_weight_decay": True}),
                           (torch.optim.Adamax, {"lr": 0.05, "weight_decay": 0.1}),
                           (torch.optim.RAdam, {"lr": 0.05, "betas": (0.9, 0.8)}),  # both formulas in three steps
                           (torch.optim.Adadelta, {"weight_decay": 0.1}), (Lion, {"lr": 0.01, "weight_decay": 0.1})):
        model = nn.Linear(16, 8)
        follow(model, [kind(model.parameters(), **settings)], 5e-6)
    for scale in (None, "match_rms_adamw", "spectral_unclamped"):
        model = nn.Linear(16, 8)
        two = [torch.optim.Muon([model.weight], lr=0.02, adjust_lr_fn=scale), torch.optim.AdamW([model.bias], lr=0.1)]
        follow(model, two, 5e-3, squares)  # which has products in bf16
    twice = [torch.optim.SGD(model.parameters()), torch.optim.SGD(model.parameters())]
    expect_refusal("SGD has the parameter weight, which another", lambda: automap_torch.export(
        model, loss, twice, batch, folder))


class Looking(nn.Linear):
    """Looks at an element."""

    def forward(self, x):
        return super().forward(x) if x.max() > 0 else x

    @classmethod
    def line(cls):
        return cls.forward.__code__.co_firstlineno + 1


class Tripled(torch.autograd.Function):
    """A gradient of its own."""

    @staticmethod
    def forward(x):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 3


def changed_by(change):
    """A layer whose forward pass is that of `change`."""
    model = nn.Linear(16, 8)
    forward = model.forward
    model.forward = lambda x: change(model, forward, x)
    return model


def hook(model, forward, x):
    x = forward(x)
    x.register_hook(lambda gradient: 3 * gradient)
    return x


def clamp(model, forward, x):
    model.weight.data.clamp_(max=0.1)
    return forward(x)


def hooked_weight():
    model = nn.Linear(16, 8)
    model.weight.register_hook(lambda gradient: 3 * gradient)
    return model


class Noisy(nn.Linear):
    """A row of numbers for each example."""

    def __init__(self):
        super().__init__(16, 8)
        self.register_buffer("noise", torch.randn(8, 8))

    def forward(self, x):
        return super().forward(x) + self.noise


class Sized(nn.Linear):
    """A constant of the batch's size."""

    def forward(self, x):
        return super().forward(x) * torch.full((8, 1), 0.5)


def check_refusals(_, folder):
    torch.set_num_threads(1)
    batch = torch.randn(8, 16), torch.randint(0, 8, (8,))

    def loss(model, x, y):
        return functional.cross_entropy(model(x), y)

    def optimizer(model):
        return torch.optim.SGD(model.parameters(), lr=0.1)

    looking, other, own = Looking(16, 8), nn.Linear(4, 4), nn.Linear(16, 8)
    for words, model in (
            ("Tripled: a torch.autograd.Function", changed_by(lambda model, forward, x: Tripled.apply(forward(x)))),
            ("register_hook: hooks can change gradients", changed_by(hook)),
            ("parameter weight: hooks can change gradients", hooked_weight()),
            ("the model changes its parameter weight", changed_by(clamp))):
        expect_refusal(words, lambda model=model: automap_torch.export(model, loss, optimizer(model), batch, folder))
    expect_refusal("entry 0 of the batch is of type dict", lambda: automap_torch.export(
        own, loss, optimizer(own), ({"x": batch[0]},), folder))
    for words, model, update in (
            (f"(test_torch_models.py:{Looking.line()}): its result depends on elements", looking, optimizer(looking)),
            ("a parameter of shape [4, 4] that the model lacks", nn.Linear(16, 8), optimizer(other))):
        expect_refusal(words, lambda model=model, update=update: automap_torch.export(
            model, loss, update, batch, folder))
    turning = nn.Linear(16, 8)
    turning.register_buffer("turns", torch.ones(4, dtype=torch.complex32))
    expect_refusal("a tensor of torch.complex32", lambda: automap_torch.export(
        turning, loss, optimizer(turning), batch, folder))

    def attend(model, x, y):
        with torch.autocast("cpu", torch.bfloat16):
            rows = model(x).view(8, 2, 4)
            return functional.scaled_dot_product_attention(rows.float(), rows.float(), rows).mean()

    automap_torch.export(own, attend, optimizer(own), batch, folder)
    for model, words in ((Noisy(), "values that differ by example"), (Sized(16, 8), "a constant of the batch's size")):
        automap_torch.export(model, loss, optimizer(model), batch, folder)
        search = ("search", folder / "model.hlo", "--cluster", "nominal:2", "--for", "torch", "--quiet", "-o",
                  folder / "p")
        done = automap(*search, "--baseline", "zero3", "--micro-batches", 2)
        assert done.returncode == 4 and words in done.stderr, done
        succeed(*search)
        assert json.loads((folder / "p").read_text())["micro_batches"] == 1


def loss_of_parts(model, loss, batch, is_sum):
    """The sum or the mean of the losses of the two halves of a batch, with the counts of the whole batch."""
    halves = [[value[k::2].contiguous() for value in batch] for k in range(2)]
    graph = trace_loss(model, loss, halves[0])
    counts, losses = mean_of_counts(graph, find_counts(graph), halves), []
    for half in halves:
        given = {"parameter": dict(model.named_parameters()), "batch": half}
        values = {node: given[kind][name] for node, (kind, name) in graph.inputs.items()}
        for node in graph.operators:
            values[node] = value_of(graph, node, values, counts)
        losses.append(values[graph.loss].item())
    return sum(losses) / (1 if is_sum else 2)


def check_kinds(*_):
    """Losses that are means or sums over the batch, which halves of it give, and those that need the whole batch, which
    the operator says."""
    torch.manual_seed(1)
    model, batch = nn.Linear(6, 8), (torch.randn(4, 6), torch.tensor([3, 3, 1, 0]))

    def squares(x):
        return x * x

    def weighted(rows, x):
        return rows * x[:, 0].exp() / x[:, 0].exp().sum()

    def of_places(x):
        own = torch.arange(len(x))
        return torch.arange(3.0).expand(len(x), -1)[own, own % 3]

    def spread(x):
        return (x[:, 0] - x[:, 0].mean()).square().mean().sqrt()

    means = (lambda rows, x: rows.mean(), lambda rows, x: rows.sum() / len(x), lambda rows, x: weighted(rows, x).sum(),
             lambda rows, x: rows.mean() + 0.1 * model.weight.norm(),
             lambda rows, x: rows.mean() / spread(x), lambda rows, x: rows.sum() / torch.tensor(float(len(x))),
             lambda rows, x: rows.sum() / torch.ones(len(x)).sum(),
             lambda rows, x: (rows * (x[:, 0] > 0)).sum() / ((x[:, 0] > 0).sum() + 0.5).clamp(max=1.2),
             lambda rows, x: (rows * (x[:, 0] > 0)).sum() / (x[:, 0] > 0).sum().clamp(min=3))
    sums = (lambda rows, x: rows.sum(), lambda rows, x: 2 * rows.sum() - squares(rows).sum())
    others = (("add", lambda rows, x: rows.mean() + 1e-6 * rows.sum()), ("sqrt", lambda rows, x: rows.mean().sqrt()),
              ("add", lambda rows, x: rows.sum() + model.weight.norm()),
              ("add", lambda rows, x: rows.mean() + len(x) * model.weight.norm()),
              ("std", lambda rows, x: (rows / x[:, 0].std()).mean()),
              ("div", lambda rows, x: (rows / rows.detach().mean()).mean()),
              ("div", lambda rows, x: squares(rows / len(x) ** 0.5).mean()),
              ("_softmax", lambda rows, x: (rows * x[:, 0].softmax(0)).sum()),
              ("slice", lambda rows, x: rows[::2].mean()),
              ("mul", lambda rows, x: (rows * of_places(x)).mean()),
              ("mul", lambda rows, x: (rows * torch.arange(2.0).expand(len(x), 2).reshape(2, -1)[0]).mean()),
              ("mul", lambda rows, x: squares(rows).mean() * rows.mean()))

    def loss(of_rows):
        return lambda model, x, y: of_rows(functional.cross_entropy(model(x), y, reduction="none"), x)

    def kind(of_rows):
        return find_kind(model, loss(of_rows), batch, [0, 0])

    for losses, is_sum in ((means, False), (sums, True)):
        for of_rows in losses:
            line = of_rows.__code__.co_firstlineno
            assert kind(of_rows) == (is_sum, None), (line, kind(of_rows))
            check(f"the loss of line {line} in halves", [loss_of_parts(model, loss(of_rows), batch, is_sum)],
                  [loss(of_rows)(model, *batch).item()])
    attention = nn.MultiheadAttention(6, 1, add_bias_kv=True, batch_first=True)  # which repeats a key by example
    assert find_kind(attention, lambda model, x: model(x, x, x)[0].mean(), [torch.randn(4, 3, 6)], [0]) == (False, None)
    for name, of_rows in others:
        line = of_rows.__code__.co_firstlineno
        found = kind(of_rows)[1]
        assert found and found.startswith(f"{name} (test_torch_models.py:{line})"), (name, line, found)


def check_dimensions(*_):
    """A table of the batch that has no examples, also where the examples depend on one another."""
    for centre in (0.0, 1.0):
        def loss(model, table, rows, y, centre=centre):
            found = model(table[rows])
            return functional.cross_entropy(found - centre * found.mean(0), y)

        batch = torch.randn(12, 6), torch.randint(0, 12, (16,)), torch.randint(0, 8, (16,))
        assert find_batch(nn.Linear(6, 8), loss, batch) == [None, 0, 0]

    def masked(model, x, is_real):
        if not torch.compiler.is_compiling() and is_real.all():
            return model(x).mean()
        with TransformGetItemToIndex():  # as the masks of transformers
            mask = torch.vmap(lambda k: is_real[:, k], out_dims=1)(torch.arange(6))
        return (model(x) * mask[:, :1]).mean()

    assert find_batch(nn.Linear(6, 8), masked, (torch.randn(4, 6), torch.ones(4, 6, dtype=torch.bool))) == [0, 0]

    def smooth(model, x, y):
        found = model(x)
        return -(functional.log_softmax(found, -1) * torch.full_like(found, 0.1).scatter_(1, y[:, None], 0.9)).mean()

    assert find_batch(nn.Linear(6, 8), smooth, (torch.randn(4, 6), torch.tensor([3, 3, 1, 0]))) == [0, 0]


def main():
    for function in (check_transforms, check_alignments, check_optimizers, check_refusals, check_kinds,
                     check_dimensions):
        with tempfile.TemporaryDirectory() as folder:
            torch.multiprocessing.start_processes(function, (pathlib.Path(folder),), nprocs=1, start_method="fork")
    for make, plans in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            check_case(make, plans, pathlib.Path(folder))


if __name__ == "__main__":
    main()
