# labels: cpu e2e
# timeout: 300
# cost: 15
"""Pins and hints in every search space: scopes on stages, on devices and on numbers of devices, replicated or split,
and shardings of parameters in pipelines. Plans keep them, a file of hints means the same as options, plans train with
the losses of one device, and contradictions name both places.

Run as `AUTOMAP=build/automap python3 tests/e2e/test_hints.py`.
"""

import json
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "launch"))
from program import MODELS, automap

MODEL = MODELS / "gpt2_tiny" / "model.hlo.pb"
QUERY = "['layers'][{}]['attention']['query']['kernel']"

ODD_MODEL = """source,model,layers,hidden,heads,vocab,sequence,device,devices,per_server,network_gbit_per_device,\
global_batch,data,tensor,pipeline
x,gpt,2,24,3,96,8,A100,8,8,100,24,8,1,1
"""

# Hints; the same as options, or None; a check of the plan's stages and parameters.
KEPT = [
    ({"micro_batches": 4, "hints": [{"scope": "layers/0", "stage": 0, "replicate": 2},
                                    {"scope": "layers/1", "stage": 1, "split": 2}]},
     "--micro-batches 4 --pin layers/0=stage(0) --pin layers/0=replicate(2) --pin layers/1=stage(1) --pin "
     "layers/1=split(2)",
     lambda plan: stage_of(plan, 0) == 0 and stage_of(plan, 1) == 1 and sharding_of(plan, 0) == [[], []]
     and len(sharding_of(plan, 1)[1]) == 1 and plan["micro_batches"] == 4),
    ({"stages": 2, "hints": [{"parameter": "attention/query/kernel", "sharding": "-,model"}]},
     "--stages 2 --pin attention/query/kernel=-,model",
     lambda plan: len(plan["stages"]) == 2 and all(sharding_of(plan, k) == [[], ["model"]] for k in (0, 1))),
    ({"hints": [{"scope": "layers/0", "devices": 0}, {"scope": "layers/1", "devices": [1, 2, 3]}]}, None,
     lambda plan: devices_of(plan, 0) == {0} and 0 not in devices_of(plan, 1)),
    # Stages of three and one device, in the order of the pins and not of the devices.
    ({"hints": [{"scope": "layers/0", "stage": 0, "devices": "1-3"}, {"scope": "layers/1", "stage": 1, "devices": 0}]},
     None, lambda plan: devices_of(plan, 0) == {1, 2, 3} and devices_of(plan, 1) == {0}),
    # A sharding for the weights of a scope with as many dimensions, whatever they are.
    ({"data": 2, "tensor": 2, "hints": [{"scope": "layers/1/mlp_in", "sharding": "-,model"}]},
     "--data 2 --tensor 2 --pin layers/1/mlp_in=sharding(-,model)",
     lambda plan: mlp_of(plan, 1, "mlp_in") == [[], ["model"]]),
    # The source line of the products of both MLPs, in all layers.
    ({"data": 1, "tensor": 4, "hints": [{"scope": "layers.py:LINE", "replicate": True}]}, None,
     lambda plan: all(mlp_of(plan, layer, name) == [[], []] for layer in (0, 1) for name in ("mlp_in", "mlp_out"))),
    ({"data": 1, "tensor": 4, "hints": [{"scope": "layers.py:LINE", "split": 4}]}, None,
     lambda plan: all(any(mlp_of(plan, layer, name)) for layer in (0, 1) for name in ("mlp_in", "mlp_out"))),
    # A cut far from the balanced one, which only the constraint leads to.
    ({"hints": [{"scope": "layers", "stage": 0}, {"scope": "params/softmax_table", "stage": 1}]}, None,
     lambda plan: [stage_of(plan, k) for k in (0, 1)] == [0, 0] and len(plan["stages"]) == 2),
    # Values: one by its name, over both axes of a mesh, and those of a source line on both stages of a pipeline.
    ({"data": 2, "tensor": 2, "hints": [{"scope": "dot_general.51", "value": "-,-,data+model"}]},
     "--data 2 --tensor 2 --pin dot_general.51=value(-,-,data+model)",
     lambda plan: states_of(plan) == [[{"data": "S(2)", "model": "S(2)"}]]),
    ({"stages": 2, "tensor": 2, "micro_batches": 4, "hints": [{"scope": "layers.py:LINE", "value": "-,-,model"}]},
     "--stages 2 --tensor 2 --micro-batches 4 --pin layers.py:LINE=value(-,-,model)",
     lambda plan: states_of(plan) == [[{"data": "B", "model": "S(2)"}] * 4] * 2),
    # Replicated, where the lists split the operator and its users; and those of a layer, by its weights.
    ({"data": 2, "tensor": 2, "hints": [{"scope": "dot_general.51", "value": "-,-,-"}]},
     "--data 2 --tensor 2 --pin dot_general.51=value(-,-,-)",
     lambda plan: states_of(plan) == [[{"data": "B", "model": "B"}]]),
    ({"data": 2, "tensor": 2, "hints": [{"scope": "layers/0", "value": "-,-,-"}]},
     "--data 2 --tensor 2 --pin layers/0=value(-,-,-)",
     lambda plan: all(one.get("pinned") for one in plan["stages"][0]["overrides"] if "states" in one)),
    ({"tensor": 2, "hints": [{"scope": ["layers/0", "layers/1"], "split": 2}]}, None,
     lambda plan: all(sharding_of(plan, k)[1] for k in (0, 1))),
]

