# labels: jax e2e
# timeout: 300
# cost: 20
"""Baselines beside a plan have their best number of micro-batches.

A search is compared with `--baseline NAME --micro-batches M` for all baselines and all M that divide the batch, where
memory is ample and where it needs several micro-batches. In a third case the source recomputes layers, which the plan
undoes and a baseline needs to fit. In a fourth case the plan has ample memory, and baselines have not; here two of them
are compared. The table of the search has the fastest of these plans for each baseline, and none is faster than the plan
of the search.

AUTOMAP_FULL=1 compares all baselines in each case.
Run as `AUTOMAP=build/automap python3 tests/e2e/test_baseline_numbers.py`.
"""

import concurrent.futures
import json
import os
import pathlib
import sys
import tempfile

SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(SOURCE / "bench"), str(SOURCE / "datasets"), str(SOURCE / "tests" / "launch")]
from program import automap, module, skip_where_missing, succeed

with skip_where_missing():
    import layers as forms

FULL = os.environ.get("AUTOMAP_FULL") == "1"
NUMBERS = (1, 2, 4, 8, 16)  # of the batch of 16
SIZES = (3, 64, 2, 192, 8, 32, 200)  # a batch of 8
CASES = (
    ("gpt2_tiny", "h100:1", [], NUMBERS),
    ("gpt2_tiny", "A", ["--memory-fraction", "7.7e-6"], NUMBERS),
    ("recomputed", "nominal:4", ["--memory-fraction", "2.2e-4"], NUMBERS[:-1]),
    ("llama3_8b", "h100:4", [], NUMBERS[:1]),
)
FEW = {"llama3_8b": ("zero1", "zero2")}  # which memory excludes in the form of the plan


def price(words, baseline, number):
    """The step of a baseline's plan; infinite: it has none."""
    space = ["--space", "pipeline"] if baseline in ("even_pipeline", "megatron_3d") else []
    done = automap(*words, "--baseline", baseline, "--micro-batches", number, *space)
    assert done.returncode in (0, 4), (baseline, number, done.stderr)
    return json.loads(done.stdout)["step_seconds"] if done.returncode == 0 else float("inf")


def check(name, cluster, options, numbers, folder):
    is_generated = name == "recomputed"
    model = forms.export("gpt", "trees", SIZES, folder, forms.sgd) if is_generated else module(name)
    words = ["search", model, "--cluster", cluster, *options, "--json", "--quiet", "-o", os.devnull]
    found = json.loads(succeed(*words))
    few = None if FULL else FEW.get(name)
    table = {baseline: shown for baseline, shown in found["baselines"].items() if not few or baseline in few}
    pairs = [(baseline, number) for baseline in table for number in numbers]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        steps = dict(zip(pairs, pool.map(lambda pair: price(words, *pair), pairs), strict=True))
    for baseline, shown in table.items():
        best = min(steps[baseline, number] for number in numbers)
        number = next(number for number in numbers if steps[baseline, number] == best)
        assert found["step_seconds"] <= best * (1 + 1e-9), f"{name} on {cluster}: {baseline} x {number}: {best} s"
        shown = float("inf") if shown is None else shown
        assert shown <= best * (1 + 1e-6), f"{name} on {cluster}: {baseline} {shown} s, with {number}: {best} s"
    return sum(step != float("inf") for step in steps.values())


def main():
    with tempfile.TemporaryDirectory() as folder:
        priced = [check(*case, pathlib.Path(folder)) for case in CASES]
    assert priced[0] > priced[1] > 0, priced  # memory excludes some
    print(f"{sum(priced)} plans of baselines: ok")


if __name__ == "__main__":
    main()
