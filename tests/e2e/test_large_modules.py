# labels: cpu e2e
# timeout: 300
"""A module of more than 10,000 instructions, whose one-stage plans fit with several micro-batches only: the search
prices every baseline with its best number of micro-batches, is never slower than one, and finds a one-stage plan
without --micro-batches.

Run as `AUTOMAP=build/automap python3 tests/e2e/test_large_modules.py`.
"""

import json
import os
import pathlib
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "launch"))
sys.path.insert(0, str(ROOT / "bench"))
import search_scale
from program import automap

MEMORY_BYTES = 3 * 10**8
BASELINES = ("zero1", "zero3", "megatron")
NUMBERS = (1, 2, 4, 8)


def write_inputs(model, cluster):
    """98 blocks of 100,000 weights, on 8 devices that hold the activations of a quarter of the batch."""
    search_scale.TOKENS, search_scale.WIDTH, search_scale.HIDDEN = 8192, 128, 256
    assert search_scale.write_module(model, 10_300) > 10_000
    search_scale.write_cluster(cluster, 8)
    description = json.loads(cluster.read_text())
    description["device_types"]["device"]["memory_bytes"] = MEMORY_BYTES
    cluster.write_text(json.dumps(description))


def main():
    with tempfile.TemporaryDirectory() as folder:
        model, cluster = pathlib.Path(folder) / "model.hlo.txt", pathlib.Path(folder) / "cluster.json"
        write_inputs(model, cluster)

        def search(*options):
            done = automap("search", model, "--cluster", cluster, "--json", "-o", os.devnull, *options)
            assert done.returncode in (0, 4), f"{options}: {done.stderr}"
            return json.loads(done.stdout) if done.returncode == 0 else None

        steps = {}
        for name in BASELINES:
            found = [search("--baseline", name, "--micro-batches", number) for number in NUMBERS]
            assert found[0] is None, f"{name} fits with one micro-batch: the case decides nothing"
            steps[name] = min(one["step_seconds"] for one in found if one)
        best = search("--evaluations", 4)
        for name, seconds in steps.items():
            assert best["baselines"][name] == seconds, f"{name}: {best['baselines'][name]} s, {seconds} s by --baseline"
        assert best["step_seconds"] <= min(steps.values())
        one_stage = search("--evaluations", 4, "--space", "single_stage")
        assert one_stage, "no one-stage plan, though baselines fit"
        assert one_stage["step_seconds"] <= min(steps.values())


if __name__ == "__main__":
    main()
