# labels: cpu e2e
# timeout: 300
"""Pipelines by inference, `search --searcher agent`: the plans train to the one-device losses, are never slower than
the even split or any other baseline, and are the same bytes again; the agent in a file guesses as the one built in, and
what is no agent is refused.

Run as `AUTOMAP=build/automap python3 tests/e2e/test_agent_search.py [MODEL ...]`.
"""

import json
import pathlib
import sys
import tempfile

from test_searched_pipelines import CLUSTER, MICRO_BATCHES, MODELS, SOURCE, STEPS, TOLERANCE, automap, losses, succeed

SAMPLE = ["gpt2_tiny", "t5_tiny"]
AGENT = SOURCE / "datasets" / "agents" / "pipeline.safetensors"


def search(model, plan, *options, threads=None):
    return json.loads(
        succeed("search", model, "--cluster", CLUSTER, "--searcher", "agent", "--micro-batches", MICRO_BATCHES, "-o",
                plan, "--json", *options, threads=threads)  # fmt: skip
    )


def check_model(name, directory):
    """The number of stages of the plan, and whether it is the agent's."""
    folder = MODELS / name
    model, plan, again = folder / "model.hlo.pb", directory / "plan.json", directory / "again.json"
    source = ["--state", folder / "state.npz", "--data", folder / "data.npz"]
    found = search(model, plan)
    for baseline, seconds in found["baselines"].items():
        assert seconds is None or found["step_seconds"] <= seconds, f"{name}: slower than {baseline}"
    assert found["baselines"]["even_pipeline"] is not None, f"{name}: there is no even split beside it"
    priced = json.loads(succeed("simulate", plan, model, "--json"))
    assert abs(priced["step_seconds"] / found["step_seconds"] - 1) < 1e-9, f"{name}: priced {priced['step_seconds']}"
    search(model, again, "--agent", AGENT, threads=1)
    assert plan.read_bytes() == again.read_bytes(), f"{name}: one thread and the agent in its file give another plan"
    have, want = losses(model, plan, source, STEPS), losses(model, "none", source, STEPS)
    assert len(have) == len(want) == STEPS
    for step, (a, b) in enumerate(zip(have, want)):
        assert abs(a - b) <= TOLERANCE * abs(b), f"{name}: loss {step} is {a}, of one device {b}"
    return len(json.loads(plan.read_text())["stages"]), found["searcher"]


def check_refused(directory):
    model = MODELS / "mlp_tiny" / "model.hlo.pb"
    done = automap("search", model, "--cluster", CLUSTER, "--searcher", "agent", "-o", directory / "x.json", "--agent",
                   model)  # fmt: skip
    assert done.returncode == 3 and str(model) in done.stderr, done.stderr


def main():
    with tempfile.TemporaryDirectory() as temporary:
        directory = pathlib.Path(temporary)
        plans = {name: check_model(name, directory) for name in sys.argv[1:] or SAMPLE}
        assert any(stages > 1 and searcher == "agent" for stages, searcher in plans.values()), f"none is its: {plans}"
        check_refused(directory)
    print(f"stages and searchers of the plans: {plans}")


if __name__ == "__main__":
    main()
