# labels: cpu e2e
# timeout: 120
"""`search --measure N` runs N plans on this machine and returns the one that was measured fastest.

Its runs are distinct and in the order of the predictions; text, JSON and plan file agree; the plan trains. A run whose
process is killed is reported and not chosen. An interrupt keeps the best plan so far, and `--seconds` limits search and
runs together. `--for`, `--mesh` and pins hold for every measured plan. Other clusters and other goals are refused.

Run as `AUTOMAP=build/automap python3 tests/e2e/test_measure.py`.
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "launch"))
from program import AUTOMAP, automap, module, succeed

MODEL = module("mlp_tiny")
COMMON = ["--cluster", "host:2", "--evaluations", 60]


def search(plan, runs, *options):
    return json.loads(succeed("search", MODEL, *COMMON, "--measure", runs, "-o", plan, "--json", *options))


def check_runs(plan):
    found = search(plan, 4)
    runs = found["measurements"]
    assert len(runs) == 4, runs
    predicted = [run["predicted_seconds"] for run in runs]
    assert predicted == sorted(predicted) and len({tuple(run["strategy"]) for run in runs}) > 1, runs
    assert len({run["plan"] for run in runs}) == len(runs), [run["plan"] for run in runs]
    for run in runs:
        assert run["measured_seconds"] == min(run["step_seconds"]) > 0 and len(run["step_seconds"]) >= 3, run
    assert runs[0]["corrected_seconds"] == predicted[0], "the first prediction is corrected by nothing"
    assert runs[1]["corrected_seconds"] != predicted[1], "the first run corrects nothing"
    fastest = min(runs, key=lambda run: run["measured_seconds"])
    assert [run for run in runs if run["chosen"]] == [fastest], runs
    assert found["step_seconds"] == fastest["predicted_seconds"], "another plan than the fastest"
    assert found["summary"].count("this one") == 2 and "measured plan" in found["summary"], found["summary"]
    document = json.loads(plan.read_text())
    for run in runs:
        del run["step_seconds"]
    assert document["search"]["settings"]["measurements"] == runs, "the plan file has other runs"
    assert document["predicted"]["step_seconds"] == fastest["predicted_seconds"], "the plan file has another plan"
    succeed("run", MODEL, "--plan", plan, "--state", "random", "--steps", 2)
    assert "measurements" not in json.loads(succeed("search", MODEL, *COMMON, "-o", plan, "--json"))


def check_restrictions(plan):
    """Measured plans are plans of the search that the options describe."""
    search(plan, 3, "--for", "jax")
    succeed("export", plan, MODEL, "--format", "jax", "-o", os.devnull)
    for run in search(plan, 3, "--mesh", "data=1,model=2")["measurements"]:
        assert run["plan"].startswith("data=1,model=2"), run
    found = search(plan, 3, "--baseline", "zero1")["measurements"]
    assert {run["found_by"] for run in found} == {"zero1"}, found


def children(process):
    return pathlib.Path(f"/proc/{process}/task").glob("*/children")


def first_child(search, after=0):
    """The process of a run, once it has another number than the one before."""
    while search.poll() is None:
        try:
            for path in children(search.pid):
                for child in map(int, path.read_text().split()):
                    if child != after:
                        return child
        except FileNotFoundError:
            pass
        time.sleep(0.001)
    return 0


def begin(plan, *options):
    words = [AUTOMAP, "search", MODEL, *COMMON, "-o", plan, "--json", *options]
    return subprocess.Popen([*map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def check_killed(plan):
    """The first run fails, the others count."""
    process = begin(plan, "--measure", 3)
    os.kill(first_child(process), signal.SIGKILL)
    runs = json.loads(process.communicate()[0])["measurements"]
    assert process.returncode == 0 and len(runs) == 3, runs
    failed = [run for run in runs if run["measured_seconds"] is None]
    if not failed:
        return  # it had ended
    assert failed == runs[:1] and "signal 9" in failed[0]["reason"] and not failed[0]["chosen"], runs


def check_interrupt(plan):
    process = begin(plan, "--measure", 40)
    first = first_child(process)
    first_child(process, after=first)  # the first run is over
    process.send_signal(signal.SIGINT)
    runs = json.loads(process.communicate()[0])["measurements"]
    assert process.returncode == 130 and 1 <= len(runs) < 40 and sum(run["chosen"] for run in runs) == 1, runs
    succeed("simulate", plan, MODEL)


def check_seconds(plan):
    start = time.monotonic()
    search(plan, 1000, "--seconds", 0.5)
    assert time.monotonic() - start < 5, "later than its limit on a crowded machine"


def check_refusals(plan):
    for code, text, options in (
        (2, "automap: cluster C: --measure runs plans on this machine", ["--cluster", "C", "--measure", 2]),
        (2, "--objective cost", ["--cluster", "host:2", "--measure", 2, "--objective", "cost"]),
        (2, "--pareto", ["--cluster", "host:2", "--measure", 2, "--pareto"]),
        (2, "--objective paper", ["--cluster", "host:2", "--measure", 2, "--objective", "paper", "--space", "data"]),
        (2, "expected an integer", ["--cluster", "host:2", "--measure", 0]),
    ):
        done = automap("search", MODEL, "-o", plan, *options)
        assert done.returncode == code and text in done.stderr, (options, done.returncode, done.stderr)


if __name__ == "__main__":
    os.environ["AUTOMAP_NO_PROBE"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        plan = pathlib.Path(folder) / "plan.json"
        for check in (check_runs, check_restrictions, check_killed, check_interrupt, check_seconds, check_refusals):
            check(plan)
            print(f"{check.__name__}: ok")
