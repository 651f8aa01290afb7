"""Steps of PyTorch models are exported by `automap_torch.export`, and trained by automap and by PyTorch under a plan.

An MLP, a GPT, a Llama and a ResNet with SGD and AdamW: `automap run` must have the losses of PyTorch. Plans found with
`search --for torch` train in PyTorch with `automap_torch.parallelize` on gloo ranks, with the losses of one process.

Run as `AUTOMAP=build/automap .venv-torch/bin/python tests/e2e/test_torch_step.py [MODEL ...]`.
"""
# labels: cpu e2e torch
# timeout: 600
# cost: 100
# python: torch

import contextlib
import json
import logging
import os
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "launch"))
from clusters import write_cluster
from program import FULL, automap, skip_where_missing, succeed

with skip_where_missing():
    import torch
    import torch.distributed
    import torch.export._trace  # noqa: F401, before processes are forked, each of which would import it
    import torch.multiprocessing
    from torch import nn
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor.debug import CommDebugMode
    from torch.nn import functional
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch_sequences import WORDS, EncoderFirst, Recurrent, RecurrentFirst, SequencesFirst, Translator

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))
import automap_torch
from automap_torch import pipelines
from automap_torch.export import find_batch, find_kind, plain_kernels
from automap_torch.operators import DTYPES
from automap_torch.parallelize import TensorTraining, ZeroTraining
from automap_torch.pipelines import GraphTraining
from automap_torch.stages import trace_loss

STEPS, RANKS, TOLERANCE = 3, 4, 2e-5
WIDTH = 32


class Block(nn.Module):
    """A layer of Llama: RMS norms, rotary positions, gated MLP."""

    def __init__(self, heads=4):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.output = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.first_norm, self.second_norm = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.up, self.gate = (nn.Linear(WIDTH, 2 * WIDTH, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def rotate(self, x):
        length, size = x.shape[-2:]
        rates = 10000 ** -(torch.arange(0, size, 2) / size)
        angles = torch.outer(torch.arange(length) * 1.0, rates)
        a, b = x.chunk(2, -1)
        return torch.cat((a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()), -1)

    def forward(self, x):
        normed = self.first_norm(x)
        query, key, value = (layer(normed).unflatten(-1, (self.heads, -1)).transpose(1, 2)
                             for layer in (self.query, self.key, self.value))
        mixed = functional.scaled_dot_product_attention(self.rotate(query), self.rotate(key), value, is_causal=True)
        x = x + self.output(mixed.transpose(1, 2).flatten(2))
        normed = self.second_norm(x)
        return x + self.down(functional.silu(self.up(normed)) * self.gate(normed))


class Language(nn.Module):
    """A GPT, or a Llama, of two layers."""

    def __init__(self, kind, length=16):
        super().__init__()
        self.tokens = nn.Embedding(WORDS, WIDTH)
        self.positions = nn.Embedding(length, WIDTH) if kind == "gpt" else None
        settings = {"dropout": 0.0, "activation": "gelu", "batch_first": True, "norm_first": True}
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, **settings) if kind == "gpt"
                                    else Block() for _ in range(2))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, words):
        x, options = self.tokens(words), {}
        if self.positions is not None:
            x = x + self.positions(torch.arange(words.shape[1]))
            options = {"src_mask": nn.Transformer.generate_square_subsequent_mask(words.shape[1]), "is_causal": True}
        for layer in self.layers:
            x = layer(x, **options)
        return self.head(self.norm(x))


class Vision(nn.Module):
    """A vision transformer with a class token, and queries, keys and values from one product."""

    def __init__(self):
        super().__init__()
        self.patch, self.token = nn.Conv2d(3, WIDTH, 16, 16), nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.joined = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(2))
        self.outputs = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 8)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1)
        for joined, output in zip(self.joined, self.outputs):
            query, key, value = joined(x).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
            x = x + output(functional.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2))
        return self.head(self.norm(x[:, 0]))


