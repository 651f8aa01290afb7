# labels: cpu e2e
# timeout: 300
# cost: 25
"""Hybrid plans of small models: several stages of different meshes train to the one-device losses; the same
search gives the same bytes, whatever the number of threads; where memory is short a stage makes its forward pass
again, with the same bits; decisions that it does not take are refused, and what fits nowhere is told with what would.

Run as `AUTOMAP=build/automap python3 tests/e2e/test_searched_pipelines.py [MODEL ...]`.
"""

import json
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "launch"))
from program import FULL, automap, losses, succeed

SOURCE = pathlib.Path(__file__).resolve().parents[2]
MODELS = SOURCE / "datasets" / "models"
CLUSTER, MICRO_BATCHES, STEPS, TOLERANCE = "whale-pp", 4, 5, 5e-6
SHORT_OF_MEMORY = 2.6e-4  # of 4.29 GB
SAMPLE = ["mlp_tiny", "gpt2_tiny"] + (["t5_tiny", "bert_tiny"] if FULL else [])


def search(model, plan, *options, threads=None):
    return succeed("search", model, "--cluster", CLUSTER, "--space", "hybrid", "-o", plan, "--json", *options,
                   threads=threads)  # fmt: skip


def check_model(name, directory):
    """The number of stages of the plan."""
    folder = MODELS / name
    model, plan, again = folder / "model.hlo.pb", directory / "plan.json", directory / "again.json"
    source = ["--state", folder / "state.npz", "--data", folder / "data.npz"]
    search(model, plan, "--micro-batches", MICRO_BATCHES)
    search(model, again, "--micro-batches", MICRO_BATCHES, threads=1)
    assert plan.read_bytes() == again.read_bytes(), f"{name}: one thread gives another plan"
    root = json.loads(plan.read_text())
    have, want = losses(model, plan, source, STEPS), losses(model, "none", source, STEPS)
    assert len(have) == len(want) == STEPS
    for step, (a, b) in enumerate(zip(have, want)):
        assert abs(a - b) <= TOLERANCE * abs(b), f"{name}: loss {step} is {a}, of one device {b}"
    return len(root["stages"])


def check_recomputed(directory):
    """In little memory the stages make their forward pass again: the losses are bit for bit those without."""
    folder = MODELS / "bert_tiny"
    model, plan, kept = folder / "model.hlo.pb", directory / "recomputed.json", directory / "kept.json"
    source = ["--state", folder / "state.npz", "--data", folder / "data.npz"]
    succeed("search", model, "--cluster", "nominal:2", "--space", "hybrid", "--micro-batches", 1, "--memory-fraction",
            SHORT_OF_MEMORY, "-o", plan, "--quiet")  # fmt: skip
    root = json.loads(plan.read_text())
    ranges = sum(len(stage["recompute"]) for stage in root["stages"])
    assert ranges > 1, f"{ranges} ranges are made again"
    for stage in root["stages"]:
        stage["recompute"] = []
        stage.pop("saved", None)
    for derived in ("parameters", "decisions"):
        root.pop(derived)
    kept.write_text(json.dumps(root))
    have = losses(model, plan, source, STEPS)
    assert len(have) == STEPS and have == losses(model, kept, source, STEPS), "losses differ with recomputation"
    peaks = [max(device["peak_bytes"] for device in json.loads(succeed("simulate", at, model, "--json"))["devices"])
             for at in (plan, kept)]  # fmt: skip
    assert peaks[0] < peaks[1], f"{peaks[0]} bytes with recomputation, {peaks[1]} without"


def check_refused(directory):
    model = MODELS / "mlp_tiny" / "model.hlo.pb"
    for options in (["--mesh", "data=8"], ["--schedule", "interleaved_1f1b"]):
        done = automap("search", model, "--cluster", CLUSTER, "--space", "hybrid", "-o", directory / "x.json", *options)
        assert done.returncode == 2 and "--space hybrid" in done.stderr, f"{options}: {done.stderr}"


def check_number(directory):
    """More micro-batches than the batch has examples are refused with this reason."""
    for number in (3, 4096):
        for space in ("hybrid", "single_stage"):
            done = automap("search", MODELS / "mlp_tiny" / "model.hlo.pb", "--cluster", CLUSTER, "--space", space,
                           "--micro-batches", number, "-o", directory / "x.json")  # fmt: skip
            said = f"a batch of 16 cannot be split into {number} equal micro-batches"
            assert done.returncode == 4 and said in done.stderr, f"{space}: {done.stderr}"


