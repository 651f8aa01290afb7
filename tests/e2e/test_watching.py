# labels: cpu e2e
# timeout: 300
"""The monitors of a run: its log, TensorBoard events, measured trace, progress on a terminal, and its report.

The log has a line a step with the losses of the stream, and is readable while the run goes on. The event file is read
by TensorBoard's own reader, where that is installed. In the trace slices of a stream are nested or disjoint, every rank
has the operators of its program, and the iterations of a loop are inside the loop. Progress goes to a terminal only. A
loss that is not a number ends runs and processes with exit code 5 and saves nothing.

Run as `AUTOMAP=build/automap python3 tests/e2e/test_watching.py`.
"""

import json
import math
import os
import pathlib
import pty
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time

try:
    import numpy as np
except ImportError:
    print("skipped: numpy is not installed")
    sys.exit(77)

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "launch"))
from program import AUTOMAP, MODELS

STREAMS = ["steps", "compute", "collectives", "send", "receive"]


def arguments(model, plan="none", steps=5):
    folder = MODELS / model
    return ["run", folder / "model.hlo.pb", "--plan", plan, "--state", folder / "state.npz", "--data",
            folder / "data.npz", "--steps", steps]


def automap(*words, expect=0):
    run = subprocess.run([AUTOMAP, *map(str, words)], capture_output=True, text=True)
    assert run.returncode == expect, f"automap {' '.join(map(str, words))}: {run.returncode}\n{run.stderr}"
    return run


def make_plan(model, path, *options):
    automap("search", MODELS / model / "model.hlo.pb", "--quiet", "-o", path, "--searcher", "baseline", *options)
    return path


def read_lines(path):
    return [json.loads(line) for line in pathlib.Path(path).read_text().splitlines()]


def check_log(directory):
    log = directory / "log.jsonl"
    run = automap(*arguments("gpt2_tiny", steps=6), "--json", "--log", log, "--watch", "output[0]")
    stream = [json.loads(line) for line in run.stdout.splitlines()]
    lines = read_lines(log)
    assert [line["step"] for line in lines] == list(range(6))
    for line, step in zip(lines, stream):
        assert line["loss"] == step["loss"] and line["seconds"] == step["seconds"]
        assert line["output[0]"] == step["output[0]"]
        assert math.isclose(line["examples_per_second"], 16 / line["seconds"])
        assert math.isclose(line["tokens_per_second"], 256 / line["seconds"])
        assert line["memory"]["resident_bytes"] >= line["memory"]["planned_bytes"] > 0
        assert abs(line["time"] - time.time()) < 600
    # A run without --resume begins its log anew.
    automap(*arguments("mlp_tiny", steps=2), "--log", log)
    lines = read_lines(log)
    assert len(lines) == 2 and lines[0]["tokens_per_second"] is None
    assert "cannot be written" in automap(*arguments("mlp_tiny"), "--log", "/nowhere/log", expect=2).stderr


