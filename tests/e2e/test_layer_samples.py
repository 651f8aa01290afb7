# labels: cpu e2e full
# timeout: 300
# cost: 10
"""A module of more than 30,000 instructions is searched on a sample of its layers: the plan has the step that the
simulation of its file has, and is not slower than baselines that are priced on their own.

Run as `AUTOMAP=build/automap python3 tests/e2e/test_layer_samples.py`.
"""

import json
import pathlib
import resource
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "launch"))
sys.path.insert(0, str(ROOT / "bench"))
import search_scale
from program import automap

INSTRUCTIONS = 31_000
BASELINES = ("data_parallel", "zero1", "zero3", "megatron", "megatron_zero3")
MOST_SECONDS = 20  # of the processor


def processor_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main():
    with tempfile.TemporaryDirectory() as folder:
        model, cluster = pathlib.Path(folder) / "model.hlo.txt", pathlib.Path(folder) / "cluster.json"
        plan = pathlib.Path(folder) / "plan.json"
        assert search_scale.write_module(model, INSTRUCTIONS) > 30_000
        search_scale.write_cluster(cluster, 64)

        def run(command, *options):
            done = automap(command, *options, "--cluster", cluster, "--json")
            assert done.returncode in (0, 4), f"{options}: {done.stderr}"
            return json.loads(done.stdout) if done.returncode == 0 else None

        before = processor_seconds()
        best = run("search", model, "-o", plan)
        seconds = processor_seconds() - before
        print(f"{best['step_seconds']:.6f} s a step, {best['evaluations']} evaluations, {seconds:.1f} s of the "
              f"processor")
        simulated = run("simulate", plan, model)
        assert abs(simulated["step_seconds"] / best["step_seconds"] - 1) < 1e-9, simulated["step_seconds"]
        for name in BASELINES:
            found = run("search", model, "-o", "/dev/null", "--baseline", name)
            if found:
                print(f"{name}: {found['step_seconds']:.6f} s")
                assert best["step_seconds"] <= found["step_seconds"], f"{name} takes {found['step_seconds']} s"
        assert seconds < MOST_SECONDS, f"{seconds:.1f} s of the processor"


if __name__ == "__main__":
    main()
