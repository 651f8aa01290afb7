"""Published figures beside what automap predicts: the table of docs/published.md, where the rows are
explained. They were chosen before they were run; nothing is set for one row alone.

Run as `AUTOMAP=build/automap python3 bench/published.py [--row PART] [--keep DIR]`. Models are exported to
DIR (a folder that is removed by default), which takes most of the time.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(__file__).resolve().parents[1]
AUTOMAP = os.environ.get("AUTOMAP", str(SOURCE / "build" / "automap"))
sys.path.insert(0, str(SOURCE / "datasets"))

V100, P100 = 15.7, 10.6  # peak f32 TFLOP/s, by which Whale sets shares
WORDS = 51200  # Megatron-LM's vocabulary


class DoesNotFit(Exception):
    pass


def automap(*arguments):
    """The JSON that a command prints; None for a command that only writes a file."""
    command = [AUTOMAP, *map(str, arguments), "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode == 4:
        raise DoesNotFit(done.stderr)
    if done.returncode:
        sys.exit(" ".join(command) + "\n" + done.stderr)
    return json.loads(done.stdout or "null")


class Models:
    """Modules by name, exported when they are first asked for."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)

    def path(self, name, make):
        path = self.folder / name / "model.hlo.pb"
        if not path.exists():
            from automap_jax.exporter import write_module

            model = make()
            write_module(model.step, model.arguments, path.parent)
        return path

    def bert(self, layers, batch, length):
        from automap_jax.zoo import transformer

        return self.path(
            f"bert_{layers}_{batch}_{length}",
            lambda: transformer.model(
                transformer.bert_logits, transformer.masked_tokens, layers, 1024, 16, 4096, 30522, batch, length
            ),
        )  # fmt: skip

    def t5_large(self, batch):
        from automap_jax.zoo import t5

        return self.path(f"t5_large_{batch}", lambda: t5.model(24, 1024, 16, 64, 4096, 32128, batch=batch))

    def gnmt(self, batch):
        from automap_jax.zoo import gnmt

        return self.path(f"gnmt_{batch}", lambda: gnmt.model(8, 1024, 32000, batch, (48, 48)))

    def gpt(self, layers, width, heads, batch, length, half):
        import jax

        from automap_jax.zoo import megatron

        return self.path(
            f"gpt_{layers}_{width}_{batch}_{length}_{half}",
            lambda: megatron.model(layers, width, heads, WORDS, batch, length, jax.numpy.dtype(half)),
        )

    def file(self, name, content):
        path = self.folder / name
        path.write_text(json.dumps(content))
        return path


def baseline_plan(models, model, cluster, baseline, mesh, *more):
    """The file of a baseline, and its predicted step time."""
    path = models.folder / "baseline.plan.json"
    found = automap("search", model, "--cluster", cluster, "--searcher", "baseline", "--baseline", baseline, "--mesh",
                    mesh, "-o", path, *more)  # fmt: skip
    return path, found["step_seconds"]


def read_plan(path):
    """Returns a plan without the parts derived from its decisions, so that these can be changed by hand."""
    plan = json.loads(path.read_text())
    del plan["parameters"], plan["decisions"]
    return plan


def percent(ours, paper):
    return f"{100 * (ours / paper - 1):+.0f} %"


def row(source, figure, paper, ours, difference):
    print(f"| {source} | {figure} | {paper} | {ours} | {difference} |", flush=True)


# ---- DistSim ----


def name_of(strategy):
    return "data {data} x tensor {tensor} x stages {stages}".format(**strategy)


def distsim(models):
    found = automap("simulate", "--sweep", models.bert(48, 16, 512), "--cluster", "distsim-search")
    fastest = {}
    for strategy in found["strategies"]:
        if strategy.get("fits") and name_of(strategy) not in fastest:
            fastest[name_of(strategy)] = strategy
    order = list(fastest.values())
    best, worst = order[0], order[-1]
    ratio = worst["step_seconds"] / best["step_seconds"]
    print(f"\n{len(order)} of DistSim's strategies fit:", file=sys.stderr)
    for strategy in order:
        print(f"  {name_of(strategy)}: {strategy['step_seconds']:.3f} s, {strategy['micro_batches']} micro-batches",
              file=sys.stderr)  # fmt: skip
    row("DistSim, table 2", "worst / best step, BERT-exLarge", "7.37x", f"{ratio:.2f}x", percent(ratio, 7.37))
    row("", "best strategy", "data 2 x tensor 1 x stages 8", name_of(best), "")
    row("", "worst strategy", "data 1 x tensor 16 x stages 1", name_of(worst), "")
    for which, strategy, paper in ("best", best, 2.94), ("worst", worst, 0.398):
        ours = 1 / strategy["step_seconds"]
        row("", f"iterations/s of the {which}", f"{paper}", f"{ours:.3g}", percent(ours, paper))