def check_log_while_it_is_written(directory):
    log = directory / "live.jsonl"
    run = subprocess.Popen([AUTOMAP, *map(str, arguments("mlp_tiny", steps=10**7)), "--log", log],
                           stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    deadline = time.time() + 60
    while not (log.exists() and log.read_bytes().count(b"\n") >= 3):
        assert time.time() < deadline and run.poll() is None
        time.sleep(0.01)
    run.send_signal(2)
    assert run.wait() == 130, run.stderr.read()
    lines = read_lines(log)
    assert [line["step"] for line in lines] == list(range(len(lines)))
    run.stderr.close()


def check_log_of_a_resumed_run(directory):
    """The run that resumes logs the steps after the checkpoint again, and an incomplete line is removed."""
    log, words = directory / "resumed.jsonl", ["--checkpoint", directory / "checkpoints", "--every", 2]
    whole = automap(*arguments("gpt2_tiny", steps=9), "--json").stdout.splitlines()[:9]
    automap(*arguments("gpt2_tiny", steps=4), *words, "--log", log)
    with log.open("a") as file:
        file.write('{"step":4,"loss":9}\n{"step":5,"loss":9}\n{"step":6,"lo')
    automap(*arguments("gpt2_tiny", steps=9), *words, "--resume", "--log", log)
    lines = read_lines(log)
    assert [line["step"] for line in lines] == list(range(9))
    assert [line["loss"] for line in lines] == [json.loads(line)["loss"] for line in whole]


def check_events(directory):
    folder = directory / "board" / "run"
    run = automap(*arguments("gpt2_tiny", steps=4), "--json", "--tensorboard", folder)
    losses = [json.loads(line)["loss"] for line in run.stdout.splitlines()[:4]]
    assert len(list(folder.glob("events.out.tfevents.*"))) == 1
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError:
        print("TensorBoard is not installed: its reader was not asked")
        return
    reader = EventAccumulator(str(folder))
    reader.Reload()
    assert sorted(reader.Tags()["scalars"]) == ["examples_per_second", "loss", "step_seconds", "tokens_per_second"]
    events = reader.Scalars("loss")
    assert [event.step for event in events] == [0, 1, 2, 3]
    assert all(math.isclose(event.value, loss, rel_tol=1e-6) for event, loss in zip(events, losses))
    # A second run of the folder begins at step 0 again: the later steps of the first run are removed.
    time.sleep(1.1)
    automap(*arguments("gpt2_tiny", steps=2), "--tensorboard", folder)
    reader = EventAccumulator(str(folder))
    reader.Reload()
    assert [event.step for event in reader.Scalars("loss")] == [0, 1]


def nanoseconds(value):
    return round(value * 1000)


def check_nesting(events):
    """Checks that slices of one stream are nested or disjoint."""
    streams = {}
    for event in events:
        if event["ph"] == "X":
            start = nanoseconds(event["ts"])
            assert start >= 0 and event["dur"] >= 0
            streams.setdefault((event["pid"], event["tid"]),
                               []).append((start, -nanoseconds(event["dur"]), event["name"]))
    for key, slices in streams.items():
        stack = []
        for start, less_duration, name in sorted(slices):
            end = start - less_duration
            while stack and stack[-1] <= start:
                stack.pop()
            assert not stack or end <= stack[-1], f"{key}: {name} at {start} overlaps what it does not lie in"
            stack.append(end)
    return streams


def read_trace(path):
    """Events and names of devices and streams, without the arrows of transfers and the counters (test_simulate.py)."""
    events = [event for event in json.loads(path.read_text())["traceEvents"] if event["ph"] not in "sfC"]
    for event in events:
        assert event["ph"] in ("X", "M") and isinstance(event["pid"], int)
    names = {(event["pid"], event.get("tid")): event["args"]["name"] for event in events
             if event["name"] in ("process_name", "thread_name")}
    for (device, thread), name in names.items():
        if thread is None:
            assert re.match(rf"rank {device}( \(.+\))?$", name)
        else:
            lane, stream = divmod(thread, len(STREAMS))
            assert name == STREAMS[stream] + (f" {lane + 1}" if lane else "")
    return events, names


def check_notes(directory, plan, model):
    """Every slice has its stage. In a run each micro-batch has the operators that it has in the simulation, those in
    inner loops too."""
    counts = []
    measured, predicted = directory / "trace.json", directory / "predicted.json"
    automap(*arguments(model, plan, 2), "--trace", measured, "--trace-steps", 1)
    automap("simulate", plan, MODELS / model / "model.hlo.pb", "--trace", predicted)
    stages = [stage["devices"] for stage in json.loads(plan.read_text())["stages"]]
    stage_of = [number for number, devices in enumerate(stages) for _ in devices]
    for path in measured, predicted:
        events = [event for event in read_trace(path)[0] if event["ph"] == "X"]
        assert all(event["args"]["stage"] == stage_of[event["pid"]] for event in events), path
        operators = [(event["pid"], event["args"].get("micro_batch"), event["name"], event["args"]["instruction"])
                     for event in events
                     if event["tid"] < 3 and event["args"].get("instruction")]
        counts.append({key for key in operators if key[1] is not None})
    # The simulation also prices the conditions of loops, which a run with known trips omits.
    rest = {key for key in counts[0] ^ counts[1] if key in counts[0] or not key[2].startswith("compare")}
    assert not rest and {key[1] for key in counts[0]} == {0, 1, 2, 3}, sorted(rest)[:5]


def check_memory(path, report):
    """In every rank's trace of a run the memory reaches the allocation, beside the slots of transfers."""
    counters = [event for event in json.loads(path.read_text())["traceEvents"] if event["ph"] == "C"]
    slots = [{event["args"]["transfers"] for event in counters if event["pid"] == rank}
             for rank in range(len(report["measured"]["devices"]))]
    assert all(len(own) == 1 for own in slots) and sum(map(max, slots)) == report["memory"]["channel_bytes"] > 0, slots
    for rank, device in enumerate(report["measured"]["devices"]):
        totals = [sum(event["args"].values()) - max(slots[rank]) for event in counters if event["pid"] == rank]
        assert len(totals) > 10 and max(totals) == device["peak_bytes"], (rank, max(totals), device)


def check_trace(directory):
    """Data parallel on four ranks, a loop, and a pipeline with micro-batches."""
    trace = directory / "trace.json"
    plan = make_plan("mlp_tiny", directory / "plan.json", "--cluster", "nominal:4", "--baseline", "data_parallel")
    automap(*arguments("mlp_tiny", plan, 8), "--trace", trace, "--trace-steps", 2)
    events, names = read_trace(trace)
    streams = check_nesting(events)
    assert {key for key in streams} == {(rank, stream) for rank in range(4) for stream in range(3)}
    assert {device for device, stream in names if stream is None} == {0, 1, 2, 3}
    dots = [event for event in events if event["name"] == "dot" and event["pid"] == 1]
    assert dots and all(re.match(r".+\.py:\d+$", event["args"]["source"]) for event in dots)
    assert {event["cat"] for event in dots} == {"forward", "backward"}
    assert any(event["args"]["op_name"].endswith("dot_general") for event in dots)
    sums = [event for event in events if event["name"] == "all_reduce"]
    assert sums and all(event["args"]["ranks"] == 4 and event["args"]["bytes"] > 0 for event in sums)
    steps = [event["args"]["number"] for event in events if event["ph"] == "X" and event["tid"] == 0]
    assert sorted(steps) == [6] * 4 + [7] * 4

    automap(*arguments("lstm_tiny", steps=2), "--trace", trace, "--trace-steps", 1)
    events, _ = read_trace(trace)
    check_nesting(events)
    loops = [event for event in events if event["name"] == "while"]
    turns = [event for event in events if event["name"].startswith("iteration ")]
    assert len(loops) == 2 and len(turns) == 24 and {turn["args"]["number"] for turn in turns} == set(range(12))

    plan = make_plan("mlp_tiny", directory / "plan.json", "--cluster", "nominal:2", "--space", "pipeline", "--mesh",
                     "data=1",
                     "--baseline", "even_pipeline", "--micro-batches", 4)
    report = json.loads(automap(*arguments("mlp_tiny", plan, 5), "--trace", trace, "--json").stdout.splitlines()[-1])
    events, names = read_trace(trace)
    check_nesting(events)
    check_memory(trace, report)
    assert {"send", "receive"} <= set(names.values())
    check_notes(directory, plan, "mlp_tiny")
    check_notes(directory, make_plan("lstm_tiny", directory / "loop.json", "--cluster", "nominal:2", "--space",
                                     "pipeline", "--mesh",
                                     "data=1", "--baseline", "even_pipeline", "--micro-batches", 4), "lstm_tiny")
    assert "cannot be written" in automap(*arguments("mlp_tiny"), "--trace", "/nowhere/t.json", expect=2).stderr


def check_predicted_trace(directory):
    """simulate --trace has the same form: devices, streams and words, and ends with the step."""
    trace, path = directory / "trace.json", directory / "plan.json"
    for model, *options in [
            ("mlp_tiny", "--cluster", "nominal:4", "--baseline", "data_parallel"),
        ("gpt2_tiny", "--cluster", "nominal:8", "--baseline", "zero3"),
            ("gpt2_tiny", "--cluster", "nominal:8", "--mesh", "data=2", "--space", "pipeline", "--baseline",
             "even_pipeline",
             "--micro-batches", 8)]:
        plan = make_plan(model, path, *options)
        simulation = json.loads(automap("simulate", plan, MODELS / model / "model.hlo.pb", "--trace", trace,
                                        "--json").stdout)
        events, names = read_trace(trace)
        check_nesting(events)
        assert {device for device, thread in names if thread is None} == set(range(len(simulation["devices"])))
        slices = [event for event in events if event["ph"] == "X"]
        end = max(event["ts"] + event["dur"] for event in slices)
        assert math.isclose(end, simulation["step_seconds"] * 1e6, abs_tol=0.002)
        for rank, device in enumerate(simulation["devices"]):
            computed = sum(event["dur"] for event in slices if event["pid"] == rank and event["tid"] == 1)
            assert math.isclose(computed, device["compute_seconds"] * 1e6, rel_tol=1e-3)
    assert any(name.startswith("receive") for name in names.values())
    automap(*arguments("gpt2_tiny", plan, 2), "--trace", trace)
    check_nesting(read_trace(trace)[0])


def run_on_terminal(words):
    """Returns the output of a run to a terminal as stderr, and to stdout."""
    ours, theirs = pty.openpty()
    run = subprocess.Popen([AUTOMAP, *map(str, words)], stdout=subprocess.PIPE, stderr=theirs)
    os.close(theirs)
    out, screen, open_files = b"", b"", {ours, run.stdout.fileno()}
    while open_files:
        for file in select.select(open_files, [], [], 60)[0]:
            try:
                data = os.read(file, 65536)
            except OSError:  # the terminal's other end is closed
                data = b""
            if not data:
                open_files.remove(file)
            elif file == ours:
                screen += data
            else:
                out += data
    os.close(ours)
    run.stdout.close()
    assert run.wait() == 0
    return out.decode(), screen.decode()


def check_progress():
    started = time.time()
    out, screen = run_on_terminal([*arguments("gpt2_tiny", steps=300)])
    seconds = time.time() - started
    assert len(re.findall(r"^step +\d+ ", out, re.M)) == 300 and "\r" not in out
    drawn = re.findall(r"\rstep (\d+) of 300   loss [\d.]+   [\d.]+ ?[kM]? tokens/s   \d+ s left\x1b\[K", screen)
    assert drawn and int(drawn[0]) == 1, screen[:200]
    assert len(drawn) <= 10 * seconds + 2, f"{len(drawn)} drawings in {seconds} s"
    assert screen.endswith("\r\x1b[K"), "the line is left on the screen"
    assert run_on_terminal([*arguments("gpt2_tiny", steps=3), "--quiet"])[1] == ""
    assert automap(*arguments("gpt2_tiny", steps=3)).stderr == "", "progress without a terminal"


def check_report(directory):
    plan = make_plan("mlp_tiny", directory / "plan.json", "--cluster", "nominal:4", "--baseline", "zero3")
    lines = automap(*arguments("mlp_tiny", plan, 30), "--json").stdout.splitlines()
    report = json.loads(lines[-1])
    predicted = json.loads(plan.read_text())["predicted"]
    assert len(lines) == 31 and report["steps"] == 30 and report["not_finite_steps"] == 0
    assert report["predicted"]["step_seconds"] == predicted["step_seconds"]
    assert math.isclose(report["ratio"]["step_seconds"],
                        report["measured"]["step_seconds"] / predicted["step_seconds"], rel_tol=1e-9)
    for device in range(4):
        assert report["measured"]["devices"][device]["peak_bytes"] == predicted["devices"][device]["peak_bytes"]
        assert report["ratio"]["devices"][device]["peak_bytes"] == 1
    memory = report["memory"]
    assert memory["peak_resident_bytes"] > 0.9 * memory["resident_bytes"] > 0
    assert memory["resident_bytes"] <= memory["resident_bytes_early"] + (1 << 20)
    text = automap(*arguments("mlp_tiny", plan, 3)).stdout
    assert re.search(r"measured +predicted +ratio\n", text) and re.search(r"\npeak of device 3 .* 1\n", text)
    report = json.loads(automap(*arguments("mlp_tiny", steps=2), "--json").stdout.splitlines()[-1])
    assert report["predicted"] is None and report["ratio"] is None


def check_edited(directory):
    """The report predicts the present decisions of a plan changed by hand, not the figures in the file."""
    plan = make_plan("mlp_tiny", directory / "plan.json", "--cluster", "nominal:4", "--baseline", "zero3")
    root = json.loads(plan.read_text())
    lists = root["stages"][0]["axis_priorities"]
    lists["data"] = [entry for entry in lists["data"] if entry["kind"] == "compute"]
    for derived in ("parameters", "decisions"):
        root.pop(derived)
    plan.write_text(json.dumps(root))
    report = json.loads(automap(*arguments("mlp_tiny", plan, 3), "--json").stdout.splitlines()[-1])
    peaks = [device["peak_bytes"] for device in report["measured"]["devices"]]
    assert peaks == [device["peak_bytes"] for device in report["predicted"]["devices"]], report
    assert peaks[0] != root["predicted"]["devices"][0]["peak_bytes"], "the change changes nothing"
    simulated = json.loads(automap("simulate", plan, MODELS / "mlp_tiny" / "model.hlo.pb", "--json").stdout)
    assert report["predicted"]["step_seconds"] == simulated["step_seconds"] != root["predicted"]["step_seconds"]


def check_not_a_number(directory):
    data = dict(np.load(MODELS / "mlp_tiny" / "data.npz"))
    data["x"] = data["x"].copy()
    data["x"][3, 5, 5] = np.nan
    np.savez(directory / "data.npz", **data)
    saved, log = directory / "saved.npz", directory / "nan.jsonl"
    plans = ["none", make_plan("mlp_tiny", directory / "four.json", "--cluster", "nominal:4", "--baseline",
                               "data_parallel"),
             make_plan("mlp_tiny", directory / "two.json", "--cluster", "nominal:2", "--space", "pipeline", "--mesh",
                       "data=1",
                       "--baseline", "even_pipeline")]
    for number, plan in enumerate(plans):
        words = [*arguments("mlp_tiny", plan, 6), "--save", saved, "--log", log]
        words[words.index("--data") + 1] = directory / "data.npz"
        run = automap(*words, "--json", expect=5)
        message = json.loads(run.stderr.splitlines()[-1])["error"]["message"]
        assert message.startswith("the loss of step 3 is not a number") and not saved.exists()
        assert [json.loads(line)["loss"] is None for line in run.stdout.splitlines()] == [False] * 3 + [True]
        assert read_lines(log)[-1]["loss"] is None
        run = automap(*words, "--on-nan", "warn")
        assert run.stderr == "automap: warning: the loss of step 3 is not a number\n"
        assert "the loss was not finite in 3 of 6 steps, first in step 3" in run.stdout and saved.exists()
        saved.unlink()
        checkpoints = directory / f"checkpoints_{number}"
        automap(*words, "--checkpoint", checkpoints, "--every", 1, expect=5)
        run = automap(*words, "--checkpoint", checkpoints, "--resume", "--json", expect=5)
        assert json.loads(run.stdout.splitlines()[0])["step"] == 3, "the state after the step that failed was saved"
    assert "stop, warn" in automap(*arguments("mlp_tiny"), "--on-nan", "ignore", expect=2).stderr


def check_processes(directory):
    """Two processes under mpirun: one log and one trace of all four ranks; both end after the loss that is not a
    number."""
    if not shutil.which("mpirun") or "MPI" not in automap("--version").stdout:
        print("there is no MPI: several processes were not watched")
        return
    environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                       OMPI_MCA_rmaps_base_oversubscribe="1", OMPI_MCA_plm_rsh_agent="false", TMPDIR=str(directory),
                       OMPI_MCA_btl_vader_single_copy_mechanism="none")
    trace, log, saved = directory / "trace.json", directory / "log.jsonl", directory / "saved.npz"
    plan = make_plan("mlp_tiny", directory / "plan.json", "--cluster", "nominal:4", "--baseline", "data_parallel")

    def run(words):
        return subprocess.run(["mpirun", "-n", "2", AUTOMAP, *map(str, words)], capture_output=True, text=True,
                              env=environment, timeout=60)

    words = arguments("mlp_tiny", plan, 5)
    done = run([*words, "--trace", trace, "--log", log])
    assert done.returncode == 0, done.stderr
    assert [line["step"] for line in read_lines(log)] == list(range(5))
    events, _ = read_trace(trace)
    assert set(check_nesting(events)) == {(rank, stream) for rank in range(4) for stream in range(3)}
    words[words.index("--data") + 1] = directory / "data.npz"
    done = run([*words, "--save", saved])
    assert done.returncode == 5 and "the loss of step 3 is not a number" in done.stderr, done.stderr
    assert done.stdout.count("step ") == 4 and not saved.exists()


def main():
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        check_log(directory)
        check_log_while_it_is_written(directory)
        check_log_of_a_resumed_run(directory)
        check_events(directory)
        check_trace(directory)
        check_predicted_trace(directory)
        check_progress()
        check_report(directory)
        check_edited(directory)
        check_not_a_number(directory)
        check_processes(directory)
    print("log, events, trace, progress, report and losses that are not finite: as they should be")


if __name__ == "__main__":
    main()
