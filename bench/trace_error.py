"""Error of a simulated timeline beside that of a run, for each device and each stage (DistSim, section 6).

Both traces have the same operators under the same names. Operator k of a device begins at a fraction of the step in each of
them. The error of a device is the mean difference of these fractions, over all steps of the run's trace; the error of a stage
that of its devices. So the error does not depend on the speed of the machine, whose ratio is printed as well.

    automap simulate PLAN MODEL --trace predicted.json
    automap run MODEL --plan PLAN --steps 8 --trace measured.json
    python3 bench/trace_error.py predicted.json measured.json
"""

import argparse
import collections
import json


def read(path):
    with open(path) as file:
        events = json.load(file)["traceEvents"]
    events = [event for event in events if event["ph"] == "X"]
    return sorted(events, key=lambda event: (event["ts"], -event["dur"]))


def steps_of(events):
    """{device: [(begin, seconds)]} in microseconds."""
    steps = collections.defaultdict(list)
    for event in events:
        if event["name"].startswith("step"):
            steps[event["pid"]].append((event["ts"], event["dur"]))
    return steps


def operators_of(events, device, begin, length):
    """{(instruction, how often it ran before): (fraction of the step at which it begins, seconds)} of one step."""
    seen, found = collections.Counter(), {}
    for event in events:
        instruction = event.get("args", {}).get("instruction")
        if event["pid"] != device or not instruction or not begin <= event["ts"] < begin + length:
            continue
        key = event["name"], instruction
        found[(*key, seen[key])] = (event["ts"] - begin) / length, event["dur"]
        seen[key] += 1
    return found


def compare(predicted, measured):
    """Rows (device, stage, operators, error of the beginnings, busy seconds predicted and measured, their step)."""
    stages = {event["pid"]: event["args"]["stage"] for event in predicted if "stage" in event.get("args", {})}
    own_steps, steps, rows = steps_of(predicted), steps_of(measured), []
    for device in sorted(own_steps):
        begin, length = own_steps[device][0]
        own = operators_of(predicted, device, begin, length)
        errors, busy = [], []
        for other_begin, other_length in steps[device]:
            other = operators_of(measured, device, other_begin, other_length)
            both = own.keys() & other.keys()
            errors += [abs(own[key][0] - other[key][0]) for key in both]
            busy.append((sum(own[key][1] for key in both), sum(other[key][1] for key in both), other_length))
        if not errors:
            raise SystemExit(f"device {device}: the traces have no operator in common")
        count = len(busy)
        rows.append({"device": device, "stage": stages.get(device, 0), "operators": len(errors) // count,
                     "error": sum(errors) / len(errors), "busy_ratio": sum(b[1] for b in busy) / sum(b[0] for b in busy),
                     "step_ratio": sum(b[2] for b in busy) / count / length})
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("predicted", help="of simulate --trace")
    parser.add_argument("measured", help="of run --trace")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = compare(read(arguments.predicted), read(arguments.measured))
    by_stage = collections.defaultdict(list)
    for row in rows:
        by_stage[row["stage"]].append(row["error"])
    stages = [{"stage": stage, "devices": len(errors), "error": sum(errors) / len(errors)} for stage, errors in sorted(by_stage.items())]
    if arguments.json:
        print(json.dumps({"devices": rows, "stages": stages}))
        return
    print("device  stage  operators  error of the beginnings  measured over predicted: operators  step")
    for row in rows:
        print(f"{row['device']:6}  {row['stage']:5}  {row['operators']:9}  {100 * row['error']:20.2f} %  "
              f"{row['busy_ratio']:33.2f}  {row['step_ratio']:4.2f}")
    for row in stages:
        print(f"stage {row['stage']}: {100 * row['error']:.2f} % on {row['devices']} devices")


if __name__ == "__main__":
    main()