class Residual(nn.Module):
    """The parts of a ResNet: strides, batch norms, pools, a skip."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.Conv2d(8, 8, 3, 1, 1, bias=False)
        self.first_norm, self.second_norm = nn.BatchNorm2d(8), nn.BatchNorm2d(8)
        self.pool, self.head = nn.MaxPool2d(3, 2, 1), nn.Linear(8, 8)

    def forward(self, x):
        x = self.pool(functional.relu(self.first_norm(self.first(x))))
        x = functional.relu(x + self.second_norm(self.second(x)))
        return self.head(functional.adaptive_avg_pool2d(x, 1).flatten(1))


class Convolutions(nn.Module):
    """Convolutions of one and of three dimensions, with strides that leave a rest, groups and dilation."""

    def __init__(self):
        super().__init__()
        self.line = nn.Sequential(nn.Conv1d(3, 6, 4, 3, 1, groups=3), nn.LeakyReLU(), nn.GroupNorm(2, 6),
                                  nn.Conv1d(6, 4, 3, padding=2, dilation=2, groups=2))
        self.cube = nn.Sequential(nn.Conv3d(3, 4, (3, 2, 1), (2, 1, 3), (1, 0, 1)), nn.ELU(), nn.Conv3d(4, 4, 2))
        self.head = nn.LazyLinear(8)

    def forward(self, x):
        features = self.line(x[:, :, 0].roll(1, 2)).flatten(1), self.cube(x.unflatten(3, (4, 8))[:, :, :6]).flatten(1)
        return self.head(torch.cat(features, 1))


class Halves(nn.Module):
    """Convolutions of both halves of an image, whose plan splits kernels along one axis and the batch along another."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 4, 3, 1), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1))
        self.head = nn.Linear(440, 8)

    def forward(self, x):
        return self.head(torch.cat([self.body(half).flatten(1) for half in x.chunk(2, 2)], 1))


class Pools(nn.Module):
    """Means over windows and over equal parts, enlarged images and transposed convolutions."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.SiLU(), nn.AvgPool2d(3, 2, 1, count_include_pad=False),
                                  nn.ConvTranspose2d(8, 4, 3, 2, 1, groups=2), nn.AvgPool2d(3, 2, ceil_mode=True),
                                  nn.AdaptiveAvgPool2d(5))
        self.head = nn.Linear(16, 8)

    def forward(self, x):
        x = self.body(x)
        x = functional.interpolate(x, scale_factor=2) + functional.interpolate(x, scale_factor=2, mode="bilinear")
        return self.head(functional.avg_pool1d(x.flatten(2), 25).flatten(1))


class Orders(nn.Module):
    """Running sums, sorts, largest elements and their places, gathers."""

    def __init__(self):
        super().__init__()
        self.table, self.places, self.gate = nn.Embedding(WORDS, WIDTH), nn.Embedding(16, WIDTH), nn.Linear(WIDTH, 4)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words):
        place = (words != 0).long().cumsum(1) - 1
        x = self.table(words) + self.places(place.clamp(0, 15))
        values, chosen = self.gate(x).softmax(-1).topk(2, -1)
        weights = torch.zeros_like(self.gate(x)).scatter(-1, chosen, values)
        x = sum(weights[..., k, None] * torch.tanh(layer(x)) for k, layer in enumerate(self.layers))
        x = x + x.cumsum(1) / torch.arange(1, 17)[:, None] + x.sort(-1).values + x.max(1, keepdim=True).values
        first = functional.one_hot(words.argmax(1), 16).to(x.dtype)
        rotated = torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)
        return self.head(rotated + (first[..., None] * x).sum(1, keepdim=True) + x.gather(2, x.argsort(-1)))


class Attention(nn.Module):
    """Attention reads a table directly: its products have rows of positions, and of examples within them."""

    def __init__(self):
        super().__init__()
        self.table, self.mixed = nn.Embedding(WORDS, WIDTH), nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, words):
        x = self.table(words)
        normed = self.norm(x)
        return self.head(x + self.mixed(normed, normed, normed, need_weights=False)[0])


class Pooled(nn.Module):
    """A class for each sequence. Plans split the positions over two axes, which DTensor cannot split from the batch."""

    def __init__(self):
        super().__init__()
        self.table, self.position = nn.Embedding(WORDS, 32), nn.Parameter(torch.randn(16, 32) * 0.02)
        self.mixed, self.norm = nn.MultiheadAttention(32, 4, batch_first=True), nn.LayerNorm(32)
        self.up, self.down, self.head = nn.Linear(32, 64), nn.Linear(64, 32), nn.Linear(32, 8)

    def forward(self, words):
        x = self.table(words) + self.position
        normed = self.norm(x)
        x = x + self.mixed(normed, normed, normed, need_weights=False)[0]
        x = x + self.down(functional.gelu(self.up(x)))
        return self.head(x.mean(1))


class Shared(nn.Module):
    """A language model whose head has the weight of the table."""

    def __init__(self):
        super().__init__()
        self.table, self.up, self.down = nn.Embedding(WORDS, 16), nn.Linear(16, 32), nn.Linear(32, 16)
        self.head = nn.Linear(16, WORDS, bias=False)
        self.head.weight = self.table.weight

    def forward(self, words):
        return self.head(self.down(functional.relu(self.up(self.table(words)))))


class Mixed(nn.Module):
    """Examples depend on one another: a batch norm without running statistics, and features less their mean."""

    def __init__(self):
        super().__init__()
        self.up, self.norm = nn.Linear(16, 32), nn.BatchNorm1d(32, track_running_stats=False)
        self.head = nn.Linear(32, 8)

    def forward(self, x):
        x = functional.relu(self.norm(self.up(x)))
        return self.head(x - x.mean(0))


class Centred(nn.Module):
    """Examples less their mean, before any weight."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))

    def forward(self, x):
        return self.body(x - x.mean(0))


