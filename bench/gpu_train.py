"""Training on the card equals training on the CPU: the end-to-end stage of bench/gpu.sh.

Every small model of the zoo takes 20 steps on one rank, once more there with tf32, and, by two plans
each, on 2 and on 4 ranks that share the card. Two models also have plans with fused attention. The losses
are compared with those of automap's own CPU executor on one device and with JAX's, which are kept beside
the model. The tolerance of each model comes from CPU runs with perturbed products (bench/gpu_tolerances.py).

Searches and the CPU's runs need no card: `python bench/gpu_train.py` does them in the folder of a pack, in
which bench/gpu.sh calls it, so that the machine with the card only trains on it.
"""

import json
import os
import pathlib
import subprocess
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

PREPARED = pathlib.Path("prepared")
STEPS = 20
RANKS = (2, 4)
PLANS = {"data parallel": ["--searcher", "baseline", "--baseline", "data_parallel"], "searched": []}
FUSED = {"fused attention": ["--searcher", "baseline", "--baseline", "megatron", "--attention", "fused"]}
FUSED_MODELS = ("gpt2_tiny", "llama_tiny")

TABLE = pathlib.Path(__file__).with_name("gpu_tolerances.json")
BFLOAT16 = ("gpt2_bf16_tiny", "llama_tiny")
EXACT = ("exact_linear", "exact_gather")  # whole numbers: equal in any order


def tolerance_of(model, precision="f32"):
    """The largest difference from the CPU relative to a loss."""
    row = json.loads(TABLE.read_text())["models"][model]
    return row["tf32_tolerance"] if precision == "tf32" else row["tolerance"]


def models():
    """Names of the models that come with state, data and JAX's losses."""
    return sorted(path.parent.name for path in pathlib.Path("datasets/models").glob("*/losses.json"))


def losses_of(run, model, plan, device, precision="f32"):
    """Returns the losses of the first steps by `automap run`, or the reason why it has no losses."""
    at = f"datasets/models/{model}"
    done = run(["bin/automap", "run", f"{at}/model.hlo.pb", "--plan", plan, "--state", f"{at}/state.npz",
                "--data", f"{at}/data.npz", "--steps", STEPS, "--device", device, "--json", "--quiet",
                *(["--tf32"] if precision == "tf32" else [])])
    if done.status != 0:
        return [], done.reason
    rows = [json.loads(line) for line in done.output.splitlines() if line.startswith("{")]
    return [row["loss"] for row in rows if row.get("loss") is not None], ""


def worst_difference(losses, wanted):
    """The largest relative difference; None where the counts differ or a loss is no number."""
    if len(losses) != len(wanted) or not losses:
        return None
    differences = [abs(a - b) / max(abs(b), 1e-30) for a, b in zip(losses, wanted)]
    return None if any(d != d for d in differences) else max(differences)


def check(run, model, what, plan, device, references, precision="f32"):
    """(name, passed, detail) of one training run; references are the losses of the CPU and of JAX.

    The tolerance beside JAX is larger by the distance of the two references."""
    losses, reason = losses_of(run, model, plan, device, precision)
    if reason:
        return f"{model}, {what}", False, reason
    worst = [worst_difference(losses, reference) for reference in references]
    apart = worst_difference(*references)
    if None in (*worst, apart):
        return f"{model}, {what}", False, f"{len(losses)} losses or no numbers (expected {len(references[0])})"
    tolerance = tolerance_of(model, precision)
    detail = f"off by {worst[0]:.1e} from the CPU, {worst[1]:.1e} from JAX; tolerance {tolerance:.1e}"
    return f"{model}, {what}", worst[0] <= tolerance and worst[1] <= tolerance + apart, detail


def cases(names):
    """(model, name of the run, plan, precision) of all runs of these models, in order of importance."""
    rows = [(model, "1 rank", "none", "f32") for model in names]
    rows += [(model, "1 rank, tf32", "none", "tf32") for model in names if model not in (*BFLOAT16, *EXACT)]
    rows += [(model, f"{ranks} ranks, {name}", plan_name(ranks, name), "f32")
             for name in (*PLANS, *FUSED) for ranks in RANKS for model in names if name in plans_of(model)]
    return rows


def plans_of(model):
    """{name: options of the search} of a model's plans."""
    return PLANS | (FUSED if model in FUSED_MODELS else {})


def plan_name(ranks, name):
    return f"{ranks}.{name.replace(' ', '_')}"


def plan_of(model, plan):
    return plan if plan == "none" else PREPARED / f"{model}.{plan}.json"


def references_of(model):
    """Losses of the CPU executor, prepared with the pack, and of JAX."""
    prepared = json.loads((PREPARED / f"{model}.losses.json").read_text())
    wanted = json.loads(pathlib.Path(f"datasets/models/{model}/losses.json").read_text())
    return prepared["losses"], wanted["losses"][:STEPS]


class Recorder:
    """Runs commands and keeps the end of the last."""

    def __init__(self, run):
        self.run, self.last = run, None

    def __call__(self, command):
        self.last = self.run(command)
        return self.last


def train(run, rows, device, each, report):
    """Trains the rows of cases(); report(name, passed, detail, end of the program) for each."""

    def one(row):
        model, what, plan, precision = row
        recorder = Recorder(run)
        references = references_of(model)
        report(*check(recorder, model, what, plan_of(model, plan), device, references, precision), recorder.last)

    each(one, [row for row in rows if device != "cpu" or row[3] == "f32"])


def prepare():
    """Writes the plans and the CPU's losses, which do not depend on a card, in the folder of a pack."""
    PREPARED.mkdir(exist_ok=True)

    def run(command):
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(map(str, command))}: exit status {done.returncode}\n{done.stderr}")
        return SimpleNamespace(status=0, output=done.stdout)

    def one(model):
        losses, _ = losses_of(run, model, "none", "cpu")
        (PREPARED / f"{model}.losses.json").write_text(json.dumps({"losses": losses}) + "\n")
        for ranks in RANKS:
            for name, arguments in plans_of(model).items():
                run(["bin/automap", "search", f"datasets/models/{model}/model.hlo.pb", "--cluster", f"nominal:{ranks}",
                     *arguments, "-o", plan_of(model, plan_name(ranks, name)), "--quiet"])

    with ThreadPoolExecutor(os.cpu_count() or 2) as pool:
        list(pool.map(one, models()))


if __name__ == "__main__":
    prepare()
