# labels: cpu e2e
# timeout: 900
"""Simulated steps keep properties that need no simulation.

Baselines plan small models, which are simulated on several clusters. The step by step form (`simulate`) gives the
result of the folded form (`search`), bit for bit; it is never below what its busiest device does; the parts of a
device's time add up; the critical path covers the step; a trace ends when the step does, and its memory counter reaches
the predicted peak. A faster cluster is never slower; a slow device and chance never help, and chance is the same for
the same seed.

Run as `AUTOMAP=build/automap python3 tests/e2e/test_simulate.py [MODEL ...]`.
"""

import collections
import copy
import json
import pathlib
import re
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "launch"))
from program import FULL, MODELS, automap

SAMPLE = ["gpt2_tiny", "vgg_tiny", "moe_tiny"]
PIPELINE = ["--space", "pipeline", "--baseline", "even_pipeline"]
PLANS = [
    ["--cluster", "C", "--baseline", "data_parallel"],
    ["--cluster", "whale-dp", "--mesh", "data=4,model=4", "--baseline", "megatron"],
    ["--cluster", "nominal:8", "--baseline", "zero3"],
    ["--cluster", "C", "--baseline", "zero2", "--micro-batches", "2"],
    ["--cluster", "whale-pp", "--mesh", "data=2", *PIPELINE, "--micro-batches", "4"],
    ["--cluster", "nominal:4", "--mesh", "data=1", *PIPELINE, "--micro-batches", "8", "--schedule", "gpipe"],
    ["--cluster", "nominal:4", "--mesh", "data=1", *PIPELINE, "--micro-batches", "8", "--schedule", "1f1b"],
    ["--cluster", "nominal:4", "--mesh", "data=1", *PIPELINE, "--micro-batches", "8", "--schedule", "zb_h1"],
]


