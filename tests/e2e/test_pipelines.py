# labels: cpu e2e
# timeout: 900
# cost: 20
"""Pipelines give the one-device losses, and their plan files are checked.

Small models are cut by the even pipeline into 2 and 4 stages on 2 to 8 ranks, with data parallelism inside
the stages and without, by 1F1B, GPipe, interleaved 1F1B, ZB-H1 and ZB-2p; the losses are those of `--plan none`. A plan
that is no pipeline is refused by name. Without AUTOMAP_FULL some models are run.

Run as `AUTOMAP=build/automap python3 tests/e2e/test_pipelines.py [MODEL ...]`.
"""

import json
import pathlib
import random
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "launch"))
from program import FULL, automap, losses, succeed

SOURCE = pathlib.Path(__file__).resolve().parents[2]
MODELS = SOURCE / "datasets" / "models"

# Clipping (adamw_tiny), two stacks (t5_tiny), loops (lstm_tiny, llama_tiny: scan and recomputation).
SAMPLE = ["mlp_tiny", "gpt2_tiny", "t5_tiny", "adamw_tiny", "lstm_tiny", "llama_tiny", "exact_linear"]
REST = ["accumulated_tiny", "adafactor_tiny", "bert_tiny", "dropout_tiny", "exact_gather", "flax_tiny", "fused_tiny",
        "gpt2_bf16_tiny", "lion_tiny", "moe_sorted_tiny", "moe_tiny", "resnet_tiny", "two_swapped",
        "unet_tiny", "vgg_tiny", "vit_tiny"]
# A rounding that differs grows from step to step, most where a maximum or a rectifier may choose otherwise.
TOLERANCE = {"gpt2_bf16_tiny": 1e-2, "llama_tiny": 1e-2, "exact_linear": 0, "exact_gather": 0}
LATER_TOLERANCE = {"vgg_tiny": 3e-2, "resnet_tiny": 3e-2, "flax_tiny": 3e-2, "unet_tiny": 3e-2}
EARLY = 5  # steps that are held to TOLERANCE
PIPELINES = [(2, "data=1"), (4, "data=1"), (4, "data=2"), (8, "data=2"), (8, "data=4")]
SAMPLE_PIPELINES = [(2, "data=1"), (8, "data=2")]
MICRO_BATCHES = [2, 4, 8]
SCHEDULES = ["1f1b", "gpipe", "zb_h1", "zb_2p", "interleaved_1f1b"]
STEPS = 20 if FULL else 3
# A module may have too few operators, or sums over the batch that its turns would need beforehand.
REASONS = ["too few forward operators", "micro-batches", "schedule 1f1b", "schedule zb_h1", "schedule zb_2p",
           "schedule interleaved_1f1b"]


def check_losses(name, have, want, tolerance):
    assert len(have) == len(want) == STEPS, f"{name}: {len(have)} losses"
    for step, (a, b) in enumerate(zip(have, want)):
        worst = abs(a - b) / max(abs(b), 1e-30)
        allowed = tolerance if step < EARLY else max(10 * tolerance, LATER_TOLERANCE.get(name.split()[0], 0))
        assert worst <= allowed, f"{name}: the loss of step {step} is off by {worst:.2e}"