REFUSED = [
    ([{"scope": "layers/0", "stage": 1}, {"scope": "layers/1", "stage": 0}], 3,
     "$.hints[0].stage and {file}: $.hints[1].stage contradict each other"),
    ([{"scope": "layers/1", "stage": 0}, {"scope": "layers/1/mlp_in", "stage": 1}], 3,
     "$.hints[0].stage and {file}: $.hints[1].stage contradict each other"),
    ([{"scope": "layers/1", "split": 2}, {"scope": "layers/1", "replicate": True}], 3,
     "$.hints[0].split and {file}: $.hints[1].replicate contradict each other"),
    ([{"parameter": "0/mlp_in/kernel", "sharding": "-,model"}, {"parameter": "mlp_in/kernel", "sharding": "model,-"}],
     3,
     "$.hints[0].sharding and {file}: $.hints[1].sharding contradict each other"),
    ([{"scope": "layers/0", "devices": 0}, {"scope": "layers/0", "devices": [1, 2]}], 3,
     "$.hints[0].devices and {file}: $.hints[1].devices contradict each other"),
    ([{"scope": "layers/0", "stage": 0, "devices": 0}, {"scope": "layers/1", "stage": 0, "devices": "1-2"}], 3,
     "$.hints[0].devices and {file}: $.hints[1].devices contradict each other: no device is in both"),
    ([{"scope": "layers/0", "devices": "0-1"}, {"scope": "layers/0", "split": 4}], 3,
     "$.hints[0].devices and {file}: $.hints[1].split contradict each other"),
    ([{"scope": "layers/0", "devices": "0-1,"}], 3, '{file}: $.hints[0].devices: "" is no device of cluster'),
    ([{"scope": "layers/9", "stage": 0}], 3,
     '{file}: $.hints[0].stage: no forward operator is in the scope "layers/9"'),
    ([{"scope": "layers/0", "devices": "V100"}], 3, '{file}: $.hints[0].devices: "V100" is no device of cluster'),
    ([{"scope": "layers/0", "split": "rows"}], 3, "{file}: $.hints[0].split: expected split(AXIS)"),
    ([{"scope": "layers/0", "stage": -1}], 3, "{file}: $.hints[0].stage: expected the number of a stage"),
    ([{"scope": "layers/0"}], 3, "{file}: $.hints[0]: expected replicate, split, sharding, value, stage or devices"),
    ([{"scope": "layers/0", "sharding": "-,model,-"}], 3,
     "{file}: $.hints[0].sharding: no weight of the scope has 3 dimensions"),
    ([{"scope": "layers/0", "sharding": "-,model"}, {"scope": "layers/0/mlp_in", "sharding": 1}], 3,
     "{file}: $.hints[1].sharding: expected - or an axis per dimension"),
    ([{"scope": "layers.py:LINE", "value": "-,-,model"}, {"scope": "step/dot_general", "value": "-,-,-"}], 3,
     "$.hints[0].value and {file}: $.hints[1].value contradict each other"),
    ([{"scope": "dot_general.51", "value": "-,model"}], 3,
     "{file}: $.hints[0].value: no stored forward value of the scope has 2 dimensions (expected 3)"),
    ([{"scope": "dot_general.0", "value": "-,model"}], 3, "no forward operator has the name"),
    ([{"scope": "dot_general.0", "value": "-,model"}], 3, "; did you mean dot_general."),
    ([{"scope": ["layers/0", ""], "stage": 0}], 3, "{file}: $.hints[0].scope: expected a scope or a list of scopes"),
    ([{"parameter": "", "sharding": "-"}], 3, "{file}: $.hints[0].parameter: expected the path of a parameter"),
    ([{"scope": "layers/9", "value": "-,-,-"}], 3,
     "{file}: $.hints[0].value: no forward operator has the name, op_name, weight"),
    ([{"scope": "*", "value": "-,-,model"}], 4, "$.hints[0].value: dimension 2 of "),
    ([{"scope": "dot_general.51", "value": "-,-,rows"}], 3,
     '{file}: $.hints[0].value: sharding "-,-,rows": "rows" is no axis'),
    ([{"scope": "layers/0", "stages": 1}], 3, "{file}: $.hints[0].stages: unknown key"),
    ([{"parameter": "mlp_in/kernel", "sharding": "-,modle"}], 3, "{file}: $.hints[0].sharding: "),
    ([{"scope": "*", "replicate": 3}], 4, "$.hints[0].replicate: stage 0 has 4 devices (expected a multiple of 3)"),
    ([{"scope": "layers/0", "replicate": 9}], 4, "{file}: $.hints[0].replicate: cluster nominal:4 has 4 devices"),
    ([{"scope": "layers/0", "stage": 0, "replicate": 1}, {"scope": "layers/1", "stage": 1, "split": 2}], 4,
     "{file}: $.hints[0].replicate: the 2 stages have 3 devices"),
    ([{"scope": "layers/0", "stage": 0}, {"scope": "layers/1", "stage": 4}], 4,
     "{file}: $.hints[1].stage: cluster nominal:4 has 4 devices (expected at most as many stages, 0 to 3)"),
    ([{"scope": "layers/0", "stage": 0}, {"scope": "layers/1", "stage": 3}], 4,
     "{file}: $.hints[1].stage: no plan with 4 stages was found (expected operators between the scopes for stage 1"),
]
# Degrees of the file are named by their place in it, beside options and clusters.
DEGREES = [
    ({"data": 3}, "", 4, "{file}: $.data 3: cluster nominal:4 has 4 devices"),
    ({"data": 2, "tensor": 4}, "", 4, "automap: {file}: $.data 2 {file}: $.tensor 4: cluster nominal:4 has 4 devices"),
    ({"devices_per_stage": 3}, "--data 2", 2, "{file}: $.devices_per_stage 3 is not a multiple of --data 2"),
    ({"stages": 2}, "--pipeline 3", 2, "--pipeline 3 and {file}: $.stages 2 contradict"),
    ({"stages": 2}, "--for hlo", 2, "{file}: $.stages 2 and --for hlo: its plans have one stage"),
    ({"stages": 2}, "--baseline zero3", 2, "{file}: $.stages and --baseline"),
    ({"micro_batches": 2}, "--for hlo", 2, "{file}: $.micro_batches 2 and --for hlo: its plans have one micro-batch"),
]
OPTIONS = [
    ("--stages 1", 3, "{file}: $.hints[0].stage and --stages 1"),
    ("--space single_stage", 2, "{file}: $.hints[0].stage and --space single_stage"),
    ("--baseline even_pipeline", 2, "{file}: $.hints[0].stage and --baseline"),
    ("--mesh data=4", 2, "{file}: $.hints[0].stage and --mesh"),
    ("--micro-batches 2", 2, "--micro-batches 2 and {file}: $.micro_batches 4 contradict each other"),
]


