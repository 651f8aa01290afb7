# labels: cpu e2e
# timeout: 300
"""A search finds plans that are about as fast where prices change a little, and the best mesh.

Every rate, latency and efficiency of a cluster is changed by up to 1 %. The plan that is found for it is priced with
the figures of the cluster: the slowest of these plans takes at most 2 % longer than the fastest. A search over all
meshes of a cluster takes at most 1 % longer than the fastest of the searches of one mesh each, without pipelines.

Run as `AUTOMAP=build/automap python3 tests/e2e/test_near_plans.py`.
"""

import json
import os
import pathlib
import random
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "launch"))
from program import module, succeed

MOST_CHANGE = 0.01  # of a figure
MOST_SPREAD = 0.02  # of steps with changed figures
MOST_ABOVE = 0.01   # the fastest mesh
SEEDS = range(1, 7)


def changed(figures, draw, name=""):
    """The cluster with other rates and times; sizes and memory stay."""
    if isinstance(figures, dict):
        inside = name if name == "flops_per_second" else ""
        return {key: changed(value, draw, inside or key) for key, value in figures.items()}
    if isinstance(figures, list):
        is_point = len(figures) == 2 and not any(isinstance(value, (dict, list)) for value in figures)
        if is_point:
            return [figures[0], min(1.0, figures[1] * draw())]
        return [changed(value, draw, name) for value in figures]
    return figures * draw() if isinstance(figures, float) and "second" in name else figures


def check_spread(name, cluster, folder):
    model, plan, file = module(name), folder / "plan.json", folder / "cluster.json"
    figures = json.loads(succeed("cluster", cluster, "--json"))
    steps = []
    for seed in SEEDS:
        numbers = random.Random(seed)
        draw = lambda: 1 + numbers.uniform(-MOST_CHANGE, MOST_CHANGE)
        file.write_text(json.dumps(changed(figures, draw)))
        succeed("search", model, "--cluster", file, "-o", plan, "--quiet")
        steps.append(json.loads(succeed("simulate", plan, model, "--cluster", cluster, "--json"))["step_seconds"])
    spread = max(steps) / min(steps) - 1
    print(f"{name} on {cluster}: {min(steps) * 1e3:.4f} ms, spread {100 * spread:.2f} %", flush=True)
    assert spread <= MOST_SPREAD, (name, cluster, steps)


def check_meshes(name, cluster, devices):
    search = lambda *words: json.loads(succeed("search", module(name), "--cluster", cluster, "--space", "single_stage",
                                               "-o", os.devnull, "--json", *words))["step_seconds"]
    sizes = [size for size in range(2, devices) if devices % size == 0]
    best = min(search("--mesh", f"data={devices // size},model={size}") for size in sizes)
    found = search()
    print(f"{name} on {cluster}: {found * 1e3:.4f} ms, of one mesh {best * 1e3:.4f} ms", flush=True)
    assert found <= best * (1 + MOST_ABOVE), (name, cluster, found, best)


def main():
    with tempfile.TemporaryDirectory() as folder:
        check_spread("vgg_tiny", "C", pathlib.Path(folder))
    check_meshes("unet_tiny", "C", 32)


if __name__ == "__main__":
    main()
