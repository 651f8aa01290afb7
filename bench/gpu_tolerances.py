"""Tolerances of bench/gpu_train.py: how far rounding errors alone move a model's losses.

The program automap_perturbed (tests/perturb) trains on the CPU while the results of products, sums and
functions move by one or two units in the last place. For each model this script takes the largest relative
deviation of a loss over several seeds and plans. The tolerance is that deviation times FACTOR, at least FLOOR.
With tf32 the operands of products are rounded to 10 bits of fraction. Models on whole numbers are exact.

The power of a tolerance is measured, too. One product at a time is multiplied by 1.01 (scale), loses the last
term of its sums (cut) or has its results in reverse order (turn). The table has the number of products for
which the losses leave the tolerance. Two cases cannot: an optimizer on signs (lion) is blind to the scale of a
gradient, and 1.01 is the last bit of a bfloat16.

    python bench/gpu_tolerances.py                  write bench/gpu_tolerances.json anew (minutes)
    python bench/gpu_tolerances.py mlp_tiny         the same for single models
    python bench/gpu_tolerances.py --show           print the table

AUTOMAP names the program (build/automap); automap_perturbed lies beside it.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

import gpu_train

AUTOMAP = pathlib.Path(os.environ.get("AUTOMAP", "build/automap"))
PERTURBED = AUTOMAP.with_name("automap_perturbed")
SEEDS = range(1, 13)
PLAN_SEED = 13  # of the runs with plans of 2 and 4 ranks
FACTOR = 8
FLOOR = 32 * 2.0**-23  # units in the last place of a loss: sums of other libraries err by more than one
FAULTS = ("scale", "cut", "turn")
MOST_FAULTS = 6  # products of a model in which faults are tried


def run(model, setting, plan="none", steps=gpu_train.STEPS):
    """The finished run of a model on the CPU under one setting of AUTOMAP_PERTURB."""
    at = f"datasets/models/{model}"
    command = [PERTURBED, "run", f"{at}/model.hlo.pb", "--plan", plan, "--state", f"{at}/state.npz", "--data",
               f"{at}/data.npz", "--steps", str(steps), "--device", "cpu", "--json", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True,
                          env=dict(os.environ, AUTOMAP_PERTURB=setting, OPENBLAS_NUM_THREADS="1"))
    if done.returncode != 0:
        raise RuntimeError(f"{model}, {setting}: {done.stderr.strip() or done.stdout.strip()}")
    return done


def losses(model, setting, plan="none"):
    rows = [json.loads(line) for line in run(model, setting, plan).stdout.splitlines() if line.startswith("{")]
    return [row["loss"] for row in rows if row.get("loss") is not None]


def products(model):
    """Canonical instructions of a model's products, MOST_FAULTS of them at even distances."""
    lines = run(model, "0,list", steps=1).stderr.splitlines()
    origins = sorted({int(line.split()[1]) for line in lines if line.startswith("product ")})
    count = min(len(origins), MOST_FAULTS)
    return [origins[k * (len(origins) - 1) // max(count - 1, 1)] for k in range(count)]


def plans(model, folder):
    """Files of the plans that bench/gpu_train.py runs."""
    for ranks in gpu_train.RANKS:
        for name, arguments in gpu_train.PLANS.items():
            plan = pathlib.Path(folder) / f"{model}.{ranks}.{name.replace(' ', '_')}.json"
            subprocess.run([AUTOMAP, "search", f"datasets/models/{model}/model.hlo.pb", "--cluster", f"nominal:{ranks}",
                            *arguments, "-o", plan, "--quiet"], check=True, capture_output=True)
            yield str(plan)


def deviation(model, plain, settings):
    """The largest relative deviation from the losses `plain` over settings, pairs (setting, plan); two digits."""
    worst = [gpu_train.worst_difference(losses(model, setting, plan), plain) for setting, plan in settings]
    if None in worst:
        raise RuntimeError(f"{model}: a perturbed run has no losses")
    return float(f"{max(worst):.2g}")


def faults(model, plain, tolerance, tf32_tolerance=None):
    """For each kind of fault, in how many products it was tried and in how many it left the tolerance."""
    origins, found = products(model), {}
    for kind in FAULTS:
        worst = [gpu_train.worst_difference(losses(model, f"0,{kind}@{origin}"), plain) for origin in origins]
        found[kind] = sum(w is None or w > tolerance for w in worst)
        if tf32_tolerance is not None:
            found[f"{kind}_tf32"] = sum(w is None or w > tf32_tolerance for w in worst)
    return {"products": len(origins), **found}


def tolerance_of(deviation):
    return float(f"{max(FACTOR * deviation, FLOOR):.2g}")


def row_of(model):
    """One row of the table."""
    plain = losses(model, "0")
    with tempfile.TemporaryDirectory() as folder:
        settings = [(str(seed), "none") for seed in SEEDS] + [(str(PLAN_SEED), plan) for plan in plans(model, folder)]
        worst = deviation(model, plain, settings)
    if model in gpu_train.EXACT:
        return {"deviation": worst, "tolerance": 0, "faults": faults(model, plain, 0)}
    row = {"deviation": worst, "tolerance": tolerance_of(worst)}
    if model not in gpu_train.BFLOAT16:
        worst = deviation(model, plain, [(f"{seed},tf32", "none") for seed in SEEDS])
        row |= {"tf32_deviation": worst, "tf32_tolerance": tolerance_of(worst)}
    return row | {"faults": faults(model, plain, row["tolerance"], row.get("tf32_tolerance"))}


def show(table):
    kinds = [*FAULTS, *(f"{kind}_tf32" for kind in FAULTS)]
    print(f"{'model':20}{'tolerance':>10}{'tf32':>10}{'products':>10}" + "".join(f"{kind:>12}" for kind in kinds))
    for model, row in table["models"].items():
        found = row["faults"]
        print(f"{model:20}{row['tolerance']:10.1e}{row.get('tf32_tolerance', 0):10.1e}{found['products']:10}"
              + "".join(f"{found.get(kind, ''):>12}" for kind in kinds))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", help="models to measure (default: all)")
    parser.add_argument("--show", action="store_true", help="print the table and measure nothing")
    arguments = parser.parse_args()
    table = {"command": "python bench/gpu_tolerances.py", "factor": FACTOR, "floor": FLOOR, "seeds": len(SEEDS),
             "models": {}}
    if gpu_train.TABLE.exists() and (arguments.models or arguments.show):
        table["models"] = json.loads(gpu_train.TABLE.read_text())["models"]
    names = [] if arguments.show else arguments.models or gpu_train.models()
    with ThreadPoolExecutor(2) as pool:
        for model, row in zip(names, pool.map(row_of, names)):
            table["models"][model] = row
            print(model, json.dumps(row), file=sys.stderr)
    table["models"] = dict(sorted(table["models"].items()))
    show(table)
    if names:
        rows = ",\n".join(f"    {json.dumps(model)}: {json.dumps(row)}" for model, row in table["models"].items())
        head = ",\n".join(f"  {json.dumps(key)}: {json.dumps(table[key])}" for key in table if key != "models")
        gpu_train.TABLE.write_text(f'{{\n{head},\n  "models": {{\n{rows}\n  }}\n}}\n')


if __name__ == "__main__":
    main()