def parameter(plan, layer):
    path = "state['params']" + QUERY.format(layer)
    return next(one for one in plan["parameters"] if one["path"] == path)


def mlp_of(plan, layer, name):
    path = f"state['params']['layers'][{layer}]['{name}']['kernel']"
    return next(row["sharding"] for row in plan["parameters"] if row["path"] == path)


def line_of_dense():
    """The line of the zoo's layers.py that multiplies by the kernels of an MLP."""
    source = (MODELS.parent / "automap_jax" / "zoo" / "layers.py").read_text().splitlines()
    return 1 + next(k for k, line in enumerate(source) if line.startswith("    return x @ p["))


def write_mixed(path, servers):
    rates = {"H100": 3350e9, "V100": 900e9, "T4": 320e9}
    types = {name: {"memory_bytes": 16 * 10**9, "memory_bytes_per_second": rates[name],
                    "flops_per_second": {"f32": 10 * rates[name]}, "kernel_launch_seconds": 4e-6}
             for name, _ in servers}  # fmt: skip
    rows = [{"device_type": name, "devices": count, **({"link": "link"} if count > 1 else {})}
            for name, count in servers]  # fmt: skip
    path.write_text(json.dumps({
        "format": "automap-cluster-1", "name": "mixed", "device_types": types, "between_servers": "link",
        "links": {"link": {"bytes_per_second": 6e9, "latency_seconds": 20e-6}}, "servers": rows}))  # fmt: skip


