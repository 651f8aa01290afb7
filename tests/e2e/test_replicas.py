# labels: cpu e2e
# timeout: 300
"""Plans with replicas: stages that each run the whole model on a part of the batch, with meshes of their own.

Losses are those of one device, and the predicted peaks are those measured: with SGD and with Adam, for equal and
unequal parts, two and three replicas, different tensor degrees, ZeRO, optimizer state in the hosts, a loop over time,
micro-batches, dropout, and bf16. `explain` names the replicas, exports and searches refuse them, and modules that
combine the batch are refused. So are bad entries.

Run as `AUTOMAP=build/automap python3 tests/e2e/test_replicas.py`.
"""

import json
import pathlib
import random
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "launch"))
from program import FULL, MODELS, automap, module, need_program, succeed

STEPS = 3
SMALL = ["adamw_tiny", "dropout_tiny", "gpt2_tiny", "gpt2_bf16_tiny", "lstm_tiny", "mlp_tiny"]
MORE = ["adafactor_tiny", "bert_tiny", "fused_tiny", "lion_tiny", "llama_tiny", "t5_tiny", "unet_tiny", "vgg_tiny",
        "vit_tiny"]
# parts, (data, model) of each replica, micro-batches
STORED = [([1, 3], [(2, 1), (4, 1)], 1), ([1, 1], [(4, 1), (2, 1)], 2)]
LAYOUTS = [([1, 1], [(1, 1), (1, 2)], 1), ([3, 1], [(1, 2), (1, 1)], 1), ([1, 1], [(2, 1), (1, 2)], 2),
           ([1, 1, 2], [(1, 1), (1, 1), (1, 2)], 1)]
COMBINES, REFUSED, BAD = "resnet_tiny", 4, 3


def tolerance(name):
    """Relative error of a loss: sums in another order, in f32; bfloat16 keeps 8 bits."""
    return 1e-2 if "bf16" in name or "llama" in name else 5e-6


def one_stage(name, work):
    """A one-stage plan with an axis data and an axis model, as JSON."""
    plan = work / f"{name}.one.json"
    succeed("search", module(name), "--cluster", "nominal:4", "--space", "single_stage", "--mesh", "data=2,model=2",
            "--evaluations", 8, "--no-overrides", "-o", plan, "--quiet")
    return json.loads(plan.read_text())


def with_replicas(plan, layout):
    """The plan with each replica's lists those of its one stage."""
    parts, meshes, micro_batches = layout
    only, stages, first = plan["stages"][0], [], 0
    for sizes in meshes:
        count = sizes[0] * sizes[1]
        stages.append({key: only[key] for key in only if key not in ("overrides", "reshards")} | {
            "devices": list(range(first, first + count)),
            "mesh": [{"axis": axis, "size": size, "shares": None} for axis, size in zip(("data", "model"), sizes)]})
        first += count
    predicted = plan["predicted"] | {"devices": (plan["predicted"]["devices"] * 2)[:first]}
    kept = {key: plan[key] for key in plan if key not in ("parameters", "decisions", "names")}
    return kept | {"stages": stages, "replicas": parts, "schedule": "gpipe", "micro_batches": micro_batches,
                   "predicted": predicted}


def write(work, plan):
    path = work / "replicas.json"
    path.write_text(json.dumps(plan))
    return path


def run(name, plan):
    """Losses, and ratios of measured to predicted peaks of the devices."""
    at = MODELS / name
    text = succeed("run", module(name), "--plan", plan, "--state", at / "state.npz", "--data", at / "data.npz",
                   "--steps", STEPS, "--json", "--quiet")
    lines = [json.loads(line) for line in text.splitlines()]
    peaks = [device["peak_bytes"] for device in lines[-1]["ratio"]["devices"]]
    return [line["loss"] for line in lines if "loss" in line], peaks