class Numbered(nn.Linear):
    """Multiplies each example by a number, which the first examples of a part of the batch would get."""

    def forward(self, x):
        return super().forward(x * torch.arange(len(x))[:, None])


class Places(nn.Module):
    """Attention whose first dimension is the place in the sequence, of one sequence."""

    def __init__(self):
        super().__init__()
        self.up, self.joined, self.head = nn.Linear(16, 32), nn.Linear(32, 96), nn.Linear(32, 8)

    def forward(self, x):
        query, key, value = self.joined(self.up(x)).unflatten(-1, (3, 4, 8)).permute(1, 2, 0, 3)
        x = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.head(x.transpose(0, 1).flatten(1))


class Scored(nn.Module):
    """The model computes its loss, whose targets may be ignored, from examples less the mean of all elements."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))

    def forward(self, x, y):
        return functional.cross_entropy(self.body(x - 3 * x.mean()), y)


class Dropped(nn.Module):
    """Half of the features are dropped."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 512), nn.ReLU(), nn.Dropout(0.5), nn.Linear(512, 8))

    def forward(self, x):
        return self.body(x)


class Layered(nn.Module):
    """A layer with a place in a source file."""

    def __init__(self, layer):
        super().__init__()
        self.weight, self.layers = nn.Parameter(torch.ones(())), nn.ModuleList([layer])

    def forward(self, x):
        return self.layers[0](x * self.weight)

    @classmethod
    def line(cls):
        """The line that calls the layer."""
        return cls.forward.__code__.co_firstlineno + 1


def convolutions():
    model = Convolutions()
    with torch.no_grad():
        model(torch.zeros(8, 3, 32, 32))
    return model


def classify(model, x, y):
    return functional.cross_entropy(model(x).flatten(0, -2), y.flatten())


def classify_padded(model, x, padding, y):
    return functional.cross_entropy(model(x, padding).flatten(0, -2), y.flatten())


def translate(model, x, others, mask, y):
    return functional.cross_entropy(model(x, others, mask).flatten(0, -2), y.flatten())


def table_of(model):
    return model[0].weight


def classify_tied(model, x, y):
    """The loss reads a part of the model through a helper function and another name."""
    own = model
    return functional.cross_entropy((own(x) @ table_of(own).T).flatten(0, -2), y.flatten())


def tied():
    return nn.Sequential(nn.Embedding(WORDS, 16), nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))


def regress(model, x, y):
    """A sum over the examples: a micro-batch has a part of it."""
    return ((model(x) - y) ** 2).sum() / 64


def blocks():
    """Alike layers, whose loss has no count of targets."""
    layers = [nn.Sequential(nn.Linear(32, 32), nn.ReLU()) for _ in range(6)]
    return nn.Sequential(nn.Linear(16, 32), *layers, nn.Linear(32, 8))


MODELS = {"blocks": blocks, "means": blocks,
          "mlp": lambda: nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8)),
          "gpt": lambda: Language("gpt"), "llama": lambda: Language("llama"), "resnet": Residual, "vit": Vision,
          "convolutions": convolutions, "halves": Halves, "tied": tied, "pools": Pools, "orders": Orders,
          "recurrent": Recurrent, "attention": Attention, "pooled": Pooled, "first": SequencesFirst,
          "encoder": EncoderFirst, "states": RecurrentFirst, "translator": Translator,
          "shared": Shared, "mixed": Mixed, "centred": Centred, "places": Places, "scored": Scored,
          "numbered": lambda: nn.Sequential(Numbered(16, 32), nn.ReLU(), nn.Linear(32, 8))}
MIXING = {"mixed", "centred", "numbered", "places", "scored"}
FIRST = {"first": [1, 1], "encoder": [1, 0, 1], "states": [1, 0],  # the dimension of the examples in each tensor
         "translator": [1, 1, None, 1]}
LOSSES = {"blocks": regress, "means": lambda model, x, y: functional.mse_loss(model(x), y),
          "encoder": classify_padded, "translator": translate,
          "scored": lambda model, x, y: model(x, y), "tied": classify_tied}
