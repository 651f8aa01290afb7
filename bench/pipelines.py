"""The tables of bench/README.md: one pipeline under every schedule, and one with its forward pass made again.

Run as `AUTOMAP=build/automap python3 bench/pipelines.py`.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(__file__).resolve().parents[1]
AUTOMAP = os.environ.get("AUTOMAP", str(SOURCE / "build" / "automap"))
SCHEDULES = ["gpipe", "1f1b", "zb_h1", "zb_2p", "interleaved_1f1b"]


def automap(*words):
    done = subprocess.run([AUTOMAP, *map(str, words)], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"automap {' '.join(map(str, words))}\n{done.stderr}")
    return done.stdout


def model_of(name):
    return next((SOURCE / "datasets" / "models" / name).glob("model.hlo.pb*"))


def even_pipeline(plan, name, cluster, mesh, micro_batches, schedule):
    automap("search", model_of(name), "--cluster", cluster, "--baseline", "even_pipeline", "--mesh", mesh,
            "--micro-batches",
            micro_batches, "--schedule", schedule, "-o", plan, "--quiet")  # fmt: skip
    return json.loads(plan.read_text())


def by_stage(found, key, scale):
    """Returns the largest number of the devices of each stage."""
    stages = sorted({device["stage"] for device in found["devices"]})
    return [scale * max(d[key] for d in found["devices"] if d["stage"] == s) for s in stages]


def simulate(plan, name):
    return json.loads(automap("simulate", plan, model_of(name), "--json"))


def schedules(plan):
    print("| | step | idle, stages 0 to 3 | peak of stages 0 to 3 |\n|---|---|---|---|")
    for schedule in SCHEDULES:
        even_pipeline(plan, "bert48", "A", "data=4", 8, schedule)
        found = simulate(plan, "bert48")
        idle = ", ".join(f"{value:.0f}" for value in by_stage(found, "idle_seconds", 1e3))
        peak = ", ".join(f"{value:.1f}" for value in by_stage(found, "peak_bytes", 1e-9))
        print(f"| {schedule} | {1e3 * found['step_seconds']:.0f} ms | {idle} ms | {peak} GB |")


def recomputed(plan):
    name, micro_batches = "gpt2_tiny", 4
    finer = [stage["ranges"][0][0]
             for stage in even_pipeline(plan, name, "nominal:8", "data=1", micro_batches, "gpipe")["stages"]]
    print("\n| | peak of stage 0 | of stage 1 | step, simulated |\n|---|---|---|---|")
    for schedule, again in (("gpipe", False), ("1f1b", False), ("1f1b", True)):
        root = even_pipeline(plan, name, "nominal:2", "data=1", micro_batches, schedule)
        for stage in root["stages"] if again else []:
            first, end = stage["ranges"][0]
            ends = [first, *(cut for cut in finer if first < cut < end), end]
            stage["recompute"] = [list(pair) for pair in zip(ends, ends[1:])]
        for derived in ("parameters", "decisions"):
            root.pop(derived)
        plan.write_text(json.dumps(root))
        found = simulate(plan, name)
        peaks = " | ".join(f"{value:.2f} MB" for value in by_stage(found, "peak_bytes", 1e-6))
        print(f"| {schedule}{', recomputed' * again} | {peaks} | {1e3 * found['step_seconds']:.2f} ms |")


def main():
    with tempfile.TemporaryDirectory() as folder:
        plan = pathlib.Path(folder) / "plan.json"
        schedules(plan)
        recomputed(plan)


if __name__ == "__main__":
    main()