def recomputed(plan, pieces, saved_share):
    """The plan with the forward operators of every stage recomputed in `pieces` ranges, apart from a random
    share of them whose values are saved."""
    root = json.loads(plan.read_text())
    choose = random.Random(pieces)
    count = root["module"]["instructions"]
    for stage in root["stages"]:
        stage["recompute"] = []
        for first, end in stage["ranges"]:
            end = min(end, count)
            step = max(1, (end - first) // pieces)
            stage["recompute"] += [[at, min(at + step, end)] for at in range(first, end, step)]
        stage["saved"] = [at for first, end in stage["recompute"] for at in range(first, end)
                          if choose.random() < saved_share]
    for derived in ("parameters", "decisions"):
        root.pop(derived)
    changed = plan.with_name("recomputed.json")
    changed.write_text(json.dumps(root))
    return changed


def check_recomputed(title, model, plan, source, have, pieces):
    """Only memory changes, which does not grow, apart from a tiny model's scratch."""
    for saved_share in (0, 0.5) if FULL or pieces % 2 else (0.5,):
        check_saved(title, model, plan, source, have, pieces, saved_share)


def check_saved(title, model, plan, source, have, pieces, saved_share):
    again = recomputed(plan, pieces, saved_share)
    refused = automap("simulate", again, model, "--json")
    if refused.returncode == 4 and any(reason in refused.stderr for reason in REASONS[2:]):
        return  # a part would need what an earlier one makes again
    assert losses(model, again, source, STEPS) == have, f"{title}: losses differ where forward values are made again"
    peaks = [sum(device["peak_bytes"] for device in json.loads(succeed("simulate", at, model, "--json"))["devices"])
             for at in (plan, again)]
    assert peaks[1] <= 1.15 * peaks[0], f"{title}: {peaks[1]} bytes with recomputation, {peaks[0]} without"


def check_model(name, model, source, pipelines, directory):
    """How many pipelines were run; the module may be too small for some."""
    want, count = losses(model, "none", source, STEPS), 0
    same_plan = {}  # turns are added up in one order whatever the schedule
    cases = [(devices, mesh, 1, "gpipe") for devices, mesh in pipelines[:1]]
    for number, (devices, mesh) in enumerate(pipelines):
        for schedule in SCHEDULES if FULL else [SCHEDULES[number % 2], SCHEDULES[2 + number % 2]]:
            cases.append((devices, mesh, MICRO_BATCHES[number % len(MICRO_BATCHES)], schedule))
    for devices, mesh, micro_batches, schedule in cases:
        plan = pathlib.Path(directory) / "plan.json"
        title = f"{name} nominal:{devices} {mesh} {micro_batches} {schedule}"
        search = automap("search", model, "--cluster", f"nominal:{devices}", "--mesh", mesh, "--space", "pipeline",
                         "--baseline", "even_pipeline", "--micro-batches", micro_batches, "--schedule", schedule, "-o",
                         plan,
                         "--quiet")
        if search.returncode == 4 and any(reason in search.stderr for reason in REASONS):
            continue
        assert search.returncode == 0, f"{title}: {search.stderr}"
        stages = json.loads(plan.read_text())["stages"]
        assert len(stages) == devices // int(mesh[5:]), f"{title}: {len(stages)} stages"
        have = losses(model, plan, source, STEPS)
        check_losses(title, have, want, TOLERANCE.get(name, 5e-6))
        same = same_plan.setdefault((devices, mesh, micro_batches), have)
        assert same == have, f"{title}: the schedules differ"
        check_recomputed(title, model, plan, source, have, 1 + count % 4)
        count += 1
    assert count > 0, f"{name}: no pipeline was run"
    return count


def check_refused(model, plan, change, reason, directory):
    """The plan, changed, is refused with a message that holds `reason`."""
    root = json.loads(plan.read_text())
    change(root)
    changed = pathlib.Path(directory) / "changed.json"
    changed.write_text(json.dumps(root))
    run = automap("simulate", changed, model)
    assert run.returncode == 3 and reason in run.stderr, f"expected '{reason}': {run.returncode} {run.stderr}"


def check_kept(directory):
    """The shardings of a module hold in the stages of a baseline, too."""
    model, plan = SOURCE / "tests" / "data" / "propagate" / "loop.hlo", pathlib.Path(directory) / "kept.json"
    succeed("search", model, "--cluster", "nominal:4", "--keep-shardings", "--baseline", "even_pipeline", "--mesh",
            "data=2", "-o", plan, "--quiet")
    row = json.loads(plan.read_text())["parameters"][0]
    assert row["sharding"] == [["data"], []], f"parameter {row['path']} has the sharding {row['sharding']}"


def check_files(directory):
    """Plan files of several stages: read as written, and refused where they make no sense."""
    model, plan = MODELS / "mlp_tiny" / "model.hlo.pb", pathlib.Path(directory) / "plan.json"
    succeed("search", model, "--cluster", "nominal:2", "--baseline", "even_pipeline", "-o", plan, "--quiet")
    again = pathlib.Path(directory) / "again.json"
    succeed("search", model, "--cluster", "nominal:2", "--baseline", "even_pipeline", "-o", again, "--quiet")
    assert plan.read_bytes() == again.read_bytes(), "the same search gave another plan"

    def change(path, value):
        def apply(root):
            at = root
            for key in path[:-1]:
                at = at[key]
            at[path[-1]] = value(at[path[-1]]) if callable(value) else value

        return apply

    end = json.loads(plan.read_text())["stages"][1]["ranges"][0][1]
    swapped = lambda stages: [dict(stages[0], ranges=stages[1]["ranges"]), dict(stages[1], ranges=stages[0]["ranges"])]
    check_refused(model, plan, change(["stages", 1, "devices"], [0]), "a device is named twice", directory)
    check_refused(model, plan, change(["stages", 1, "ranges", 0, 0], 0), "an instruction is in two ranges", directory)
    check_refused(model, plan, change(["stages", 1, "ranges", 0, 1], end - 1), "is in no stage's ranges", directory)
    check_refused(model, plan, change(["stages", 0, "recompute"], [[0, 4], [3, 5]]), "in two ranges", directory)
    check_refused(model, plan, change(["stages", 0, "recompute"], [[4, 4]]), "recompute[0][1]: expected", directory)
    check_refused(model, plan, change(["stages", 0, "recompute"], [[0, end]]), "one of the stage's ranges", directory)
    check_refused(model, plan, change(["stages", 0, "recompute"], 3), "recompute", directory)

    def save(saved):
        def apply(root):
            root["stages"][0].update(recompute=[[0, 4]], saved=saved)
        return apply

    check_refused(model, plan, save(3), "saved", directory)
    check_refused(model, plan, save([1, 5]), "$.stages[0].saved[1]: expected an operator of one of the ranges",
                  directory)
    check_refused(model, plan, save([2, 2]), "$.stages[0].saved[1]", directory)
    check_refused(model, plan, save(["x"]), "$.stages[0].saved[0]", directory)
    check_refused(model, plan, change(["schedule"], "none"), "expected \"gpipe\", \"1f1b\",", directory)
    check_refused(model, plan, change(["stages"], swapped), "which comes later", directory)

    def cut(root):
        ranges = root["stages"][0]["ranges"]
        ranges[:1] = [[0, 1], [1, ranges[0][1]]]
        root["schedule"] = "interleaved_1f1b"

    check_refused(model, plan, cut, "one for each chunk", directory)
    for words in (["--chunks", 2], ["--schedule", "1f1b", "--chunks", 2], ["--schedule", "other"],
                  ["--schedule", "interleaved_1f1b", "--chunks", 0]):
        run = automap("search", model, "--cluster", "nominal:2", "--baseline", "even_pipeline", "-o", again, "--quiet",
                      *words)
        assert run.returncode == 2, f"{words}: {run.returncode} {run.stderr}"
    check_refused(model, plan, change(["parameters", 0, "stage"], lambda stage: 1 - stage),
                  "differs from the value derived from the plan's stages", directory)


def check_masked_mean(directory):
    """The backward pass of a masked mean needs the number of words in the whole batch. It has a loop of its own, so
    that forward and backward micro-batches alternate."""
    at, plan = MODELS / "fused_tiny", pathlib.Path(directory) / "plan.json"
    want = json.loads((at / "losses.json").read_text())["losses"][:STEPS]
    for schedule in ("1f1b", "zb_h1"):
        succeed("search", at / "model.hlo.pb", "--cluster", "nominal:2", "--mesh", "data=1", "--space", "pipeline",
                "--baseline",
                "even_pipeline", "--micro-batches", 4, "--schedule", schedule, "-o", plan, "--quiet")
        have = losses(at / "model.hlo.pb", plan, ["--state", at / "state.npz", "--data", at / "data.npz"], STEPS)
        check_losses(f"fused_tiny {schedule}", have, want, 5e-6)
    return 2


def main():
    failures = passed = 0
    models = sys.argv[1:] or SAMPLE + (REST if FULL else [])
    with tempfile.TemporaryDirectory() as directory:
        for name in models:
            at = MODELS / name
            source = ["--state", at / "state.npz", "--data", at / "data.npz"]
            try:
                passed += check_model(name, at / "model.hlo.pb", source, PIPELINES if FULL else SAMPLE_PIPELINES,
                                      directory)
            except AssertionError as failure:
                failures += 1
                print(f"FAILED {failure}")
        try:
            for name in ("recomputed_layers", "tied_clipped"):
                text = SOURCE / "tests" / "data" / "text" / f"{name}.hlo.txt"
                passed += check_model(name, text, ["--state", "random"], PIPELINES[:3:2], directory)
            passed += check_masked_mean(directory)
            check_files(directory)
            check_kept(directory)
        except AssertionError as failure:
            failures += 1
            print(f"FAILED {failure}")
    print(f"{passed} pipelines passed, {failures} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
