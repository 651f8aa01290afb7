# labels: cpu e2e
# timeout: 300
"""Named baselines with selective and full recomputation.

A search prices them beside its plan, and `--baseline` gives their plans. A plan has the step of the table, needs less
memory for activations than the baseline without recomputation, and trains as one device. Their recomputation is
compared with the layers of the module: each of them is a range, or several. Fused attention has no selective
recomputation. A large module has prices of those that may be near its plan by the tables of stages: none of the others
is near it.

Run as `AUTOMAP=build/automap python3 tests/e2e/test_recomputed_baselines.py`.
"""

import json
import os
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "launch"))
from clusters import write_cluster
from program import MODELS, automap, losses, module, succeed

NAME, LAYERS, STEPS, TOLERANCE = "gpt2_tiny", 2, 4, 2e-5
LARGE, NEAR = "bert48", 1.1  # times the step of the plan
WITHOUT = {
    "zero3_full": "zero3",
    "megatron_full": "megatron",
    "megatron_selective": "megatron_sequence",
    "even_pipeline_full": "even_pipeline",
    "megatron_3d_full": "megatron_3d",
    "megatron_3d_selective": "megatron_3d",
}


def plan_of(baseline, cluster, path, *options):
    words = ["search", module(NAME), "--cluster", cluster, "--baseline", baseline, "--attention", "unfused", "-o", path]
    found = json.loads(succeed(*words, "--json", *options))
    return found["step_seconds"], json.loads(path.read_text())


def activations(plan):
    return max(device["activation_bytes"] for device in plan["predicted"]["devices"])


def check_plan(baseline, table, cluster, work):
    """The plan of one baseline, with two micro-batches in pipelines."""
    path = work / f"{baseline}.json"
    numbers = ["--micro-batches", 2 if "pipeline" in baseline or "3d" in baseline else 1]
    seconds, plan = plan_of(baseline, cluster, path, *numbers)
    without = plan_of(WITHOUT[baseline], cluster, work / "without.json", *numbers)[1]
    stages = plan["stages"]
    assert (len(stages) > 1) == (len(without["stages"]) > 1), f"{baseline}: {len(stages)} stages"
    ranges = [one for stage in stages for one in stage["recompute"]]
    assert len(ranges) >= LAYERS, f"{baseline}: {ranges}"
    is_full = baseline.endswith("_full")
    saved = [one for stage in stages for one in stage.get("saved", [])]
    assert bool(saved) != is_full, f"{baseline}: saves {saved}"
    assert activations(plan) < activations(without), f"{baseline}: {activations(plan)} of {activations(without)}"
    if len(stages) == 1:
        assert abs(table[baseline] / seconds - 1) < 1e-9, f"{baseline}: {seconds}, the table has {table[baseline]}"
        assert not is_full or seconds > table[WITHOUT[baseline]], f"{baseline}: {seconds} s"
    source = ["--data", MODELS / NAME / "data.npz", "--state", MODELS / NAME / "state.npz"]
    found = losses(module(NAME), path, source, STEPS)
    expected = json.loads((MODELS / NAME / "losses.json").read_text())["losses"][:STEPS]
    assert all(abs(have / want - 1) < TOLERANCE for have, want in zip(found, expected, strict=True)), (
        f"{baseline}: losses {found}, of JAX {expected}"
    )


def check_large(work):
    """More than 10,000 instructions, in memory that needs recomputation."""
    memory = {"V100": 37 * 10**8}
    cluster = write_cluster(work / "small.json", (("V100", 2),) * 2, inside=1e10, rate=1e10, memory=memory)
    words = ["search", MODELS / LARGE / "model.hlo.pb.zst", "--cluster", cluster, "-o", os.devnull, "--json"]
    found = json.loads(succeed(*words))
    reasons, near = found["baseline_reasons"], NEAR * found["step_seconds"]
    for baseline in WITHOUT:
        seconds, reason = found["baselines"][baseline], reasons.get(baseline)
        assert seconds is not None or "needs" in reason or "by the tables of stages" in reason, f"{baseline}: {reason}"
    assert "needs" in reasons["even_pipeline_full"], reasons["even_pipeline_full"]
    for baseline in ("megatron_3d_full", "zero3_full"):
        done = automap(*words, "--baseline", baseline)
        seconds = json.loads(done.stdout)["step_seconds"] if done.returncode == 0 else float("inf")
        assert "far from the best" in reasons[baseline] and seconds > near, f"{baseline}: {seconds} s, {near} s is near"


def main():
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        cluster = write_cluster(work / "servers.json", (("V100", 2), ("V100", 2)), slower=1e3, inside=1e10)
        words = ["search", module(NAME), "--cluster", cluster, "--attention", "unfused", "--evaluations", 40]
        found = json.loads(succeed(*words, "--json", "-o", os.devnull))
        table = found["baselines"]
        assert all(table[name] is not None for name in WITHOUT), (table, found["baseline_reasons"])
        assert found["step_seconds"] <= min(table[name] for name in WITHOUT), table
        for baseline in WITHOUT:
            check_plan(baseline, table, cluster, work)
        check_large(work)
        fused = automap("search", module(NAME), "--cluster", cluster, "--attention", "fused", "--baseline",
                        "megatron_selective", "-o", os.devnull)  # fmt: skip
        assert fused.returncode == 4 and "fused attention keeps no scores" in fused.stderr, fused
    print(f"{len(WITHOUT)} baselines with recomputation: ok")


if __name__ == "__main__":
    main()