OPTIMIZERS = {"sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.01),
              "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2)}
STAGES = ["--stages", "2", "--micro-batches"]
EVEN = ["--space", "pipeline", "--baseline", "even_pipeline", "--mesh", "data=1", "--micro-batches", "4"]
PLANS = {"searched": [], "data": ["--baseline", "data_parallel"],
         "pinned": ["--mesh", "data=2,model=2", "--pin", "relu=value(model,data)"],
         "zero1": ["--baseline", "zero1", "--micro-batches", "2"],
         "zero3": ["--baseline", "zero3", "--micro-batches", "2"],
         "hsdp": ["--baseline", "hsdp", "--micro-batches", "2"],
         "whole batch": ["--baseline", "zero3", "--micro-batches", "1"],
         "megatron": ["--baseline", "megatron", "--mesh", "data=2,model=2"],
         "stages": [*STAGES, "4", "--data", "2"], "stages of tensors": [*STAGES, "2", "--tensor", "2"],
         "tensors": ["--tensor", "2"],
         "two stages": [*STAGES, "1"], "four stages": ["--stages", "4", "--micro-batches", "4"],
         "recomputed": [*STAGES, "4", "--memory-fraction", "0.00015"],
         "1f1b": [*EVEN, "--schedule", "1f1b"], "interleaved": [*EVEN, "--schedule", "interleaved_1f1b"]}
TWO_RANKS = {"two stages", "recomputed", "1f1b", "interleaved"}
CASES = [("blocks", "sgd", ["interleaved"]), ("mlp", "adamw", ["zero1", "zero3", "hsdp", "pinned"]),
         ("means", "sgd", ["data"]), ("tied", "adamw", ["zero3"]), ("gpt", "sgd", ["recomputed"]),
         ("resnet", "sgd", ["searched"]), ("convolutions", "sgd", ["stages"]), ("recurrent", "adamw", ["searched"]),
         ("attention", "adamw", ["1f1b"]), ("pooled", "adamw", ["tensors"]), ("first", "sgd", ["1f1b"]),
         ("encoder", "sgd", ["data"]), ("states", "sgd", ["data"]), ("translator", "sgd", ["data", "1f1b"]),
         ("shared", "sgd", ["two stages"]), ("mixed", "sgd", ["whole batch"]), ("numbered", "sgd", ["whole batch"])]
LEFT_OUT = {("mlp", "four stages"), ("mlp", "recomputed"), ("blocks", "recomputed")}
WHOLE_BATCHES = {"searched", "two stages"}  # plans of a ResNet, whose batch norms do not allow micro-batches
if FULL:
    CASES = [(name, optimizer, [plan for plan in PLANS if (name, plan) not in LEFT_OUT
                                and (name != "resnet" or plan in WHOLE_BATCHES)
                                and (name == "mlp" or plan != "pinned")
                                and (name == "blocks" or plan != "interleaved")])
             for name in MODELS if name not in ("means", "convolutions", "halves", "tied", "pools", "orders",
                              "recurrent", "attention", "pooled", "shared", *FIRST, *MIXING)
             for optimizer in OPTIMIZERS]
    CASES += [("convolutions", "sgd", ["searched", "zero3", "stages", "stages of tensors"]), ("means", "sgd", ["data"]),
              ("halves", "sgd", ["searched"]), ("tied", "adamw", ["zero3"]), ("pools", "adamw", ["searched", "zero3"]),
              ("orders", "adamw", ["searched", "megatron", "zero3", "stages"]),
              ("recurrent", "adamw", ["searched", "stages"]),
              ("attention", "adamw", ["1f1b", "zero1", "stages", "stages of tensors"]),
              ("pooled", "adamw", ["tensors", "megatron"]),
              ("first", "adamw", ["data", "1f1b", "two stages", "four stages"]),
              ("encoder", "adamw", ["searched", "data", "tensors", "zero3", "stages"]),
              ("states", "adamw", ["searched", "data", "zero3", "stages"]),
              ("translator", "adamw", ["searched", "data", "stages"]),
              ("shared", "adamw", ["two stages", "tensors", "zero3", "1f1b"]),
              *((name, "adamw", ["searched", "tensors", "whole batch"]) for name in sorted(MIXING))]
else:
    TWO_RANKS |= {"data", "whole batch", "zero1", "zero3", ("recurrent", "searched")}  # four ranks only repeat one axis


def make(name, optimizer):
    """Model, optimizer and batch, the same in every process."""
    torch.manual_seed(1)
    model = MODELS[name]()
    if name in ("blocks", "means"):
        batch = torch.randn((8, 16)), torch.randn((8, 8))
    elif name in ("mlp", "resnet", "vit", "convolutions", "halves", "pools"):
        x = torch.randn((8, 16) if name == "mlp" else (8, 3, 32, 32))
        batch = (x, torch.randint(0, 8, (8,)))
        if name == "mlp":
            batch[1][:3] = -100  # the first micro-batch has fewer targets
    elif name in MIXING:
        batch = torch.randn((8, 16)) + torch.arange(8)[:, None], torch.randint(0, 8, (8,))
        if name == "scored":
            batch[1][:3] = -100
    elif name == "first":
        batch = torch.randint(0, WORDS, (16, 8)), torch.randint(0, WORDS, (16, 8))
        batch[1][5:, :3] = -100
    elif name == "encoder":
        words = torch.randint(0, WORDS, (2, 16, 8))
        batch = words[0], torch.zeros(8, 16, dtype=torch.bool), words[1]
        batch[1][3:, 12:] = True
        batch[2][12:, 3:] = -100
    elif name == "states":
        batch = torch.randint(0, WORDS, (4, 8)), torch.randint(0, 8, (8,))
    elif name == "translator":
        mask = torch.full((8, 8), -1e9).triu(1)
        batch = (torch.randint(0, WORDS, (12, 8)), torch.randint(0, WORDS, (8, 8)), mask,
                 torch.randint(0, WORDS, (8, 8)))
    elif name == "recurrent":
        batch = torch.randint(0, WORDS, (8, 8)), torch.randint(0, WORDS, (8, 8))
        batch[1][:3, 3:] = -100
    elif name == "pooled":
        batch = torch.randint(0, WORDS, (16, 16)), torch.randint(0, 8, (16,))
    else:
        batch = torch.randint(0, WORDS, (8, 16)), torch.randint(0, WORDS, (8, 16))
        batch[1][:3, 5:] = -100  # targets that cross_entropy ignores: micro-batches have other counts
    return model, OPTIMIZERS[optimizer](model.parameters()), batch


def train_alone(_, name, optimizer, folder):
    """Exports the step, then trains it."""
    torch.set_num_threads(1)
    model, update, batch = make(name, optimizer)
    loss = LOSSES.get(name, classify)
    automap_torch.export(model, loss, update, batch, folder)
    rows = json.loads((folder / "model.roles.json").read_text())["parameters"]
    found = [row.get("batch_dimension", 0) for row in rows if row["role"] == "data"]
    assert found == FIRST.get(name, [0] * len(batch)), f"{name}: the examples are dimensions {found}"
    losses = []
    for _ in range(STEPS):
        value = loss(model, *batch)
        value.backward()
        update.step()
        update.zero_grad()
        losses.append(value.item())
    (folder / "losses.json").write_text(json.dumps(losses))


def train_rank(rank, name, optimizer, folder, ranks):
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    model, _, batch = make(name, optimizer)
    loss = LOSSES.get(name, classify)
    plan = json.loads((folder / "torch.json").read_text())
    training = automap_torch.parallelize(model, loss, plan)
    is_tensor = name in MIXING and isinstance(training, TensorTraining)  # DTensor has all examples, FSDP2 has not
    needs_graph = (len(plan["stages"]) > 1 or plan["stages"][0]["recompute"] or plan["stages"][0]["pinned"]
                   or name in {"resnet", "tied", *MIXING}
                   or (name in FIRST and not isinstance(training, ZeroTraining)))
    assert is_tensor or isinstance(training, GraphTraining) == bool(needs_graph), \
        f"{name} trains as {type(training).__name__}"
    update = OPTIMIZERS[optimizer](training.parameters())
    losses = []
    watch_pins(plan["stages"])
    for number in range(STEPS):
        with CommDebugMode() if number == STEPS - 1 else contextlib.nullcontext() as collectives:
            losses.append(training.step(*batch))
        update.step()
        update.zero_grad()
    check_sums(training, collectives)
    check(f"{name} on rank {rank}", losses, json.loads((folder / "losses.json").read_text()))
    torch.distributed.destroy_process_group()


def watch_pins(stages):
    """Checks the placements of pinned values as operators find them."""
    pinned = {row["op_name"]: row["placements"] for stage in stages for row in stage["pinned"]}
    own = pipelines.value_of

    def value_of(graph, node, values, counts):
        for operand in node.all_input_nodes:
            if operand.name in pinned and operand in values:
                found = ["Shard(%d)" % placement.dim if placement.is_shard() else "Replicate()"
                         for placement in values[operand].placements]
                assert found == pinned[operand.name], f"{operand.name} has {found}, not {pinned[operand.name]}"
        return own(graph, node, values, counts)

    pipelines.value_of = value_of


def check_sums(training, collectives):
    """Gradients of replicated weights, and of copies of shards, are summed once in a step, however many micro-batches
    there are; FSDP2 reduces those that the plan keeps in shards (ZeRO 2 and 3) in each."""
    if isinstance(training, ZeroTraining):
        groups = {id(module) for module in training.model.modules() if isinstance(module, FSDPModule)
                  and module._get_fsdp_state()._fsdp_param_group is not None}  # fmt: skip
        reduced, summed = (sum(count for kind, count in collectives.get_comm_counts().items() if word in str(kind))
                           for word in ("reduce_scatter", "allreduce"))
        expected = len(groups) * (training.count if training.stage["sharded_gradients"] else 1)
        assert training.count > 1 and reduced == expected, f"{reduced} reductions, expected {expected}"
        rows = [row["placements"] for row in training.stage["parameters"] if row["role"] != "data"]
        copies = sum(size > 1 and not any(row[d].startswith("Shard") for row in rows)
                     for d, size in enumerate(training.stage["device_mesh"]["shape"]))
        assert summed == training.count + copies * len(groups), f"{summed} sums of losses and over {copies} axes"
        return
    own = [value for value in training.parameters() if value is not getattr(training, "unused", None)]
    replicated = all(placement.is_replicate() for value in own for placement in value.placements)
    if isinstance(training,
                  GraphTraining) and replicated and training.count > 1 and any(training.modules[0].splits_batch):
        sums = collectives.get_comm_counts().get(torch.ops.c10d_functional.all_reduce, 0)
        weights, parts = len(own), [module.part for module in training.modules]
        # A later stage sums the gradients of a weight that it gets, in each micro-batch.
        gotten, given = (sum(training.graph.inputs.get(node, ("value",))[0] == "parameter" for node in nodes)
                         for nodes in ([node for part in parts for node in part.given],
                                       [node for part in parts for node in part.results]))
        least, most = weights - given, weights + (1 + gotten) * training.count
        assert least <= sums <= most, f"{sums} sums over ranks for {weights} gradients, expected {least} to {most}"


def check(what, losses, wanted):
    worst = max(abs(a - b) / abs(b) for a, b in zip(losses, wanted, strict=True))
    assert worst <= TOLERANCE, f"{what}: a loss is off by {worst:.1e}"
    return worst


def split_states_alone(path):
    """Makes a plan of ZeRO 3 one of ZeRO 1: weights are whole, and their state stays split."""
    plan = json.loads(path.read_text())
    rows = [row for stage in plan["stages"] for row in stage["parameters"] if row["role"] == "weight"]
    assert any("Shard" in text for row in rows for text in row["placements"]), "no weight is split"
    for row in rows:
        row["placements"] = ["Replicate()"] * len(row["placements"])
    path.write_text(json.dumps(plan))


def check_case(name, optimizer, plans, folder):
    # The parent never runs autograd, whose threads a fork would lose.
    torch.multiprocessing.start_processes(train_alone, (name, optimizer, folder), nprocs=1, start_method="fork")
    module, wanted = folder / "model.hlo", json.loads((folder / "losses.json").read_text())
    lines = succeed("run", module, "--plan", "none", "--state", folder / "state.npz", "--data", folder / "data.npz",
                    "--steps", STEPS, "--json").splitlines()
    losses = [json.loads(line)["loss"] for line in lines if '"loss"' in line]
    worst = check(f"{name} with {optimizer} in automap", losses, wanted)
    print(f"{name}, {optimizer}: automap's losses are off by {worst:.1e}", flush=True)
    servers = write_cluster(folder / "servers.json", (("V100", 2),) * 2)
    for plan in plans:
        file, ranks = folder / f"{plan}.json", 2 if TWO_RANKS & {plan, (name, plan)} else RANKS
        target = ["--cluster", servers if plan == "hsdp" else f"nominal:{ranks}", "--for", "torch", "--quiet"]
        succeed("search", module, *target, *PLANS[plan], "-o", file)
        succeed("export", file, module, "--format", "torch", "-o", folder / "torch.json")
        for has_whole_weights in (False, True) if FULL and plan == "stages" else (False,):
            if has_whole_weights:
                split_states_alone(folder / "torch.json")
            (folder / "store").unlink(missing_ok=True)
            torch.multiprocessing.start_processes(train_rank, (name, optimizer, folder, ranks), nprocs=ranks,
                                                  start_method="fork")
        print(f"{name}, {optimizer}, {plan}: {ranks} ranks have the losses of one process", flush=True)


def expect_refusal(words, call):
    try:
        call()
    except (NotImplementedError, ValueError) as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"{words}: accepted")


