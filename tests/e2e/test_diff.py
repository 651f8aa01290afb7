# labels: cpu e2e
# timeout: 300
"""`automap diff` agrees with `automap simulate` and with the plan files that it compares.

Its figures are those of the simulation of each plan. Each decision's cost is the simulated step of the first plan whose
file is edited by hand. The rows of parameters cover exactly the parameters whose stage or sharding differs.

Run as `AUTOMAP=build/automap python3 tests/e2e/test_diff.py`.
"""

import json
import math
import os
import pathlib
import subprocess
import tempfile

AUTOMAP = os.environ.get("AUTOMAP", "build/automap")
MODELS = pathlib.Path(__file__).resolve().parents[2] / "datasets" / "models"
EVEN = ["--space", "pipeline", "--baseline", "even_pipeline", "--mesh", "data=2"]
PLANS = {
    "even4": [*EVEN, "--micro-batches", "4"],
    "even2": [*EVEN, "--micro-batches", "2"],
    "gpipe4": [*EVEN, "--micro-batches", "4", "--schedule", "gpipe"],
    "data": ["--baseline", "data_parallel", "--mesh", "data=4"],
    "zero1": ["--baseline", "zero1", "--mesh", "data=4"],
    "megatron": ["--baseline", "megatron", "--mesh", "data=2,model=2"],
}
PAIRS = [("even4", "even2"), ("even4", "gpipe4"), ("data", "zero1"), ("data", "megatron"), ("megatron", "even2")]
STAGE_KEYS = {
    "mesh": ["mesh", "devices", "axis_priorities", "overrides", "reshards"],
    "axis priorities": ["axis_priorities"],
    "overrides": ["overrides"],
    "resharding places": ["reshards"],
    "recomputed ranges": ["recompute"],
    "equal shards": ["even"],
    "gathered weights kept": ["keeps_gathered_weights"],
    "addends rounded before sums": ["rounds_parts"],
    "gradients all-reduced": ["all_reduces_gradients"],
    "16-bit sums reduced in f32": ["reduces_in_f32"],
    "optimizer state in host memory": ["offloads_optimizer"],
    "bytes held outside of the step": ["kept_bytes"],
}