def stored(name, work, baseline, offloads):
    """A one-stage plan with shards in the storage of an axis data, and optimizer state in the host's memory."""
    plan = work / f"{name}.{baseline}.json"
    succeed("search", module(name), "--cluster", "nominal:8", "--space", "single_stage", "--mesh", "data=8,model=1",
            "--searcher", "baseline", "--baseline", baseline, "-o", plan, "--quiet")
    found = json.loads(plan.read_text())
    return found | {"stages": [stage | {"offloads_optimizer": offloads} for stage in found["stages"]]}


def check_losses(name, given, work, layouts):
    expected = json.loads((MODELS / name / "losses.json").read_text())["losses"][:STEPS]
    for layout in layouts:
        found, peaks = run(name, write(work, with_replicas(given, layout)))
        assert len(found) == STEPS, f"{name} {layout}: {len(found)} losses"
        error = max(abs(a - b) / abs(b) for a, b in zip(found, expected))
        assert error <= tolerance(name), f"{name} {layout}: losses differ by {error:.1e}: {found}, {expected}"
        assert peaks and set(peaks) == {1}, f"{name} {layout}: measured by predicted peaks are {peaks}"


def check_refusals(work):
    """Modules that combine the batch, exports, and bad entries."""
    plan = with_replicas(one_stage("mlp_tiny", work), LAYOUTS[1])
    path = write(work, plan)
    explained = json.loads(succeed("explain", path, module("mlp_tiny"), "--json", "--quiet"))
    assert explained["replicas"] == plan["replicas"], explained.get("replicas")
    assert "2 replicas with 3 + 1 of 4 examples" in succeed("explain", path, module("mlp_tiny"), "--quiet")
    for target in ("jax", "torch", "hlo", "shardy"):
        done = automap("export", path, module("mlp_tiny"), "--format", target)
        assert done.returncode == REFUSED and "replicas" in done.stderr, f"{target}: {done.returncode} {done.stderr}"
    done = automap("search", module("mlp_tiny"), "--cluster", "nominal:3", "--init-plan", path, "--stages", 2,
                   "--evaluations", 1, "-o", work / "searched.json")
    assert done.returncode == BAD and "$.replicas" in done.stderr, f"search: {done.returncode} {done.stderr}"
    other = work / "other.json"
    other.write_text(json.dumps(plan | {"replicas": [1, 3]}))
    text = succeed("diff", path, other, module("mlp_tiny"), "--quiet")
    assert "3 + 1" in text and "1 + 3" in text, text
    whole = plan["stages"][0]["ranges"][0]
    for change, text in [({"replicas": [1]}, "$.replicas"), ({"replicas": [3, 0]}, "$.replicas"),
                         ({"replicas": [3, 2]}, "16 cannot be split into 5 equal parts"),
                         ({"schedule": "1f1b"}, "$.schedule"),
                         ({"stages": [plan["stages"][0] | {"ranges": [[0, whole[1] - 1]]}, plan["stages"][1]]},
                          "stages[0].ranges")]:
        done = automap("simulate", write(work, plan | change), module("mlp_tiny"))
        assert done.returncode == BAD and text in done.stderr, f"{change}: {done.returncode} {done.stderr}"
    done = automap("simulate", write(work, with_replicas(one_stage(COMBINES, work), LAYOUTS[0])), module(COMBINES))
    is_refused = done.returncode == BAD and "$.replicas" in done.stderr and "--relax" not in done.stderr
    assert is_refused, f"{COMBINES}: {done.returncode} {done.stderr}"


def main():
    need_program()
    draw = random.Random(31)
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        for k, name in enumerate(SMALL + (MORE if FULL else [])):
            layouts = LAYOUTS if FULL else [LAYOUTS[k % len(LAYOUTS)], draw.choice(LAYOUTS)]
            check_losses(name, one_stage(name, work), work, layouts)
        for baseline, offloads in (("zero1", True), ("zero3", False)):
            check_losses("adamw_tiny", stored("adamw_tiny", work, baseline, offloads), work, STORED)
            text = succeed("simulate", work / "replicas.json", module("adamw_tiny"), "--json")
            kinds = json.loads(text)["collectives"]
            assert ("host_load" in kinds) == offloads and "all_gather" in kinds, f"{baseline}: {kinds}"
        check_refusals(work)


if __name__ == "__main__":
    main()