def check_operators(_, folder):
    """An operator that is not supported, with its module and source line."""
    torch.set_num_threads(1)
    for layer, name, why in ((nn.MaxPool2d(2, dilation=2), "max_pool2d_with_indices", "expected no dilation"),
                             (nn.FractionalMaxPool2d(2, 4), "fractional_max_pool2d", "automap_torch does not know")):
        model = Layered(layer)
        place = f"module layers.0, {pathlib.Path(__file__).name}:{Layered.line()}"
        expect_refusal(f"aten.{name}.default ({place}): {why}", lambda model=model: automap_torch.export(
            model, lambda model, x: model(x).mean(), torch.optim.SGD(model.parameters()), (torch.randn(2, 4, 8, 8),),
            folder))


def check_bags(_, folder):
    """Bags of one size have PyTorch's values and gradients."""
    torch.set_num_threads(1)
    for mode, padding in (("sum", None), ("mean", None), ("sum", 3), ("mean", -1)):
        bag, words = nn.EmbeddingBag(12, 4, mode=mode, padding_idx=padding), torch.randint(0, 12, (6, 5))
        words[0] = 11  # nothing but padding
        found = []
        for context in (contextlib.nullcontext(), plain_kernels()):
            with context:
                bag.zero_grad()
                (bag(words) ** 2).sum().backward()
                found.append((bag(words).detach(), bag.weight.grad.clone()))
        assert all(map(torch.allclose, *found)), (mode, padding)
    bag = nn.EmbeddingBag(WORDS, WIDTH)
    automap_torch.export(bag, lambda bag, x: (bag(x) ** 2).mean(), torch.optim.SGD(bag.parameters()),
                         (torch.randint(0, WORDS, (8, 5)),), folder)
    succeed("search", folder / "model.hlo", "--cluster", "nominal:2", "--quiet", "-o", folder / "bag.json")
    bag = nn.EmbeddingBag(WORDS, WIDTH, mode="max")
    batch = torch.randint(0, WORDS, (8, 5)),
    expect_refusal("embedding_bag: expected", lambda: automap_torch.export(
        bag, lambda bag, x: bag(x).mean(), torch.optim.SGD(bag.parameters()), batch, folder))