def check_schedules(directory):
    """Cuts are moved on where lists were changed: pipelines get more than one kind of change."""
    model, log = next((MODELS / "gpt2").glob("model.hlo.pb*")), directory / "log.jsonl"
    succeed("search", model, "--cluster", "C", "--space", "hybrid", "-o", directory / "x.json", "--log", log)
    tries = [json.loads(line) for line in log.read_text().splitlines()]
    schedules = [one["schedule"] for one in tries if len(one.get("stages", [])) > 1]
    assert "1f1b" in schedules[schedules.index("zb_h1") :], schedules


def check_infeasible(directory):
    """A lack of memory is reported with the number of plans, the missing memory and changes that would fit."""
    plan = directory / "x.json"
    for name, most in (("gpt2_tiny", 5), ("gpt2_tiny", 40), ("bert_tiny", None)) if FULL else (("gpt2_tiny", 5),):
        words = ["search", MODELS / name / "model.hlo.pb", "--cluster", "nominal:6", "--micro-batches", 1, "-o", plan]
        words += ["--evaluations", most] if most else []
        done = automap(*words, "--memory-fraction", 3e-6, "--json")
        assert done.returncode == 4, f"{name}: {done.returncode}"
        error = json.loads(done.stderr)["error"]
        count, found = error["evaluations"], error["relaxations"]
        assert 0 < count <= (most or 1000) and f"no plan of {count} fits" in error["message"], error["message"]
        assert error["binding"]["needed_bytes"] > error["binding"]["limit_bytes"] and found, error["message"]
        fraction = next(row["change"].split()[1] for row in found if row["kind"] == "memory")
        assert automap(*words, "--memory-fraction", fraction).returncode == 0, f"{name}: {fraction} is not enough"


def check_agent_budget(directory):
    """An agent that does not apply is refused; no plan of another searcher replaces its plan."""
    words = ["search", MODELS / "gpt2_tiny" / "model.hlo.pb", "--cluster", CLUSTER, "-o", directory / "x.json",
             "--searcher", "agent", "--evaluations"]  # fmt: skip
    done = automap(*words, 5)
    assert done.returncode == 2 and "--evaluations 8" in done.stderr, done.stderr
    assert automap(*words, 8).returncode == 0
    done = automap(*words, 5, "--agent", directory / "none.safetensors")
    assert done.returncode == 3 and "none.safetensors" in done.stderr, done.stderr


def check_exact(directory):
    """Branch and bound is of one stage's lists: nothing is said to be exact of a space with pipelines."""
    plan = directory / "x.json"
    search(MODELS / "mlp_tiny" / "model.hlo.pb", plan, "--searcher", "exact", "--evaluations", 200)
    said = json.loads(plan.read_text())["search"]
    assert said["bound"] == "lower" and "exact_space" not in said["settings"], said


def check_baseline_prices(directory):
    """The prices of some baselines of a large module equal those of searches with that baseline alone."""
    model = next((MODELS / "bert48").glob("model.hlo.pb*"))
    words = ["--cluster", "C", "-o", directory / "x.json", "--json"]
    prices = json.loads(succeed("search", model, *words, "--evaluations", 24))["baselines"]
    assert prices["data_parallel"] and prices["even_pipeline"], prices
    assert prices["data_parallel"] == json.loads(succeed("search", model, *words, "--baseline",
                                                         "data_parallel"))["step_seconds"]


def main():
    with tempfile.TemporaryDirectory() as temporary:
        directory = pathlib.Path(temporary)
        stages = {name: check_model(name, directory) for name in sys.argv[1:] or SAMPLE}
        assert max(stages.values()) > 1, f"no plan has several stages: {stages}"
        check_recomputed(directory)
        check_refused(directory)
        check_number(directory)
        check_schedules(directory)
        check_infeasible(directory)
        check_agent_budget(directory)
        check_exact(directory)
        check_baseline_prices(directory)
    print(f"stages of the plans: {stages}")


if __name__ == "__main__":
    main()
