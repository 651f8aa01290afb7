# labels: cpu e2e
# timeout: 300
# cost: 15
"""A larger budget of evaluations never gives a slower plan, whatever the searcher and the space, and no search
exceeds its budget. More than the default budget finds a faster plan. No single change that `explain` prices beats the
plan of a search by more than 0.5 %. AUTOMAP_FULL: more models and budgets.

Run as `AUTOMAP=build/automap python3 tests/e2e/test_budgets.py`.
"""

import json
import os
import pathlib
import random
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "launch"))
from clusters import write_cluster
from program import FULL, automap, module

MOST_GAIN = 0.005
LEAST_GAIN = 1e-4
TIGHT_BYTES = 400000  # of a device: data parallelism does not fit
SEARCHES = (
    ("mlp_tiny", "nominal:4", []),
    ("mlp_tiny", "nominal:4", ["--searcher", "anneal", "--mesh", "data=2,model=2"]),
    ("mlp_tiny", "nominal:4", ["--searcher", "greedy", "--even"]),
    ("mlp_tiny", "nominal:4", ["--searcher", "exact"]),
    ("mlp_tiny", "nominal:4", ["--searcher", "random", "--space", "hybrid"]),
    ("mlp_tiny", "nominal:4", ["--space", "single_stage", "--micro-batches", "auto"]),
    ("mlp_tiny", "whale-dp", ["--searcher", "agent"]),
    ("vgg_tiny", "whale-pp", ["--micro-batches", "2"]),
)
SEARCHES += (("gpt2_tiny", "C", []), ("moe_tiny", "whale-dp", ["--space", "hybrid"])) if FULL else ()
MIXED = (("V100", 2), ("T4", 2))
SMALL = (1, 2, 3, 5, 9, 13, 15, 26)  # budgets that end in the first rounds
IN_FIRST_ROUNDS = (
    ("mlp_tiny", "whale-dp", ["--stages", "2"]),
    ("mlp_tiny", MIXED, ["--stages", "2", "--for", "torch"]),
    ("mlp_tiny", MIXED, ["--no-seeds"]),
    ("mlp_tiny", MIXED, ["--space", "hybrid", "--searcher", "random"]),
    ("flax_tiny", MIXED, ["--stages", "2"]),
    ("mlp_tiny", MIXED, []),
)
EXPLAINED = (("gpt2_tiny", "h100:4"), ("vgg_tiny", "h100:4"), ("adafactor_tiny", "nominal:4"))
EXPLAINED += (("t5_tiny", "h100:4"), ("moe_tiny", "A")) if FULL else ()


def step(name, cluster, options, most):
    """Seconds of the plan; infinite where few evaluations find none that fits."""
    words = ["search", module(name), "--cluster", cluster, "-o", os.devnull, "--json", *options]
    done = automap(*words, *(["--evaluations", most] if most else []))
    assert done.returncode in (0, 4), f"{words}: {done.returncode}\n{done.stderr}"
    if done.returncode == 4:
        return float("inf"), 0
    found = json.loads(done.stdout)
    assert not most or found["evaluations"] <= most + 1, f"{words}: {found['evaluations']} evaluations of {most}"
    return found["step_seconds"], found["evaluations"]


def check_growing(name, cluster, options, budgets):
    """No budget gives a slower plan than a smaller one, nor leaves more than a third of its evaluations."""
    before = float("inf")
    for most in budgets:
        seconds, spent = step(name, cluster, options, most)
        assert seconds <= before, f"{name} {cluster} {options}: {most} of {budgets} give {seconds}, fewer {before}"
        assert most > max(SMALL) or spent >= most * 2 // 3 - 1, f"{name} {cluster} {options}: {spent} of {most}"
        before = seconds


def check_monotone(name, cluster, options, draw):
    least = 8 if "agent" in options else 1
    budgets = {least, draw.randint(2, 40), draw.randint(10, 200), draw.randint(200, 1200)}
    budgets |= {draw.randint(least, 1500) for _ in range(12 if FULL else 2)}
    check_growing(name, cluster, options, sorted(max(most, least) for most in budgets))


def check_first_rounds(work):
    mixed = write_cluster(work / "mixed.json", MIXED)
    for name, cluster, options in IN_FIRST_ROUNDS:
        check_growing(name, mixed if cluster is MIXED else cluster, options, range(1, 60) if FULL else SMALL)


def check_one_plan():
    """A space of one plan ends a search although evaluations are left."""
    for options in ([], ["--for", "torch", "--no-seeds"]):
        step("lion_tiny", "nominal:1", ["--micro-batches", "1", *options], 200)


def check_default(name, cluster):
    """The default budget, given as a number, is the same search; more is at least as good."""
    seconds, spent = step(name, cluster, [], None)
    assert step(name, cluster, [], spent)[0] == seconds
    assert step(name, cluster, [], 2 * spent)[0] <= seconds