def check_odd_servers(folder):
    """Stages are runs of entire servers where pins name devices: one device beside three, or three of two types beside
    one. Devices without operators are left out, also with few evaluations or fixed stages."""
    cluster, plan = folder / "odd.json", folder / "odd.plan.json"
    cases = [
        ("V100:3,T4:1", ["layers/0=devices(T4)", "--stages=2"], 0, {3}),
        ("V100:2,T4:1,H100:1", ["layers/0=devices(T4,V100)", "layers/1=devices(H100)", "--stages=2"], 0, {0, 1, 2}),
        ("V100:2,T4:1,H100:1", ["*=devices(V100)"], 1, {0, 1}),
        ("H100:1,V100:2,T4:1", ["*=devices(V100)", "--evaluations=20"], 1, {1, 2}),
        ("H100:1,V100:2,T4:1", ["*=devices(1-2)", "--evaluations=20"], 1, {1, 2}),
        ("H100:1,V100:2,T4:1", ["*=devices(V100)", "--evaluations=20", "--stages=2"], 1, {1, 2}),
        ("H100:1,V100:2,T4:1", ["layers/0=devices(T4)", "layers/1=devices(V100)", "--evaluations=20"], 0, {3}),
    ]
    for servers, words, layer, devices in cases:
        write_mixed(cluster, [(name, int(count)) for name, count in (one.split(":") for one in servers.split(","))])
        options = [part for word in words for part in ([word] if word.startswith("--") else ["--pin", word])]
        done = automap("search", MODEL, "--cluster", cluster, "-o", plan, *options)
        assert done.returncode == 0, (words, done.stderr)
        assert devices_of(json.loads(plan.read_text()), layer) <= devices, (words, plan.read_text())
    done = automap("search", MODEL, "--cluster", cluster, "-o", plan, "--pin", "layers/0=devices(T4)", "--pin",
                   "layers/1=devices(V100)", "--evaluations", "2")  # fmt: skip
    assert done.returncode == 4 and "was priced within the limit (expected more --evaluations" in done.stderr, (
        done.stderr)
    done = automap("search", MODEL, "--cluster", "nominal:4", "-o", plan, "--keep-order", "--evaluations", "2",
                   "--pin", "layers/0=devices(1-3)", "--pin", "layers/1=devices(0)")  # fmt: skip
    assert done.returncode == 4 and (
        'pin "layers/1=devices(0)": its devices precede those of pin "layers/0=devices(1-3)"' in done.stderr), (
        done.stderr)
    done = automap("search", MODEL, "--cluster", cluster, "-o", plan, "--pin", "layers/0=devices(T4)", "--quota=T4=0")
    assert done.returncode == 4 and "no such device is among the 3 of cluster" in done.stderr, done.stderr


def check_many_devices(folder):
    """Pinned numbers of devices leave the wide stages that a large cluster needs."""
    plan = folder / "many.plan.json"
    hints = folder / "many.json"
    hints.write_text(json.dumps({"hints": [{"scope": f"layers/{k}", "stage": k, "replicate": 1} for k in (0, 1)]}))
    done = automap("search", MODEL, "--cluster", "nominal:128", "-o", plan, "--hints", hints, "--evaluations", "60")
    assert done.returncode == 0, done.stderr
    assert len(json.loads(plan.read_text())["stages"]) == 2