# ---- Whale ----


def against_range(ours, low, high):
    if low <= ours <= high:
        return "in the range"
    return percent(ours, low if ours < low else high)


def even_data_parallel(models, make):
    """The largest power of two of examples per device that fits, and its even plan."""
    for batch in (2**power for power in range(10, -1, -1)):
        model = make(16 * batch)
        try:
            options = "--even", "--micro-batches", 1
            return batch, model, *baseline_plan(models, model, "whale-dp", "data_parallel", "data=16", *options)
        except DoesNotFit:
            pass
    sys.exit("no batch fits whale-dp")


def shares_by_hand(batch):
    """Examples of each device in proportion to its peak, whole, 8 V100 and then 8 P100."""
    total = 2 * batch
    fast = round(total * V100 / (V100 + P100))
    return [fast] * 8 + [total - fast] * 8


def whale_data_parallel(models, name, make):
    batch, model, path, even = even_data_parallel(models, make)
    plan = read_plan(path)
    examples = shares_by_hand(batch)
    plan["stages"][0]["mesh"][0]["shares"] = [count / sum(examples) for count in examples]
    by_hand = automap("simulate", models.file("shares.plan.json", plan), model)["step_seconds"]
    gain = even / by_hand
    row("Whale, figure 17", f"gain of shares {examples[0]} : {examples[-1]}, {name}, {batch} a device", "1.3-1.4x",
        f"{gain:.2f}x", against_range(gain, 1.3, 1.4))  # fmt: skip


def fine_cuts(models, model, count):
    """Returns the places at which `count` stages of equal FLOPs begin, and the end."""
    cluster = automap("cluster", f"nominal:{count}")
    cluster["device_types"]["host"]["memory_bytes"] = 10**12
    path, _ = baseline_plan(models, model, models.file("fine.json", cluster), "even_pipeline", "data=1")
    ranges = [stage["ranges"][0] for stage in json.loads(path.read_text())["stages"]]
    return [first for first, _ in ranges] + [ranges[-1][1]]


def whale_pipeline(models, name, model, slices):
    more = ("--micro-batches", 8, "--schedule", "1f1b")
    path, even = baseline_plan(models, model, "whale-pp", "even_pipeline", "data=2", *more)
    plan = read_plan(path)
    cuts = fine_cuts(models, model, slices)
    fast = V100 / (2 * (V100 + P100))
    at = [0, round(fast * slices), round(2 * fast * slices), round((1 + 2 * fast) / 2 * slices), slices]
    for stage, first, end in zip(plan["stages"], at, at[1:]):
        stage["ranges"] = [[cuts[first], cuts[end]]]
    by_hand = automap("simulate", models.file("cut.plan.json", plan), model)["step_seconds"]
    gain = even / by_hand
    parts = " : ".join(str(end - first) for first, end in zip(at, at[1:]))
    row("Whale, figure 18", f"gain of stages {parts}, {name}", "about 1.2x", f"{gain:.2f}x", percent(gain, 1.2))


# ---- Megatron-LM ----


def server_of_v100(models, devices):
    """As many devices as wanted of one server of cluster C."""
    cluster = automap("cluster", "C")
    cluster["name"] = f"v100-{devices}"
    cluster["servers"] = [cluster["servers"][0] | {"count": 1, "devices": devices}]
    link = cluster["servers"][0]["link"]
    cluster["links"] = {link: cluster["links"][link]}
    del cluster["between_servers"]
    if devices == 1:
        cluster["links"] = {}
        del cluster["servers"][0]["link"]
    return models.file("v100.json", cluster)