def automap(*arguments, status=0):
    done = subprocess.run([AUTOMAP, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == status, f"automap {' '.join(map(str, arguments))}: {done.returncode}\n{done.stderr}"
    return done.stdout if status == 0 else done.stderr


def near(a, b):
    return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-15)


def with_decision(first, second, name):
    """The first plan's document with one decision of the second."""
    root = {k: v for k, v in json.loads(json.dumps(first)).items() if k not in ("parameters", "decisions")}
    if name == "micro-batches":
        root["micro_batches"] = second["micro_batches"]
    elif name == "schedule":
        root["schedule"] = second["schedule"]
    elif name == "stages":
        root["stages"], root["schedule"] = second["stages"], second["schedule"]
    else:
        stage, part = (int(name.split(":")[0].split()[1]), name.split(": ")[1]) if ": " in name else (0, name)
        for key in STAGE_KEYS[part]:
            root["stages"][stage].pop(key, None)
            if key in second["stages"][stage]:
                root["stages"][stage][key] = second["stages"][stage][key]
    return root


def check_pair(folder, model, a, b):
    paths = folder / f"{a}.json", folder / f"{b}.json"
    documents = [json.loads(path.read_text()) for path in paths]
    found = json.loads(automap("diff", *paths, model, "--json"))
    simulated = [json.loads(automap("simulate", path, model, "--json")) for path in paths]
    figures = {row["name"]: row["values"] for row in found["figures"]}
    for k in range(2):
        devices = simulated[k]["devices"]
        assert near(figures["step"][k], simulated[k]["step_seconds"])
        for name in ("compute", "communication", "hidden", "idle"):
            mean = sum(device[f"{name}_seconds"] for device in devices) / len(devices)
            assert near(figures[name][k], mean), (a, b, name)
        assert figures["peak memory"][k] == simulated[k]["peak_bytes"], (a, b)
        assert found["fits"][k] == simulated[k]["fits"]
    priced = 0
    for row in found["decisions"]:
        if row["alone"]["step_seconds"] is None:
            continue
        edited = folder / "edited.json"
        edited.write_text(json.dumps(with_decision(*documents, row["name"])))
        step = json.loads(automap("simulate", edited, model, "--json"))["step_seconds"]
        assert near(step, row["alone"]["step_seconds"]), (a, b, row, step)
        priced += 1
    assert priced > 0, (a, b, found["decisions"])
    lies = [[(p["stage"], p["sharding"]) for p in document["parameters"]] for document in documents]
    differing = sum(x != y for x, y in zip(*lies))
    assert sum(row["count"] for row in found["parameters"]) == differing, (a, b, differing)
    assert differing > 0 or a[:4] == b[:4] == "even" or b == "gpipe4", (a, b)
    text = automap("diff", *paths, model)
    assert f"A = {paths[0]}" in text and f"B = {paths[1]}" in text and "decision" in text
    return priced


def check_forms(folder, model):
    """Plans with fused and unfused attention number other instructions, which no decision of one plan may use."""
    automap("search", model, "--cluster", "nominal:4", *PLANS["data"], "--attention", "fused", "-o",
            folder / "fused.json")
    found = json.loads(automap("diff", folder / "data.json", folder / "fused.json", model, "--json"))
    rows = {row["name"]: row for row in found["decisions"]}
    assert rows["attention"]["values"] == ["unfused", "fused"], rows
    assert all(row["alone"]["step_seconds"] is None for row in found["decisions"]), rows
    step = json.loads(automap("simulate", folder / "fused.json", model, "--json"))["step_seconds"]
    assert near(found["figures"][0]["values"][1], step)


def check_switches(folder, model):
    """Plans that differ in one switch of a stage, or in the bytes beside its step, differ in one decision."""
    for name in list(STAGE_KEYS)[-5:]:
        root = json.loads((folder / "zero1.json").read_text())
        stage, (key,) = root["stages"][0], STAGE_KEYS[name]
        stage[key] = 4096 if key == "kept_bytes" else not stage.get(key, False)
        (folder / "switched.json").write_text(json.dumps(root))
        found = json.loads(automap("diff", folder / "zero1.json", folder / "switched.json", model,
                                   "--json"))["decisions"]
        values = ["0", "4096"] if key == "kept_bytes" else ["no", "yes"]
        assert [row["name"] for row in found] == [name] and sorted(found[0]["values"]) == values, found


def main():
    with tempfile.TemporaryDirectory() as place:
        folder, model = pathlib.Path(place), MODELS / "gpt2_tiny" / "model.hlo.pb"
        for name, options in PLANS.items():
            automap("search", model, "--cluster", "nominal:4", *options, "-o", folder / f"{name}.json")
        priced = sum(check_pair(folder, model, a, b) for a, b in PAIRS)
        check_forms(folder, model)
        check_switches(folder, model)
        same = automap("diff", folder / "data.json", folder / "data.json", model)
        assert "the plans have the same decisions" in same
        other = MODELS / "mlp_tiny" / "model.hlo.pb"
        assert "data.json" in automap("diff", folder / "data.json", folder / "zero1.json", other, status=3)
        automap("search", model, "--cluster", "nominal:2", "--baseline", "data_parallel", "-o", folder / "two.json")
        fewer = json.loads(automap("diff", folder / "data.json", folder / "two.json", model, "--json"))["decisions"]
        assert {row["name"] for row in fewer} == {"cluster", "stages"}, fewer
        automap("diff", folder / "data.json", model, status=2)
        assert "PLAN stands before MODEL" in automap("diff", folder / "data.json", model, folder / "zero1.json",
                                                     status=3)
    print(f"{len(PAIRS)} pairs of plans, {priced} decisions priced")


if __name__ == "__main__":
    main()
