# labels: cpu e2e
# timeout: 300
"""Degrees that options fix: the plan has exactly these, is no slower than the baseline that has them, and trains with
the losses of one device. The bound is that of plans with these stages. Degrees that contradict each other, that the
cluster lacks, or that leave no mesh for a pin, are refused with the reason.

Run as `AUTOMAP=build/automap python3 tests/e2e/test_degrees.py`.
"""

import json
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "launch"))
from program import MODELS, automap

MODEL = MODELS / "gpt2_tiny" / "model.hlo.pb"
SMALL = MODELS / "mlp_tiny" / "model.hlo.pb"

# Options; stages, data and tensor degree of the plan (None: free); the baseline with the same degrees.
FOUND = [
    ("--stages 2", (2, None, None), "--baseline even_pipeline --mesh data=2"),
    ("--stages 2 --tensor 2", (2, 1, 2), "--baseline megatron_3d --mesh data=1,model=2"),
    ("--pipeline 4 --micro-batches 2", (4, 1, 1), None),
    ("--tensor 2 --data 2", (1, 2, 2), "--baseline megatron --mesh data=2,model=2"),
    ("--tensor 4 --space single_stage", (1, 1, 4), "--baseline megatron --mesh data=1,model=4"),
    ("--devices-per-stage 2 --space hybrid", (2, None, None), None),
    ("--stages 2 --data 2 --for megatron", (2, 2, 1), None),
]

REFUSED = [
    ("--stages 2 --pipeline 4", 2, "--stages 2 and --pipeline 4"),
    ("--tensor 4 --devices-per-stage 6", 2, "--devices-per-stage 6 is not a multiple of --tensor 4"),
    ("--tensor 4 --data 2 --devices-per-stage 4", 2, "--data 2 and --tensor 4: a stage has 8 devices"),
    ("--stages 2 --space single_stage", 2, "--stages 2 and --space single_stage"),
    ("--stages 2 --searcher exact", 2, "--stages 2 and --searcher exact"),
    ("--tensor 2 --mesh data=4", 2, "--tensor and --mesh"),
    ("--tensor 2 --baseline zero3", 2, "--tensor and --baseline"),
    ("--stages 8", 4, "cluster nominal:4 has 4 devices, fewer than stages"),
    ("--tensor 3", 4, "no multiple of the tensor degree"),
    ("--data 3", 4, "no multiple of the data degree"),
    ("--stages 2 --devices-per-stage 4", 4, "cluster nominal:4 has 4 devices"),
    ("--stages 2 --evaluations 1 --seconds 60", 4, "no plan with --stages 2 was priced"),
    ("--stages 2 --cluster nominal:7 --evaluations 20", 4, "no such stages have all 7 devices of nominal:7"),
    ("--stages 4 --pin layers/0=split(model)", 4, 'on data=1,model=1: pin "layers/0=split(model)"'),
    ("--stages 4 --evaluations 20 --pin layers/0=value(model,-,-)", 4, 'pin "layers/0=value(model,-,-)": jit(step)'),
    ("--stages 2 --evaluations 20 --pin layers/0/mlp_in/kernel=-,model --pin layers/0/mlp_out/kernel=-,model", 4,
     'takes all pins (expected stages between them, or more --evaluations); on data=1,model=2: pin "layers/0'),
    ("--evaluations 20 --pin layers/0=split(3)", 4,
     'on data=1,model=3: pin "layers/0=split(3)": no linkage group of strict rules splits weights of this scope'),
]


def search(options, plan):
    done = automap("search", MODEL, "--cluster", "nominal:4", "--json", "-o", plan, *options.split())
    assert done.returncode == 0, f"{options}: {done.returncode}\n{done.stderr}"
    return json.loads(done.stdout)["step_seconds"], json.loads(plan.read_text())


def check_degrees(plan, degrees, options):
    stages, data, tensor = degrees
    assert len(plan["stages"]) == stages, f"{options}: {len(plan['stages'])} stages"
    for stage in plan["stages"]:
        sizes = {axis["axis"]: axis["size"] for axis in stage["mesh"]}
        assert len(stage["devices"]) == 4 // stages, f"{options}: {stage['devices']}"
        assert data in (None, sizes["data"]), f"{options}: {sizes}"
        assert tensor in (None, sizes.get("model", 1)), f"{options}: {sizes}"


def check_uses(plan, options):
    """The model axis splits something, and not the examples."""
    for stage in plan["stages"]:
        assert stage["axis_priorities"]["model"], f"{options}: {stage['axis_priorities']}"
    data = [one for one in plan["parameters"] if not one["path"].startswith("state")]
    assert data and all("model" not in one["sharding"][0] for one in data), f"{options}: {data}"


def losses_of(plan):
    done = automap("run", SMALL, "--plan", plan, "--steps", "3", "--state", "random", "--json")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return [row["loss"] for row in rows if "loss" in row]


def check_losses(work):
    """Two stages of tensor degree 2 train like one device."""
    several, one = work / "several.json", work / "one.json"
    options = ["--stages", "2", "--tensor", "2"]
    for plan, words in ((several, ["--cluster", "nominal:4", *options]), (one, ["--cluster", "nominal:1"])):
        done = automap("search", SMALL, *words, "-o", plan)
        assert done.returncode == 0, done.stderr
    pairs = list(zip(losses_of(several), losses_of(one), strict=True))
    assert len(pairs) == 3 and all(abs(a - b) <= 1e-5 * abs(b) for a, b in pairs), pairs


def check_bound(work):
    """The bound is that of the plans with the given stages, above that of any number of stages."""
    bounds = []
    for options in ([], ["--stages", "2"]):
        done = automap("search", MODEL, "--cluster", "nominal:4", "--space", "hybrid", "--schedule", "1f1b",
                       "--evaluations", "40", *options, "-o", work / "bound.json", "--json")  # fmt: skip
        bounds.append(json.loads(done.stdout)["bound_seconds"])
    assert bounds[1] > 1.02 * bounds[0], bounds


def main():
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        for options, degrees, baseline in FOUND:
            seconds, plan = search(options, work / "plan.json")
            check_degrees(plan, degrees, options)
            if degrees[2] and degrees[2] > 1:
                check_uses(plan, options)
            if baseline:
                micro_batches = f" --micro-batches {plan['micro_batches']}"
                slower = search(baseline + micro_batches, work / "other.json")[0]
                assert seconds <= slower, f"{options}: {seconds} s, {baseline} {slower} s"
        for options, code, reason in REFUSED:
            cluster = [] if "--cluster" in options else ["--cluster", "nominal:4"]
            done = automap("search", MODEL, *cluster, "-o", work / "none.json", *options.split())
            assert done.returncode == code and reason in done.stderr, f"{options}: {done.returncode} {done.stderr}"
        check_losses(work)
        check_bound(work)
    print(f"{len(FOUND)} plans with fixed degrees, {len(REFUSED)} refusals")


main()