def with_rounded_sums(models, model, path):
    """Step time of a plan whose sums over devices are in f16 or bf16, as in Megatron-LM."""
    plan = read_plan(path)
    for stage in plan["stages"]:
        stage["rounds_parts"] = True
    return automap("simulate", models.file("rounded.plan.json", plan), model)["step_seconds"]


def megatron_v100(models):
    alone = None
    for layers, width, heads, devices, milliseconds, scaling in (
        (24, 1920, 15, 1, 1288, 100.0),
        (30, 2304, 18, 2, 1242, 90.7),
        (36, 3072, 24, 4, 1357, 86.5),
        (42, 4096, 32, 8, 1508, 79.6),
    ):
        model = models.gpt(layers, width, heads, 8, 1024, "float16")
        baseline = ("megatron", f"data=1,model={devices}") if devices > 1 else ("data_parallel", "data=1")
        path, _ = baseline_plan(models, model, server_of_v100(models, devices), *baseline)
        seconds = with_rounded_sums(models, model, path)
        parameters = 12 * layers * width**2 + WORDS * width
        alone = alone or seconds / parameters
        ours = 100 * alone * parameters / devices / seconds
        row("Megatron-LM 1.0", f"GPT {parameters / 1e9:.1f} B, {devices} V100: step", f"{milliseconds} ms",
            f"{1e3 * seconds:.0f} ms", percent(1e3 * seconds, milliseconds))  # fmt: skip
        if devices > 1:
            row("", "weak scaling", f"{scaling} %", f"{ours:.1f} %", percent(ours, scaling))


def megatron_a100(models):
    for layers, width, heads, tensor, servers, paper in (
        (24, 2304, 24, 1, 4, 137),
        (30, 3072, 32, 2, 8, 138),
        (36, 4096, 32, 4, 16, 142),
    ):
        batch, length, devices = 512, 2048, 8 * servers
        model = models.gpt(layers, width, heads, batch, length, "bfloat16")
        baseline = ("megatron",
                    f"data={devices // tensor},model={tensor}") if tensor > 1 else ("data_parallel", f"data={devices}")
        options = "--micro-batches", "auto", "--keep-remat", "--attention", "unfused"
        path, _ = baseline_plan(models, model, f"a100:{servers}", *baseline, *options)
        seconds = with_rounded_sums(models, model, path)
        flops = 96 * batch * length * layers * width**2 * (1 + length / (6 * width) + WORDS / (16 * layers * width))
        ours = flops / seconds / devices / 1e12
        row("Megatron-LM, table 1",
            f"GPT {12e-9 * layers * width**2 + 1e-9 * WORDS * width:.1f} B, {devices} A100, tensor {tensor}: TFLOP/s a "
            f"device",
            paper, f"{ours:.0f}", percent(ours, paper))  # fmt: skip


ROWS = {
    "distsim": distsim,
    "whale-dp-bert": lambda models: whale_data_parallel(models, "BERT-Large",
                                                        lambda batch: models.bert(24, batch, 128)),
    "whale-dp-gnmt": lambda models: whale_data_parallel(models, "GNMT", models.gnmt),
    "whale-pp-bert": lambda models: whale_pipeline(models, "BERT-Large", models.bert(24, 128, 128), 24),
    "whale-pp-t5": lambda models: whale_pipeline(models, "T5-Large", models.t5_large(128), 48),
    "megatron-v100": megatron_v100,
    "megatron-a100": megatron_a100,
}


def print_table(description, parts, make_models):
    """The parts of the table that the command line asks for; `parts` are functions of the models."""
    parser = argparse.ArgumentParser(description=description.split("\n\n")[0])
    parser.add_argument("--row", choices=parts, help="this part of the table alone")
    parser.add_argument("--keep", metavar="DIR", help="leave the exported models here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.keep:
            pathlib.Path(options.keep).mkdir(parents=True, exist_ok=True)
        models = make_models(options.keep or folder)
        print("| source | figure | paper | ours | difference |\n|---|---|---|---|---|")
        for name, run in parts.items():
            if options.row in (None, name):
                run(models)


if __name__ == "__main__":
    print_table(__doc__, ROWS, Models)