def simulate(plan, model, *options):
    done = automap("simulate", plan, model, "--json", *options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def close(value, expected):
    return abs(value - expected) <= 1e-9 * max(abs(expected), 1e-12)


def check_sums(found):
    step = found["step_seconds"]
    for device in found["devices"]:
        busy = device["compute_seconds"] + device["communication_seconds"] - device["hidden_seconds"]
        assert close(busy + device["idle_seconds"], step), device
        assert device["idle_seconds"] >= 0, device
        assert device["hidden_seconds"] <= min(device["compute_seconds"], device["communication_seconds"]) + 1e-12
        assert step >= busy * (1 - 1e-12)
    path = found["critical_path"]
    assert close(path["compute_seconds"] + path["collective_seconds"] + path["transfer_seconds"], step), path
    idle = sum(device["idle_seconds"] for device in found["devices"])
    assert close(found["bubble_fraction"] * step * len(found["devices"]), idle)


def faster(cluster, what):
    """The cluster's description with all rates of one kind doubled."""
    cluster = copy.deepcopy(cluster)
    if what == "links":
        for link in cluster["links"].values():
            link["bytes_per_second"] *= 2
            link["latency_seconds"] /= 2
    else:
        for kind in cluster["device_types"].values():
            kind["memory_bytes_per_second"] *= 2
            kind["kernel_launch_seconds"] = kind.get("kernel_launch_seconds", 0) / 2
            kind["flops_per_second"] = {name: 2 * rate for name, rate in kind["flops_per_second"].items()}
    return cluster


def check_trace(folder, plan, model, step):
    trace = folder / "trace.json"
    devices = simulate(plan, model, "--trace", trace)["devices"]
    events = json.loads(trace.read_text())
    slices = [e for e in events.get("traceEvents", events) if e["ph"] == "X"]
    end = max(e["ts"] + e["dur"] for e in slices)
    assert abs(end - step * 1e6) <= 2e-3 + 1e-9 * end, (end, step)
    check_arrows(json.loads(plan.read_text()), events.get("traceEvents", events), slices)
    check_counters(devices, events["traceEvents"], end)


def check_counters(devices, events, end):
    """The largest memory of each device is its predicted peak; parameters and slots are there all the time."""
    counters = [event for event in events if event["ph"] == "C"]
    for rank, device in enumerate(devices):
        own = [event for event in counters if event["pid"] == rank]
        totals = [sum(event["args"].values()) for event in own]
        assert len(own) > 1 and max(totals) == device["needed_bytes"], (rank, max(totals), device)
        assert all(0 <= event["ts"] <= end + 1e-3 and min(event["args"].values()) >= 0 for event in own)
        assert {event["args"]["transfers"] for event in own} == {device["channel_bytes"]}, own[0]
        assert min(totals) < max(totals) and min(totals) >= own[0]["args"]["parameters"] + device["channel_bytes"]


def check_arrows(root, events, slices):
    """Slices name their stage and micro-batch. Each arrow begins on a slice of a sender and ends on one of a receiver
    of another stage, of the same micro-batch."""
    stage_of = [number for number, stage in enumerate(root["stages"]) for _ in stage["devices"]]
    numbers = {event["args"]["micro_batch"] for event in slices if "micro_batch" in event.get("args", {})}
    assert all(event["args"]["stage"] == stage_of[event["pid"]] for event in slices if event["name"] != "step")
    assert numbers == (set(range(root["micro_batches"])) if root["micro_batches"] > 1 else set()), numbers
    transfers = [event for event in slices if event["name"] == "transfer"]
    ends = [{event["id"]: event for event in events if event["ph"] == kind} for kind in "sf"]
    assert len(root["stages"]) == 1 or ends[0], "a pipeline without arrows"
    assert set(ends[0]) == set(ends[1])
    for number, begin in ends[0].items():
        pair = [begin, ends[1][number]]
        told = [max((slice for slice in transfers if slice["ts"] <= event["ts"] and slice["tid"] == event["tid"]
                     and slice["pid"] == event["pid"]), key=lambda slice: slice["ts"])["args"] for event in pair]
        assert begin["ts"] < pair[1]["ts"] and told[0]["stage"] != told[1]["stage"], pair
        assert told[0].get("micro_batch") == told[1].get("micro_batch"), told


def check_plan(folder, model, options):
    plan = folder / "plan.json"
    done = automap("search", model, "--searcher", "baseline", *options, "-o", plan, "--json")
    if done.returncode in (2, 4):
        return False  # the module does not allow it
    assert done.returncode == 0, done.stderr
    written = json.loads(plan.read_text())
    found = simulate(plan, model)
    step = found["step_seconds"]
    assert step == written["predicted"]["step_seconds"], (step, written["predicted"]["step_seconds"])
    check_sums(found)
    busy = [[device["busy_fraction"] for device in told["devices"]] for told in (json.loads(done.stdout), found)]
    assert busy[0] == busy[1], f"{options}: search says busy {busy[0]}, simulate {busy[1]}"
    check_trace(folder, plan, model, step)
    cluster = written["cluster"]["description"]
    for what in ("links", "devices"):
        other = folder / "faster.json"
        other.write_text(json.dumps(faster(cluster, what)))
        assert simulate(plan, model, "--cluster", other)["step_seconds"] <= step, what
    slow = simulate(plan, model, "--slow", "0=1.5")
    check_sums(slow)
    assert slow["step_seconds"] >= step
    assert close(simulate(plan, model, "--slow", "0=1")["step_seconds"], step)
    for bad in ("0", "0=", "0=-1", "9999=2", "0=1;1=2", "0=2,", "", "x"):
        done = automap("simulate", plan, model, "--slow", bad)
        assert done.returncode == 2 and "DEVICE=FACTOR" in done.stderr, (bad, done)
    done = automap("simulate", plan, model, "--slow", "0=2,0=3")
    assert done.returncode == 2 and "twice" in done.stderr, done
    jitter = [simulate(plan, model, "--jitter", "0.1", "--seed", seed)["step_seconds"] for seed in (1, 1, 2)]
    assert jitter[0] == jitter[1] and jitter[0] != jitter[2] and min(jitter) > step, jitter
    return True


def check_sweep(folder, model):
    """A row is what `simulate` says of the same plan; a profile is used; options that could not be are refused."""
    def sweep(*options):
        done = automap("simulate", "--sweep", model, "--cluster", "nominal:2", "--micro-batches", "4", *options,
                       "--json")
        return done.returncode, json.loads(done.stdout or done.stderr)

    plan, profile = folder / "plan.json", folder / "profile.json"
    options = ["--cluster", "nominal:2", "--searcher", "baseline", *PIPELINE, "--micro-batches", "4", "--schedule",
               "1f1b"]
    assert automap("search", model, *options, "-o", plan).returncode == 0
    found = simulate(plan, model)
    code, swept = sweep()
    row = next(row for row in swept["strategies"] if row["stages"] == 2)
    assert code == 0 and row["schedule"] == "1f1b", row
    assert all(row[key] == found[key] for key in ("step_seconds", "peak_bytes", "fits")), (row, found)
    state, data = model.parent / "state.npz", model.parent / "data.npz"
    done = automap("run", model, "--plan", plan, "--state", state, "--data", data, "--steps", "1", "--profile", profile)
    assert done.returncode == 0, done.stderr
    code, swept = sweep("--profile", profile)
    row = next(row for row in swept["strategies"] if row["stages"] == 2)
    measured = simulate(plan, model, "--profile", profile)["step_seconds"]
    assert code == 0 and row["step_seconds"] == measured != found["step_seconds"], (row, measured)
    assert automap("search", model, *options, "--profile", profile, "-o", plan).returncode == 0
    searched = json.loads(plan.read_text())["predicted"]["step_seconds"]
    assert close(searched, measured), (searched, measured)
    for words in (["--slow", "0=2"], ["--jitter", "0.1"], ["--seed", "1"], ["--verbose"], ["--trace", profile]):
        code, answer = sweep(*words)
        assert code == 2 and words[0] in answer["error"]["message"], (words, answer)
    done = automap("simulate", plan, model, "--trace", "-")
    assert done.returncode == 2 and "-o FILE" in done.stderr, done
    done = automap("simulate", plan, model, "--trace", "-", "-o", folder / "report.txt")
    assert done.returncode == 0 and json.loads(done.stdout)["traceEvents"], done


def check_fullest(folder, model):
    """On a mixed cluster a search and a simulation name the same device: the one whose memory is filled most."""
    plan = folder / "plan.json"
    searched = automap("search", model, "--cluster", "whale-pp", "--mesh", "data=1", "--searcher", "baseline",
                       *PIPELINE, "--micro-batches",
                       "4", "-o", plan).stdout
    told = automap("simulate", plan, model).stdout
    devices = simulate(plan, model)["devices"]
    fullest = max(devices, key=lambda device: device["needed_bytes"] / device["memory_bytes"])
    assert fullest["needed_bytes"] == fullest["peak_bytes"] + fullest["channel_bytes"] > fullest["peak_bytes"]
    assert fullest["limit_bytes"] == int(0.9 * fullest["memory_bytes"])
    assert f"memory is fullest on {fullest['name']}" in told, told
    size, limit, memory = re.search(r"fullest device (\S+ \S+) of (\S+ \S+) \(0.9 of (\S+ \S+)\)", told).groups()
    assert f"memory  {size} of {limit} (0.9 of {memory}) at the peak" in searched, (size, searched)
    explained = automap("explain", plan, model, "--evaluations", "1").stdout
    assert re.search(rf"^ *\d+ +{size} +{limit} ", explained, re.M) and "0.9 of a device's memory" in explained, (
        (size, explained))


def check_micro_batches(folder, model):
    """A trace has every micro-batch of a plan of one stage: each operator of the loop as often, one micro-batch after
    another."""
    plan, trace = folder / "plan.json", folder / "trace.json"
    done = automap("search", model, "--cluster", "nominal:2", "--space", "single_stage", "--evaluations", "20",
                   "--micro-batches", "4",
                   "-o", plan)
    assert done.returncode == 0, done.stderr
    check_trace(folder, plan, model, simulate(plan, model)["step_seconds"])
    events = [e for e in json.loads(trace.read_text())["traceEvents"] if e["ph"] == "X" and e["pid"] == 0
              and e.get("args")]
    dots = {}
    for event in events:
        if event["name"].startswith("dot"):
            dots.setdefault(event["args"].get("instruction"), []).append(event["ts"])
    repeated = [starts for starts in dots.values() if len(starts) == 4]
    assert len(repeated) > 10 and len(repeated) == len(dots), dots
    length = {round(b - a, 2) for starts in repeated for a, b in zip(sorted(starts), sorted(starts)[1:])}
    assert max(length) - min(length) < 0.05, length
    starts = sorted(min(times) for times in repeated)
    assert starts[-1] < starts[0] + max(length), "the first micro-batch ends behind the second one's begin"


def check_useless_bound(folder, model):
    """A bound far below the step has a reason in place of a percentage; --json keeps the numbers."""
    cluster = json.loads(automap("cluster", "nominal:4", "--json").stdout)
    for link in cluster["links"].values():
        link["latency_seconds"] = 10
    (folder / "far.json").write_text(json.dumps(cluster))
    words = ["search", model, "--cluster", folder / "far.json", "--searcher", "baseline", *PIPELINE, "-o",
             folder / "plan.json"]
    told = automap(*words).stdout
    assert "bound   no useful bound is known" in told and "gap" not in told, told
    found = json.loads(automap(*words, "--json").stdout)
    assert found["gap"] > 10 and found["bound_seconds"] > 0, found


def check_derivation(folder, model):
    """--verbose prints messages and the busiest link of each transfer, whose time is that of the transfer; all are in
    the report."""
    def seconds(words):
        value, unit = words.split()
        return float(value) * {"s": 1, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}[unit]

    plan, total, values = folder / "plan.json", 0, 0
    done = automap("search", model, "--cluster", "whale-pp", "--mesh", "data=2", "--searcher", "baseline", *PIPELINE,
                   "--micro-batches", "4", "-o", plan)
    assert done.returncode == 0, done.stderr
    lines = automap("simulate", plan, model, "--verbose").stdout.splitlines()
    for line, why in zip(lines, lines[1:]):
        head = re.fullmatch(r"from stage \d+ to \d+, (\d+) a step of .*, (.*) in all:", line)
        if not head:
            continue
        latency, load = re.fullmatch(r"  point to point: \d+ messages?, ([^;]*); busiest .* x [^,]*, (.*)",
                                     why).groups()
        count, took = int(head[1]), seconds(head[2])
        assert abs(count * (seconds(latency) + seconds(load)) / took - 1) < 0.02, (line, why)
        total, values = total + took, values + count
    told = json.loads(automap("simulate", plan, model, "--verbose", "--json").stdout)["derivation"]
    assert told == lines[-len(told):], (told, lines)
    report = simulate(plan, model)["transfers"]
    assert values == report["count"] and abs(total / report["seconds"] - 1) < 0.02, (values, total, report)


def check_trace_error(folder, model):
    """compare: no error between equal timelines; a device of half the speed, and only that one, is seen; errors are
    those of Python."""
    plan, traces = folder / "plan.json", [folder / "own.json", folder / "slow.json"]
    done = automap("search", model, "--cluster", "nominal:2", "--stages", "2", "--quiet", "--evaluations", "20", "-o",
                   plan)
    assert done.returncode == 0, done.stderr
    simulate(plan, model, "--trace", traces[0])
    simulate(plan, model, "--trace", traces[1], "--slow", "0=2")
    done = automap("compare", plan, model, "--trace", traces[0])
    assert done.returncode == 3 and "a simulated trace" in done.stderr, done
    for path in traces:  # as if a run had written it
        path.write_text("\ufeff" + path.read_text().replace("automap simulate", "automap run", 1))
    own, slow = [json.loads(automap("compare", plan, model, "--trace", trace, "--json").stdout) for trace in traces]
    assert own["error"] < 1e-6 and own["clock_error"] < 1e-6, own  # a trace has whole nanoseconds
    first, second = slow["devices"]
    ratios = [row["compute_measured"] / row["compute_predicted"] for row in (first, second)]
    assert ratios[0] > 1.5 and abs(ratios[1] - 1) < 0.1, ratios
    assert [row["stage"] for row in slow["stages"]] == [0, 1] and slow["stages"][1]["error"] > 0.005, slow["stages"]
    for row, error in zip(slow["devices"], trace_errors(*traces)):
        assert abs(row["error"] - error[0]) < 1e-6 and abs(row["clock_error"] - error[1]) < 1e-6, (row, error)
    told = automap("compare", plan, model, "--trace", traces[1]).stdout
    assert f"{100 * slow['stages'][1]['error']:.2f} %" in told and ": 1 step of 2 ranks" in told, told
    equal = automap("compare", plan, model, "--trace", traces[1], "--slow", "0=2", "--json")
    assert json.loads(equal.stdout)["clock_error"] < 1e-6, equal
    check_other_traces(folder, plan, model, json.loads(traces[0].read_text("utf-8-sig")))


def trace_errors(predicted, measured):
    """For each device the mean error of its operators, by the own steps and by the clock."""
    lists = []
    for path in predicted, measured:
        slices = [e for e in json.loads(path.read_text("utf-8-sig"))["traceEvents"] if e["ph"] == "X"]
        steps = {e["pid"]: e for e in slices if e["name"] == "step"}
        seen, found = collections.Counter(), {}
        for e in sorted(slices, key=lambda e: e["ts"]):
            key = (e["pid"], e["name"], e["args"].get("instruction"), e["args"].get("micro_batch"))
            if e["tid"] % 5 == 1 and key[2] and e["name"] != "while":
                found[(*key, seen[key])] = e["ts"] - steps[e["pid"]]["ts"], e["ts"] + e["dur"] - steps[e["pid"]]["ts"]
                seen[key] += 1
        lists.append((found, {device: step["dur"] for device, step in steps.items()}))
    (own, steps), (other, lengths) = lists
    assert own.keys() == other.keys()
    for device, step in sorted(steps.items()):
        pairs = [(a, b) for key in own if key[0] == device for a, b in zip(own[key], other[key])]
        length = lengths[device]
        yield sum(abs(a / step - b / length)
                  for a, b in pairs) / len(pairs), sum(abs(a - b) for a, b in pairs) / len(pairs) / length


def check_other_traces(folder, plan, model, trace):
    """Traces of other plans and files that are no traces are refused in one line."""
    path, events = folder / "other.json", trace["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    for text, why in [
            ("", "not valid JSON"), ("{}", "expected a trace of automap run"),
        ('{"traceEvents": {}}', "expected an array"),
            ("[]", "1:1: expected an object"), ('{"traceEvents": [5]}', "expected objects"),
            ('{"traceEvents": [{"ts": "x"}]}', '"ts": expected a number'),
        ('{"traceEvents": [{"ts": -1}]}', '"ts": expected a number from 0'),
            (json.dumps({"traceEvents": [{k: v for k, v in slices[0].items() if k != "ts"}]}), 'a slice without "ts"'),
            (json.dumps({"traceEvents": [{**slices[0], "args": None}]}), 'without a "stage" in "args"'),
            (json.dumps({"traceEvents": [{**e, "name": e["name"] + "s" * (k % 3 > 0 and e["name"] != "step")}
                                         for k, e in enumerate(slices)]}), "of the plan's"),
            ("\ufeff[]", "1:1: expected an object"), ("{".encode("utf-16"), "UTF-16 text (expected UTF-8)"),
            ('{"traceEvents": [{"ph": "X", "pid": 1e300}]}', "expected a number from 0 to"),
        ('{"traceEvents": []} x', "after the trace"),
            (json.dumps({"traceEvents": [{**slices[0], "args": {}}]}), 'without a "stage"'),
            (json.dumps({"traceEvents": [e for e in events if e["pid"] == 0]}), "rank 1 has no step"),
            (json.dumps({"traceEvents": events + [{**e, "pid": 2} for e in slices if e["name"] == "step"]}),
             "rank 2 is not of the plan"),
            (json.dumps({"traceEvents": [{**e, "name": e["name"] + "s"} for e in slices]}), "no operator of the plan"),
            (json.dumps({"traceEvents": [{**e, "args": {**e["args"], "stage": 0}} for e in slices]}),
             "rank 1 is of another stage")]:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        done = automap("compare", plan, model, "--trace", path)
        assert done.returncode == 3 and why in done.stderr and done.stderr.count("\n") == 1, (why, done.stderr)
        assert ("not valid JSON" in done.stderr) == (why in ("not valid JSON", "after the trace")), done.stderr
    assert automap("compare", plan, model).returncode == 2


def main():
    models = sys.argv[1:] or (sorted(p.name for p in MODELS.iterdir() if p.name.endswith("_tiny")) if FULL else SAMPLE)
    checked = 0
    with tempfile.TemporaryDirectory() as name:
        for model in models:
            file = next(path for path in (MODELS / model).iterdir() if path.name.startswith("model.hlo"))
            for options in PLANS:
                try:
                    checked += check_plan(pathlib.Path(name), file, options)
                except AssertionError as error:
                    sys.exit(f"{model} {' '.join(options)}: {error}")
        check_sweep(pathlib.Path(name), MODELS / "gpt2_tiny" / "model.hlo.pb")
        check_derivation(pathlib.Path(name), MODELS / "t5_tiny" / "model.hlo.pb")
        check_fullest(pathlib.Path(name), MODELS / "gpt2_tiny" / "model.hlo.pb")
        check_micro_batches(pathlib.Path(name), MODELS / "gpt2_tiny" / "model.hlo.pb")
        check_useless_bound(pathlib.Path(name), MODELS / "gpt2_tiny" / "model.hlo.pb")
        check_trace_error(pathlib.Path(name), MODELS / "gpt2_tiny" / "model.hlo.pb")
    print(f"{checked} plans of {len(models)} models")
    assert checked >= len(models) * 4


if __name__ == "__main__":
    main()