def check_few_evaluations(folder):
    """A few evaluations suffice for stages of pinned numbers of devices, here 6 and 2 or 5 and 3 of 8. Where they do
    not, the message says so."""
    plan = folder / "few.plan.json"
    command = ("search", MODEL, "--cluster", "nominal:8", "-o", plan)
    for number in (3, 5):
        for evaluations in ("8", "30"):
            done = automap(*command, "--pin", f"layers/0=replicate({number})", "--evaluations", evaluations)
            assert done.returncode == 0, (evaluations, done.stderr)
            assert len(devices_of(json.loads(plan.read_text()), 0)) % number == 0, plan.read_text()
    done = automap(*command, "--pin", "layers/0=replicate(3)", "--evaluations", "2")
    assert done.returncode == 4 and "was priced within the limit (expected more --evaluations" in done.stderr, (
        done.stderr)


def check_odd_splits(folder):
    """Three heads split over 3 of 8 devices, in a stage of 3 or 6. Five devices are refused with the mesh that has
    them."""
    plan, table, model = folder / "odd.plan.json", folder / "odd.csv", folder / "odd.hlo.pb"
    table.write_text(ODD_MODEL)
    done = automap("published", table, "--row", "2", "--write-module", model)
    assert done.returncode == 0, done.stderr
    command = ("search", model, "--cluster", "nominal:8", "-o", plan, "--evaluations", "30", "--pin")
    done = automap(*command, "layers/1=split(3)")
    assert done.returncode == 0, done.stderr
    stages = [[axis["size"] for axis in stage["mesh"]] for stage in json.loads(plan.read_text())["stages"]]
    assert any(3 in sizes for sizes in stages), stages
    done = automap(*command, "layers/1=split(5)")
    assert done.returncode == 4 and 'on data=1,model=5: pin "layers/1=split(5)": no linkage group' in done.stderr, (
        done.stderr)


def stage_of(plan, layer):
    return parameter(plan, layer)["stage"]


def sharding_of(plan, layer):
    return parameter(plan, layer)["sharding"]


def devices_of(plan, layer):
    return set(plan["stages"][stage_of(plan, layer)]["devices"])


def states_of(plan):
    return [[one["states"] for one in stage["overrides"] if "states" in one] for stage in plan["stages"]]


def check_value(plan):
    """The exported module has the sharding of a pinned value: both axes on the last dimension."""
    done = automap("export", plan, MODEL, "--format", "hlo")
    line = next(line for line in done.stdout.splitlines() if "%dot_general.51.sharding =" in line)
    assert "sharding={devices=[1,1,4]" in line, line


def check_stored(file, plan, place, state):
    """In the programs, the first product of each stage at the place is in the pinned state before it is used."""
    for stage in plan["stages"]:
        done = automap("lower", MODEL, "--plan", file, "--device", str(stage["devices"][0]))
        rows = [line for line in done.stdout.splitlines() if f"/dot_general {place}" in line
                and "/transpose(" not in line]
        made = [k for k, line in enumerate(rows) if " dot(" in line]
        assert any(f"@ {state} " in line for line in rows[made[0]:made[1]]), rows[:8]