def check_sequences_first(_, folder):
    """Examples that are said to be the first dimension, where they are the second, are refused with the remedy. A plan
    for a batch of sequences first splits the batch."""
    torch.set_num_threads(1)
    model = SequencesFirst()
    batch = torch.randint(0, WORDS, (16, 8)), torch.randint(0, WORDS, (16, 8))
    for dimension in (0, None):
        automap_torch.export(model, classify, torch.optim.SGD(model.parameters()), batch, folder, batch_dim=dimension)
        done = automap("search", folder / "model.hlo", "--cluster", "nominal:4", "--for", "torch", "--quiet",
                       "--baseline", "data_parallel", "-o", folder / "first.json")
        if dimension == 0:
            assert done.returncode == 4 and "batch_a are along dimension 1; export" in done.stderr, done
    assert done.returncode == 0, done
    succeed("export", folder / "first.json", folder / "model.hlo", "--format", "torch", "-o", folder / "torch.json")
    rows = json.loads((folder / "torch.json").read_text())["stages"][0]["parameters"]
    assert all(row["placements"][0] == "Shard(0)" for row in rows if row["role"] == "data"), rows


def check_kinds_of_losses(*_):
    """A mean of as many classes as examples, whose model has sequences first, is a mean."""
    assert find_kind(nn.Linear(4, 4), lambda model, x, y: functional.cross_entropy(model(x)[0], y),
                     (torch.randn(1, 4, 4), torch.randint(0, 4, (4,))), [1, 0]) == (False, None)


