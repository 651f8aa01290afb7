# labels: cpu e2e
# timeout: 300
"""The table bench/gpu_tolerances.json: complete, made by its rule, wide enough for rounding, too narrow for faults.

Fresh runs of automap_perturbed on small models repeat the rows of the table: other seeds stay within the
tolerance, single wrong products leave it. bench/gpu_train.py judges by the table.
"""

import json
import os
import pathlib
import subprocess
import sys
import types

sys.path.insert(0, "bench")
import gpu_tolerances
import gpu_train

FRESH_SEEDS = (101, 102)


def fail(text):
    print(text)
    sys.exit(1)


def expect(condition, text):
    if not condition:
        fail(text)


def check_table(table):
    rows = table["models"]
    expect(sorted(rows) == gpu_train.models(), f"models of the table: {sorted(rows)} (expected {gpu_train.models()})")
    for model, row in rows.items():
        found, tolerance = row["faults"], gpu_train.tolerance_of(model)
        if model in gpu_train.EXACT:
            expect(row["deviation"] == 0 and tolerance == 0, f"{model}: moves by rounding (expected: exact)")
        else:
            expect(tolerance == gpu_tolerances.tolerance_of(row["deviation"]), f"{model}: {tolerance} breaks the rule")
        expect(found["turn"] == found["products"], f"{model}: {found} (expected each reversed product beyond)")
        expect(found["products"] > 0 or model == "exact_gather", f"{model}: no products")
        if model in gpu_train.BFLOAT16:
            continue
        expect(found["cut"] == found["products"], f"{model}: {found} (expected each missing term beyond)")
        expect(2 * found["scale"] >= found["products"], f"{model}: {found} (expected half of the factors beyond)")
        if model not in gpu_train.EXACT:
            expect(row["tf32_tolerance"] == gpu_tolerances.tolerance_of(row["tf32_deviation"]), f"{model}: tf32")
            expect(2 * found["turn_tf32"] >= found["products"], f"{model}: {found} (expected half beyond with tf32)")
    print(f"{len(rows)} models, by the rule")


def plain_losses(model):
    at = f"datasets/models/{model}"
    done = subprocess.run([gpu_tolerances.AUTOMAP, "run", f"{at}/model.hlo.pb", "--plan", "none", "--state",
                           f"{at}/state.npz", "--data", f"{at}/data.npz", "--steps", str(gpu_train.STEPS), "--json",
                           "--quiet"], capture_output=True, text=True, check=True)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return [row["loss"] for row in rows if row.get("loss") is not None]


def check_rounding(model):
    """Other seeds stay within the tolerance; seed 0 moves nothing; equal seeds give equal losses."""
    plain = gpu_tolerances.losses(model, "0")
    expect(plain == plain_losses(model), f"{model}: seed 0 differs from automap")
    for seed in FRESH_SEEDS:
        worst = gpu_tolerances.deviation(model, plain, [(str(seed), "none")])
        expect(worst <= gpu_train.tolerance_of(model), f"{model}, seed {seed}: off by {worst:.1e}")
        expect((worst > 0) == (model not in gpu_train.EXACT), f"{model}, seed {seed}: off by {worst:.1e}")
        print(f"{model}, seed {seed}: off by {worst:.1e}")
    first, second = (gpu_tolerances.losses(model, str(FRESH_SEEDS[0])) for _ in range(2))
    expect(first == second, f"{model}: one seed gave two results")


def check_tf32(model):
    plain = gpu_tolerances.losses(model, "0")
    worst = gpu_tolerances.deviation(model, plain, [(f"{seed},tf32", "none") for seed in FRESH_SEEDS])
    expect(gpu_train.tolerance_of(model) < worst <= gpu_train.tolerance_of(model, "tf32"), f"{model}: tf32 {worst:.1e}")


def check_fault(model, kind):
    plain, origin = gpu_tolerances.losses(model, "0"), gpu_tolerances.products(model)[0]
    worst = gpu_tolerances.deviation(model, plain, [(f"0,{kind}@{origin}", "none")])
    expect(worst > gpu_train.tolerance_of(model), f"{model}, {kind}: off by {worst:.1e}, within the tolerance")
    print(f"{model}, {kind}: off by {worst:.1e}")


def check_judge():
    """gpu_train.check passes losses within the tolerance of a model and fails those beyond, or no losses."""
    reference = [2.0, 1.5]
    tolerance = gpu_train.tolerance_of("mlp_tiny")

    def judged(factor, precision="f32", count=2):
        rows = "\n".join(json.dumps({"loss": loss * (1 + factor)}) for loss in reference[:count])
        return gpu_train.check(lambda command: types.SimpleNamespace(status=0, reason="", output=rows), "mlp_tiny",
                               "1 rank", "none", "cuda", (reference, reference), precision)[1]

    expect(judged(0.9 * tolerance) and not judged(1.1 * tolerance), "the judge of f32")
    expect(judged(1.1 * tolerance, "tf32") and not judged(2 * gpu_train.tolerance_of("mlp_tiny", "tf32"), "tf32"),
           "the judge of tf32")
    expect(not judged(0, count=1) and not judged(float("nan")), "missing losses pass")


def main():
    check_table(json.loads(pathlib.Path(gpu_train.TABLE).read_text()))
    check_judge()
    for model in ("mlp_tiny", "lion_tiny", "moe_tiny", "exact_gather"):
        check_rounding(model)
    check_tf32("mlp_tiny")
    for kind in gpu_tolerances.FAULTS:
        check_fault("mlp_tiny", kind)
    check_fault("exact_linear", "scale")
    refused = subprocess.run([gpu_tolerances.PERTURBED, "run", "datasets/models/mlp_tiny/model.hlo.pb", "--plan",
                              "none", "--state", "random", "--steps", "1"], capture_output=True, text=True,
                             env=dict(os.environ, AUTOMAP_PERTURB="1,scal@3"))
    expect(refused.returncode == 2 and "unknown word" in refused.stderr, f"1,scal@3: {refused}")


if __name__ == "__main__":
    main()
