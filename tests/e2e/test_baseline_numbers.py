# labels: cpu e2e
# timeout: 300
# cost: 20
"""Baselines beside a plan have their best number of micro-batches.

A search is compared with `--baseline NAME --micro-batches M` for all baselines and all M that divide the batch, where
memory is ample and where it needs several micro-batches. The table of the search has the fastest of these plans for
each baseline, and none is faster than the plan of the search.

Run as `AUTOMAP=build/automap python3 tests/e2e/test_baseline_numbers.py`.
"""

import concurrent.futures
import json
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "launch"))
from program import automap, module, succeed

NUMBERS = (1, 2, 4, 8, 16)  # of the batch of 16
CASES = (
    ("gpt2_tiny", "h100:1", []),
    ("gpt2_tiny", "A", ["--memory-fraction", "7.7e-6"]),
)


def price(words, baseline, number):
    """The step of a baseline's plan; infinite: it has none."""
    space = ["--space", "pipeline"] if baseline in ("even_pipeline", "megatron_3d") else []
    done = automap(*words, "--baseline", baseline, "--micro-batches", number, *space)
    assert done.returncode in (0, 4), (baseline, number, done.stderr)
    return json.loads(done.stdout)["step_seconds"] if done.returncode == 0 else float("inf")


def check(name, cluster, options):
    words = ["search", module(name), "--cluster", cluster, *options, "--json", "--quiet", "-o", os.devnull]
    found = json.loads(succeed(*words))
    table = found["baselines"]
    pairs = [(baseline, number) for baseline in table for number in NUMBERS]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        steps = dict(zip(pairs, pool.map(lambda pair: price(words, *pair), pairs), strict=True))
    for baseline, shown in table.items():
        best = min(steps[baseline, number] for number in NUMBERS)
        number = next(number for number in NUMBERS if steps[baseline, number] == best)
        assert found["step_seconds"] <= best * (1 + 1e-9), f"{name} on {cluster}: {baseline} x {number}: {best} s"
        shown = float("inf") if shown is None else shown
        assert shown <= best * (1 + 1e-6), f"{name} on {cluster}: {baseline} {shown} s, with {number}: {best} s"
    return sum(step != float("inf") for step in steps.values())


def main():
    priced = [check(*case) for case in CASES]
    assert priced[0] > priced[1] > 0, priced  # memory excludes some
    print(f"{sum(priced)} plans of baselines: ok")


if __name__ == "__main__":
    main()