def check_tables(*_):
    """Constants that differ along the first dimension make the second one that of the examples."""
    for table in (lambda size: torch.ones(size, 4).tril(), lambda size: torch.ones(size, 4).cumsum(0)):
        assert [1] == find_batch(nn.Linear(4, 4), lambda model, x, table=table: model(
            x * table(len(x))[:, None]).mean(), [torch.randn(8, 8, 4)])


def check_mixed_data(_, folder):
    """Micro-batches of data whose examples are mixed before any weight are refused; a search finds none."""
    torch.set_num_threads(1)
    model, update, batch = make("centred", "sgd")
    automap_torch.export(model, classify, update, batch, folder)
    module, plan = folder / "model.hlo", folder / "plan.json"
    search = "search", module, "--cluster", "nominal:2", "--quiet", "--baseline", "zero3", "--micro-batches"
    succeed(*search, 2, "-o", plan)
    for done in (automap(*search, 2, "--for", "torch"), automap("export", plan, module, "--format", "torch")):
        assert done.returncode == 4 and "statistic of the batch's tensors" in done.stderr, done
    succeed("search", module, "--cluster", "nominal:4", "--stages", 2, "--for", "torch", "--quiet", "-o", plan)
    assert json.loads(plan.read_text())["micro_batches"] == 1


def check_repeats(_, folder):
    """Gradients that compute functions of the forward pass once more are no recomputation by the user, beside which
    plans would have none."""
    torch.set_num_threads(1)
    layers = [layer for activation in (nn.SiLU(), nn.GELU()) for layer in (nn.Linear(16, 16), activation)]
    model = nn.Sequential(*layers, nn.BatchNorm1d(16), nn.Linear(16, 8))
    automap_torch.export(model, classify, torch.optim.SGD(model.parameters()),
                         (torch.randn(8, 16), torch.randint(0, 8, (8,))), folder)
    opcodes = json.loads(succeed("info", folder / "model.hlo", "--json"))["opcodes"]
    assert opcodes["logistic"] == opcodes["erf"] == 1, opcodes