def check_bridges(plan):
    """`explain` shows the resharding between a replicated and a split task graph, in both directions."""
    done = automap("explain", plan, MODEL, "--json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["transfers"]
    found = {(row["from"], row["to"], row["sharding_from"], row["sharding_to"]) for row in rows}
    assert {(0, 1, "[data,-,-]", "[model,-,-]"), (1, 0, "[model,-,-]", "[data,-,-]")} <= found, found


def check_reshards(plan):
    """`explain` shows how each collective inside of a stage changes the sharding of its value, over its axes alone."""
    done = automap("explain", plan, MODEL, "--json", "--evaluations", "1")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["collectives"]
    for row in rows:
        a, b, axes = row["sharding_from"], row["sharding_to"], row["axes"].split("+")
        assert a != b and a.startswith("[") and all(a.count(axis) or b.count(axis) for axis in axes), row
        assert row["kind"] != "all_reduce" or all(f"partial({axis})" in a and axis not in b for axis in axes), row
    assert any(row["kind"] in ("all_gather", "all_reduce") for row in rows), rows


def search(plan, *options):
    done = automap("search", MODEL, "--cluster", "nominal:4", "--evaluations", "60", "-o", plan, *options)
    assert done.returncode == 0, f"{options}: {done.returncode}\n{done.stderr}"
    return json.loads(plan.read_text())


def losses_of(*options):
    done = automap("run", MODEL, *options, "--steps", "3", "--state", "random", "--json")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return [row["loss"] for row in rows if "loss" in row]


def main():
    with tempfile.TemporaryDirectory() as folder:
        hints, file = pathlib.Path(folder) / "hints.json", pathlib.Path(folder) / "plan.json"
        one = losses_of("--plan", "none")
        for written, options, keeps in KEPT:
            hints.write_text(json.dumps(written).replace("LINE", str(line_of_dense())))
            plan = search(file, "--hints", hints)
            assert keeps(plan), f"{written}: {plan['stages']} {[parameter(plan, k) for k in (0, 1)]}"
            if any("split" in hint and "stage" in hint for hint in written["hints"]):
                check_bridges(file)
            if any("data+model" in hint.get("value", "") for hint in written["hints"]):
                check_value(file)
            elif written.get("tensor") == 2:
                check_reshards(file)
            for scope, value in [(hint["scope"], hint["value"]) for hint in written["hints"]
                                 if "data+model" not in hint.get("value", "data+model")]:
                place = "automap_jax/zoo/layers.py" + (f":{line_of_dense()}" if "LINE" in scope else "")
                check_stored(file, plan, place, "data=B model=S(2)" if "model" in value else "data=B model=B")
            if options:
                options = options.replace("LINE", str(line_of_dense()))
                pairs = list(zip(losses_of("--plan", file), one, strict=True))
                assert all(abs(a - b) <= 1e-5 * abs(b) for a, b in pairs), pairs
                same = search(file, *options.split())
                assert same["stages"] == plan["stages"], f"{options}: {same['stages']} {plan['stages']}"
        for listed, code, reason in REFUSED:
            hints.write_text(json.dumps({"hints": listed}).replace("LINE", str(line_of_dense())))
            done = automap("search", MODEL, "--cluster", "nominal:4", "-o", file, "--hints", hints)
            assert done.returncode == code and reason.replace("{file}", str(hints)) in done.stderr, (
                f"{listed}: {done.returncode} {done.stderr}")
        hints.write_text(json.dumps({"hints": [{"scope": f"layers/{k}", "stage": 2 * k} for k in (0, 1)]}))
        for budget, reason in ([],
                               "was found (expected"), (["--evaluations", "20"],
                                                        "was priced within the limit (expected"):
            done = automap("search", MODEL, "--cluster", "C", "-o", file, "--hints", hints, *budget)
            reason = (f"{hints}: $.hints[1].stage: no plan with 3 stages {reason} operators between the scopes for "
                      f"stage 1")
            assert done.returncode == 4 and reason in done.stderr, done.stderr
        hints.write_text(json.dumps({"hints": [{"scope": "layers/0", "devices": "V100"}]}))
        done = automap("search", MODEL, "--cluster", "C", "-o", file, "--hints", hints, "--evaluations", "20")
        assert done.returncode == 0, done.stderr
        check_odd_servers(pathlib.Path(folder))
        check_many_devices(pathlib.Path(folder))
        check_few_evaluations(pathlib.Path(folder))
        check_odd_splits(pathlib.Path(folder))
        hints.write_text(json.dumps({"micro_batches": 4, "hints": [{"scope": "layers/1", "stage": 1}]}))
        implied = json.loads(hints.read_text())
        for written, options, code, reason in [(implied, *row) for row in OPTIONS] + DEGREES:
            hints.write_text(json.dumps(written))
            done = automap("search", MODEL, "--cluster", "nominal:4", "-o", file, "--hints", hints, *options.split())
            assert done.returncode == code and reason.replace("{file}", str(hints)) in done.stderr, (
                f"{written} {options}: {done.returncode} {done.stderr}")
        done = automap("search", MODEL, "--cluster", "nominal:4", "--hints", hints, "-o", hints)
        assert done.returncode == 2 and "hints" in done.stderr, (done.returncode, done.stderr)
    print(f"{len(KEPT)} plans keep their hints, {len(REFUSED) + len(OPTIONS) + len(DEGREES)} refusals")


main()
