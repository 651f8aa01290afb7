# labels: cpu e2e
# timeout: 120
"""`search --searcher dqn`: a third of the evaluations at least belong to the policy, its log has a line for each of
them, and the plan does not depend on threads; a policy that `agent train-search` wrote is taken, another file is
refused.

Run as `AUTOMAP=build/automap python3 tests/e2e/test_search_policy.py`.
"""

import json
import os
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "launch"))
from program import automap

SOURCE = pathlib.Path(__file__).resolve().parents[2]
MODELS, AGENTS = SOURCE / "datasets" / "models", SOURCE / "datasets" / "agents"
MODEL, SMALL = MODELS / "gpt2_tiny" / "model.hlo.pb", MODELS / "mlp_tiny" / "model.hlo.pb"
COMMON = ["--cluster", "nominal:8", "--space", "single_stage"]
EVALUATIONS = 30


def search(work, *options, threads=None):
    """Returns the output of --json, the lines of the log, and the bytes of the plan."""
    plan, log = work / "plan.json", work / "log.jsonl"
    done = automap("search", MODEL, *COMMON, "--searcher", "dqn", "-o", plan, "--log", log, "--json", *options,
                   threads=threads)
    assert done.returncode == 0, f"{options}: {done.stderr}"
    return json.loads(done.stdout), [json.loads(line) for line in log.read_text().splitlines()], plan.read_bytes()


def check_share(work):
    for options in ([], ["--no-seeds", "--no-polish"]):
        found, lines, plan = search(work, "--evaluations", EVALUATIONS, *options)
        priced = len({line["evaluations"] for line in lines})
        least = EVALUATIONS / 3 if len(options) < 2 else 0.8 * found["evaluations"]
        assert priced >= least, f"{options}: {priced} of {found['evaluations']} plans are the policy's"
        best = [line["best"] for line in lines]
        assert best == sorted(best, reverse=True), f"{options}: the best plan becomes slower: {best}"
        assert found["step_seconds"] <= best[-1] * (1 + 1e-12), f"{options}: slower than the log"
        assert max(line["episodes"] for line in lines) > 1, f"{options}: one episode"
    assert search(work, "--evaluations", EVALUATIONS, *options, threads=1)[2] == plan, "another plan by one thread"


def check_default(work):
    """The default searcher has the policy's plan, which no other one has, and does not lose to it."""
    options = [SMALL, *COMMON, "-o", work / "auto.json", "--json"]
    done = automap("search", *options)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["searcher"] == "auto" and found["step_seconds"] <= found["found_seconds"]["policy"], found
    done = automap("search", *options, "--searcher", "anneal")
    assert "policy" not in json.loads(done.stdout)["found_seconds"], done.stdout
    done = automap("search", *options, "--searcher", "auto", "--policy", "untrained")
    assert json.loads(done.stdout)["found_seconds"]["policy"] >= found["found_seconds"]["policy"], (
        "not better than without learning")


def check_training(work):
    policy, again = work / "policy.safetensors", work / "again.safetensors"
    words = ["agent", "train-search", SMALL, "--problems", 16, "--report", 8, "--json"]
    done = automap(*words, "-o", policy)
    assert done.returncode == 0, done.stderr
    curve = [json.loads(line) for line in done.stdout.splitlines()]
    assert [point["problems"] for point in curve] == [0, 8, 16], curve
    assert automap(*words, "-o", again).returncode == 0
    assert policy.read_bytes() == again.read_bytes(), "two trainings under one seed differ"
    search(work, "--evaluations", 10, "--policy", policy)
    search(work, "--evaluations", 10, "--policy", "untrained")
    for options in (["--supervised"], ["--learner", "n-step=1,double,noisy,atoms=11"]):
        assert automap(*words, *options, "-o", again).returncode == 0, options
        assert policy.read_bytes() != again.read_bytes(), f"{options} change nothing"
        search(work, "--evaluations", 10, "--policy", again)


def check_refused(work):
    for words, code, said in (
        (["--policy", AGENTS / "pipeline.safetensors"], 3,
         "expected an assignment policy of format automap-assignment-3"),
        (["--policy", work / "none.safetensors"], 3, "none.safetensors"),
        (["--policy", "untrained", "--searcher", "anneal"], 2,
         "--policy untrained and --searcher anneal: only dqn and auto have a policy"),
    ):
        done = automap("search", SMALL, *COMMON, "-o", os.devnull, *words)
        assert done.returncode == code and said in done.stderr and done.stderr.count("\n") == 1, done
    for words, said in ((["agent", "train-search", SMALL], "--learner dueling: the network has one output"),
                        (["agent", "train"], "--learner dueling: the network has one output"),
                        (["search", SMALL, *COMMON], "--learner dueling and --objective time: a policy has the parts")):
        done = automap(*words, "-o", work / "policy.safetensors", "--learner", "dueling")
        assert done.returncode == 2 and said in done.stderr and done.stderr.count("\n") == 1, done
    done = automap("agent", "train-search", SMALL, "-o", work / "policy.npz")
    assert done.returncode == 2 and "ending in .safetensors" in done.stderr, done


def main():
    with tempfile.TemporaryDirectory() as temporary:
        work = pathlib.Path(temporary)
        check_share(work)
        check_default(work)
        check_training(work)
        check_refused(work)


if __name__ == "__main__":
    main()