def check_better(name, cluster):
    """Twice the default budget finds a faster plan."""
    seconds, spent = step(name, cluster, [], None)
    more = step(name, cluster, [], 2 * spent)[0]
    assert more < seconds * (1 - LEAST_GAIN), f"{name} {cluster}: {more} with twice the budget, {seconds} without"


def check_changes(name, cluster, work):
    plan = work / "plan.json"
    done = automap("search", module(name), "--cluster", cluster, "-o", plan)
    assert done.returncode == 0, done.stderr
    shown = json.loads(automap("explain", plan, module(name), "--json").stdout)
    changes = [row for row in shown["alternatives"] if row["what"] != "attention"]  # chosen by --attention
    changes += [cut[side] for cut in shown["cuts"] for side in ("earlier", "later") if cut.get(side)]
    changes += [row["without"] for row in shown["overrides"]]
    steps = [row["step_seconds"] for row in changes if row and row["fits"]]
    steps += [row["seconds_without"] for row in shown["decisions"]
              if row.get("peak_bytes_without", shown["peak_bytes"] + 1) <= shown["peak_bytes"]]  # fmt: skip
    assert steps, f"{name} {cluster}: no change has a price"
    gain = 1 - min(steps) / shown["step_seconds"]
    assert gain <= MOST_GAIN, f"{name} {cluster}: a single change is {gain:.2%} faster than the plan"


def check_tight(name, work):
    """A time limit that ends before any plan is priced gives a baseline that fits, if there is one."""
    description = json.loads(automap("cluster", "nominal:4", "--json").stdout)
    description["device_types"]["host"]["memory_bytes"] = TIGHT_BYTES
    cluster, plan = work / "tight.json", work / "tight-plan.json"
    cluster.write_text(json.dumps(description))
    done = automap("search", module(name), "--cluster", cluster, "--seconds", "0.001", "-o", plan)
    assert done.returncode == 0, done.stderr
    devices = json.loads(plan.read_text())["predicted"]["devices"]
    assert all(device["peak_bytes"] <= 0.9 * TIGHT_BYTES for device in devices), devices


def check_excluding_overrides(name, cluster, fraction, work):
    """Overrides that exclude one another are left out, and the search goes on."""
    done = automap("search", module(name), "--cluster", cluster, "--memory-fraction", fraction, "-o",
                   work / "overrides.json")  # fmt: skip
    assert done.returncode == 0, done.stderr


def check_recomputed(name, cluster, fraction, work):
    """Where no baseline fits without recomputation, some fit with it. The plan is as fast as the baselines, and its
    file has its recomputation."""
    plan = work / "recomputed.json"
    done = automap("search", module(name), "--cluster", cluster, "--memory-fraction", fraction, "--evaluations", 20,
                   "-o", plan, "--json")  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    fastest = min(seconds for seconds in found["baselines"].values() if seconds is not None)
    assert found["step_seconds"] <= fastest * (1 + 1e-9), found
    assert "selective recomputation" in found["summary"], found["summary"]
    done = automap("simulate", plan, module(name), "--json")
    assert done.returncode == 0, done.stderr
    simulated = json.loads(done.stdout)["step_seconds"]
    assert abs(simulated / found["step_seconds"] - 1) < 1e-6, (simulated, found["step_seconds"])


def check_baselines(name, cluster):
    """Only a plan of random search may be slower than a baseline, and the result names that."""
    for searcher in ("auto", "dqn", "anneal", "greedy", "exact", "random"):
        done = automap("search", module(name), "--cluster", cluster, "--searcher", searcher, "--evaluations", 2, "-o",
                       os.devnull, "--json")  # fmt: skip
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        priced = {baseline: seconds for baseline, seconds in found["baselines"].items() if seconds is not None}
        fastest = min(priced, key=priced.get)
        is_slower = priced[fastest] < found["step_seconds"]
        assert is_slower == (searcher == "random"), (searcher, found["step_seconds"], priced)
        assert (f"slower  than {fastest}," in found["summary"]) == is_slower, found["summary"]


def main():
    draw = random.Random(int(os.environ.get("AUTOMAP_SEED", "1")))
    check_baselines("gpt2_tiny", "nominal:4")
    for name, cluster, options in SEARCHES:
        check_monotone(name, cluster, options, draw)
    check_one_plan()
    check_default("mlp_tiny", "whale-pp")
    check_better("vgg19", "C")
    with tempfile.TemporaryDirectory() as work:
        check_first_rounds(pathlib.Path(work))
        for name, cluster in EXPLAINED:
            check_changes(name, cluster, pathlib.Path(work))
        check_tight("gpt2_tiny", pathlib.Path(work))
        check_excluding_overrides("gpt2_tiny", "nominal:4", 0.0001769513, pathlib.Path(work))
        check_recomputed("gpt2_tiny", "A", 5e-6, pathlib.Path(work))
    print(f"{len(SEARCHES)} searches with growing budgets, {len(EXPLAINED)} explained plans: ok")


if __name__ == "__main__":
    main()