def check_dropout(_, folder):
    """Each step draws other masks. Features that are kept are doubled, so that losses stay near those without."""
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = Dropped()
    batch = torch.randn(8, 16), torch.randint(0, 8, (8,))
    automap_torch.export(model, classify, torch.optim.SGD(model.parameters(), lr=0), batch, folder)
    lines = succeed("run", folder / "model.hlo", "--plan", "none", "--state", folder / "state.npz", "--data",
                    folder / "data.npz", "--steps", 20, "--json").splitlines()
    losses = torch.tensor([json.loads(line)["loss"] for line in lines if '"loss"' in line])
    drawn = torch.stack([classify(model, *batch).detach() for _ in range(200)])
    assert len(set(losses.tolist())) == 20, losses
    assert abs(losses.mean() - drawn.mean()) < 4 * drawn.std() / 20**0.5, (losses.mean(), drawn.mean(), drawn.std())
    assert 0.5 < losses.std() / drawn.std() < 2, (losses.std(), drawn.std())


class Products(TorchDispatchMode):
    """Counts the products that are computed."""

    count = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        self.count += function in (torch.ops.aten.mm.default, torch.ops.aten.bmm.default, torch.ops.aten.addmm.default)
        return function(*arguments, **(options or {}))


def check_saved(_, folder):
    """A range is recomputed but for the values that the plan saves: with all its products saved none is repeated."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)

    def place_of(node):
        return {"op_name": node.name}

    found = {}
    for kind in ("kept", "recomputed", "saved"):
        model, _, batch = make("attention", "sgd")
        nodes = trace_loss(model, classify, batch).operators
        products = [node for node in nodes if node.name.startswith(("mm", "bmm", "addmm"))]
        parameters = [{"number": k, "path": name, "role": "weight", "placements": ["Replicate()"]}
                      for k, (name, _) in enumerate(model.named_parameters())]
        parameters += [{"number": 99 + k, "path": f"batch.{k}", "role": "data", "placements": ["Replicate()"],
                        "shape": list(value.shape), "dtype": DTYPES[value.dtype]} for k, value in enumerate(batch)]
        ranges = [{"begins": place_of(products[0]), "ends": place_of(products[len(products) // 2])},
                  {"begins": place_of(products[len(products) // 2]), "ends": place_of(products[-1])}]
        stage = {"device_mesh": {"ranks": [0], "shape": [1], "dim_names": ["data"]}, "parameters": parameters,
                 "begins": place_of(nodes[0]), "recompute": [] if kind == "kept" else ranges,
                 "saved": list(map(place_of, products)) if kind == "saved" else []}
        training = GraphTraining if kind == "kept" else automap_torch.parallelize
        training = training(model, classify, {"format": "automap-dtensor-1", "stages": [stage], "n_microbatches": 2},
                            "cpu")
        with Products() as counted:
            value = training.step(*batch)
        found[kind] = value, counted.count, [weight.grad.full_tensor() for weight in training.parameters()]
    for kind in ("recomputed", "saved"):
        assert found[kind][0] == found["kept"][0], (kind, found[kind][0], found["kept"][0])
        for own, other in zip(found[kind][2], found["kept"][2], strict=True):
            torch.testing.assert_close(own, other)
    kept, recomputed, saved = (found[kind][1] for kind in ("kept", "recomputed", "saved"))
    assert kept == saved < recomputed, (kept, saved, recomputed)
    torch.distributed.destroy_process_group()


def check_refusals(folder):
    """Other optimizers, and other plans, before anything is traced or placed."""
    model, _, batch = make("mlp", "sgd")
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
    stage = {"device_mesh": {"ranks": [0], "shape": [1], "dim_names": ["data"]}, "parameters": []}
    plan = {"format": "automap-dtensor-1", "stages": [stage], "n_microbatches": 1}
    two = stage | {"device_mesh": stage["device_mesh"] | {"ranks": [1]}}
    cases = [("expected SGD", lambda: automap_torch.export(
                 model, classify, torch.optim.Rprop(model.parameters()), batch, folder)),
             ("SGD with dampening (expected", lambda: automap_torch.export(
                 model, classify, torch.optim.SGD(model.parameters(), momentum=0.9, dampening=0.5), batch, folder)),
             ("no parameter 0.weight", lambda: automap_torch.parallelize(model, classify, plan)),
             ("expected format", lambda: automap_torch.parallelize(model, classify, {"stages": [stage]})),
             ("2 devices", lambda: automap_torch.parallelize(model, classify, plan | {"stages": [stage, two]}))]
    for words, call in cases:
        expect_refusal(words, call)
    torch.distributed.destroy_process_group()
    assert not (folder / "model.hlo").exists()


def main():
    with tempfile.TemporaryDirectory() as folder:
        check_refusals(pathlib.Path(folder))
        for function in (check_operators, check_bags, check_sequences_first, check_kinds_of_losses, check_tables,
                         check_mixed_data, check_saved, check_repeats, check_dropout):
            torch.multiprocessing.start_processes(function, (pathlib.Path(folder),), nprocs=1, start_method="fork")
    for name, optimizer, plans in CASES:
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        with tempfile.TemporaryDirectory() as folder:
            check_case(name, optimizer, plans, pathlib.Path(folder))


if __name__ == "__main__":
    main()
