"""Training on the card equals training on the CPU: the end-to-end stage of bench/gpu.sh.

Every small model of the zoo takes 20 steps on one rank, once more there with tf32, and, by two plans
each, on 2 and on 4 ranks that share the card. Its losses are compared with those of automap's own CPU
executor on one device and with JAX's, which are kept beside the model. The tolerance of each model
comes from CPU runs with perturbed products (bench/gpu_tolerances.py).
"""

import json
import pathlib
from concurrent.futures import ThreadPoolExecutor

STEPS = 20
RANKS = (2, 4)
PLANS = {"data parallel": ["--searcher", "expert", "--expert", "data_parallel"], "searched": []}

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
    """Losses of the first steps by `automap run`, or the reason why there are none."""
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


def cases(run, model, device, folder):
    """Yields the results of one model: one rank, then the plans."""
    wanted = json.loads(pathlib.Path(f"datasets/models/{model}/losses.json").read_text())["losses"][:STEPS]
    reference, reason = losses_of(run, model, "none", "cpu")
    if reason or not reference:
        yield f"{model}, on the CPU", False, reason or "no losses"
        return
    yield check(run, model, "1 rank", "none", device, (reference, wanted))
    if device != "cpu" and model not in (*BFLOAT16, *EXACT):
        yield check(run, model, "1 rank, tf32", "none", device, (reference, wanted), "tf32")
    for ranks in RANKS:
        for name, arguments in PLANS.items():
            plan = folder / f"{model}.{ranks}.{name.replace(' ', '_')}.json"
            done = run(["bin/automap", "search", f"datasets/models/{model}/model.hlo.pb", "--cluster",
                        f"nominal:{ranks}", *arguments, "-o", plan, "--quiet"])
            if done.status != 0:
                yield f"{model}, {ranks} ranks, {name}", False, done.reason
            else:
                yield check(run, model, f"{ranks} ranks, {name}", plan, device, (reference, wanted))


def train_all(run, names, device, folder, workers, report):
    """These models, several at once; report(name, passed, detail) for each run as it ends."""

    def train(model):
        for result in cases(run, model, device, folder):
            report(*result)

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(train, names))
