# labels: cpu e2e
# timeout: 1800
# cost: 15
"""Whatever plan file is run, training gives the one-device losses.

Plans of the random searcher, of even pipelines and such plans changed at random, each a file, on every small
model: meshes of 2 to 16 ranks, also such that nothing divides by, unequal shares, other orders of the
lists, without some entries, 1, 2 and 4 micro-batches. Models that cannot be split into micro-batches exactly
are listed with the reason; under the relaxation that it names, where there is one, losses are compared with
those of the same relaxed module on one device. Only the first five losses are compared.

AUTOMAP_FULL=1: 50 plans of each model; else a few. `python3 tests/e2e/test_random_plans.py [MODEL ...]`.
"""

import json
import pathlib
import random
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "launch"))
from program import AUTOMAP, FULL, MODELS

STEPS = 5
INFEASIBLE = 4

MESHES = ["data=2", "data=3", "data=4", "data=5", "data=7", "data=8", "data=16", "data=2,model=2", "data=2,model=3",
          "data=3,model=4", "data=4,model=2", "data=5,model=2", "data=4,model=4", "data=2,model=2,last=2"]
LARGE = {"t5_tiny", "bert_tiny", "gpt2_bf16_tiny", "gpt2_tiny", "vit_tiny", "resnet_tiny", "llama_tiny"}


def tolerance(model):
    """Relative error of a loss: sums in another order, in f32; bfloat16 keeps 8 bits."""
    if model.startswith("exact_"):
        return 0
    return 1e-2 if "bf16" in model or "llama" in model else 5e-6


class Refused(Exception):
    """There is no such plan; the reason is the message."""


def automap(*arguments):
    run = subprocess.run([AUTOMAP, *map(str, arguments)], capture_output=True, text=True)
    if run.returncode == INFEASIBLE:
        raise Refused(run.stderr.strip())
    assert run.returncode == 0, f"automap {' '.join(map(str, arguments))}: {run.returncode}\n{run.stderr}"
    return run.stdout


def losses(model, plan):
    at = MODELS / model
    lines = automap("run", at / "model.hlo.pb", "--plan", plan, "--state", at / "state.npz", "--data",
                    at / "data.npz", "--steps", STEPS, "--json", "--quiet")
    return [step["loss"] for step in map(json.loads, lines.splitlines()) if "loss" in step]


def devices_of(mesh):
    count = 1
    for axis in mesh.split(","):
        count *= int(axis.split("=")[1])
    return count


def write_plan(model, path, mesh, micro_batches, seed, relax=None):
    """A random plan for the model; raises Refused."""
    pipeline = seed % 5 == 4
    how = ["--baseline", "even_pipeline"] if pipeline else ["--searcher", "random", "--seed", seed,
                                                                                  "--mesh", mesh]
    ranks = 2 + seed % 3 if pipeline else devices_of(mesh)
    automap("search", MODELS / model / "model.hlo.pb", "--cluster", f"nominal:{ranks}", *how, "--micro-batches",
            micro_batches, *(["--relax", relax] if relax else []), "-o", path, "--quiet")


def unequal_shares(size, chance):
    """Parts of an axis, of 64ths that sum to 1."""
    cuts = sorted(chance.sample(range(1, 64), size - 1))
    return [(b - a) / 64 for a, b in zip([0, *cuts], [*cuts, 64])]


def change(path, chance):
    """Makes another plan from a plan file, without the parts derived from the stages."""
    plan = json.loads(path.read_text())
    for key in ("parameters", "decisions"):
        plan.pop(key, None)
    for stage in plan["stages"]:
        if chance.random() < 0.3:
            stage["keeps_gathered_weights"] = True
        if chance.random() < 0.3:
            stage["offloads_optimizer"] = True
        for axis in stage["mesh"]:
            if axis["size"] > 1 and chance.random() < 0.4:
                axis["shares"] = unequal_shares(axis["size"], chance)
        for entries in stage["axis_priorities"].values():
            compute = [entry for entry in entries if entry["kind"] == "compute"]
            others = [entry for entry in entries if entry["kind"] != "compute"]
            chance.shuffle(compute)
            entries[:] = [entry for entry in compute + others if chance.random() < 0.8]
    path.write_text(json.dumps(plan))


def compare(model, what, have, want):
    assert len(have) == STEPS, f"{model}, {what}: {len(have)} losses"
    for step, (a, b) in enumerate(zip(have, want)):
        assert abs(a - b) <= tolerance(model) * abs(b), f"{model}, {what}: loss of step {step} is {a!r}, not {b!r}"


def relaxed_reference(model, directory, micro_batches, relax):
    """Losses of the relaxed module on one device."""
    path = pathlib.Path(directory) / "one.plan.json"
    automap("search", MODELS / model / "model.hlo.pb", "--cluster", "nominal:1", "--micro-batches", micro_batches,
            "--relax",
            relax, "-o", path, "--quiet")
    return losses(model, path)


def check_model(model, plans, reasons):
    """How many plans were run."""
    reference = json.loads((MODELS / model / "losses.json").read_text())["losses"][:STEPS]
    done = attempt = 0
    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory) / "plan.json"
        relaxed = {}
        while done < plans:
            attempt += 1
            assert attempt < 4 * plans + 8, f"{model}: hardly any plan is possible: {reasons.get(model)}"
            chance = random.Random(f"{model} {attempt}")
            micro_batches, mesh = [1, 2, 4][attempt % 3], chance.choice(MESHES)
            seed, want, relax = chance.randrange(1000), reference, None
            what = f"seed {seed} on {mesh}, {micro_batches} micro-batches"
            try:
                write_plan(model, path, mesh, micro_batches, seed)
            except Refused as refused:
                named = re.search(r"--relax (\w+)", str(refused))
                if micro_batches > 1:
                    reasons.setdefault(model, {})[micro_batches] = str(refused).split("model.hlo.pb: ")[-1]
                if not named:
                    continue
                relax = named.group(1)
                if micro_batches not in relaxed:
                    relaxed[micro_batches] = relaxed_reference(model, directory, micro_batches, relax)
                want = relaxed[micro_batches]
                write_plan(model, path, mesh, micro_batches, seed, relax)
            if chance.random() < 0.6:
                change(path, chance)
                what += ", changed"
            compare(model, what + (f", {relax}" if relax else ""), losses(model, path), want)
            done += 1
    return done


def small_models():
    names = sorted(path.parent.name for path in MODELS.glob("*/losses.json"))
    return [name for name in names if name.endswith("_tiny") or name.startswith("exact_") or name == "two_swapped"]


def main():
    failures = total = 0
    reasons = {}
    models = sys.argv[1:] or small_models()
    for model in models:
        try:
            total += check_model(model, 50 if FULL else 1 if model in LARGE else 3, reasons)
        except (AssertionError, Refused) as failure:
            failures += 1
            print(f"FAILED {failure}")
    for model, by_number in sorted(reasons.items()):
        for number, reason in sorted(by_number.items()):
            print(f"{model} refuses {number} micro-batches: {reason}")
    print(f"{total} plans of {len(models)} models passed, {failures} models failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
