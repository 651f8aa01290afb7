"""Gaps of searched plans: how far the best plan can be from the one found.

    python3 bench/gaps.py [--space auto|hybrid|single_stage] [--write bench/README.md] [MODEL CLUSTER ...]
    python3 bench/gaps.py --mixed [--write bench/README.md] [MODEL SERVERS ...]

SERVERS are those of bench/device_orders.py, as V100:2,P100:2. Columns: the plan's step, the bound that is proved for
every plan of the space, gap, model gap (docs/planning.md), plans priced, seconds of import and search, peak memory.
With --mixed, shares of the step, in the mean over all devices of the cluster, follow the gap: computing, communication
that no computing hides, waiting (filling, draining, unequal stages), and devices that the plan leaves out. Run in the
source folder, on an idle machine for the times. --write replaces the table of the space in the document; it leaves out
times and memory.
"""

import argparse
import json
import os
import resource
import subprocess
import tempfile

import marked_section
from device_orders import write_cluster
from model_files import model_file

AUTOMAP = os.environ.get("AUTOMAP", "build/automap")
CASES = [
    ("mlp", "C"),
    ("vgg19", "C"),
    ("gpt2", "C"),
    ("bert48", "C"),
    ("t5_paper_6", "C"),
    ("resnet50_batch16", "C"),
    ("moe_tiny", "C"),
    ("t5_paper_24_11b", "C"),
    ("llama3_8b", "h100:4"),
]
MIXED = [(model, servers) for servers in ("V100:2,P100:2", "V100:4,P100:4", "A100:2,V100:2,T4:2")
         for model in ("vgg19", "gpt2", "t5_paper_6", "resnet50_batch16")]


def searched(model, cluster, options, plan=os.devnull):
    command = [AUTOMAP, "search", model_file(model), "--cluster", cluster, "--space", options.space]
    command += ["--attention", options.attention, "-o", plan, "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    out, err = process.communicate()
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    if process.returncode != 0:
        return None, json.loads(err.strip().splitlines()[-1])["error"]["message"], peak
    return json.loads(out), None, peak


def percent(value):
    return "-" if value is None else f"{100 * value:.1f} %"


def shares(plan, step_seconds, device_count):
    """Shares of a step in the mean over the cluster's devices: computing, visible communication, waiting, unused."""
    devices = plan["predicted"]["devices"]
    computing = sum(one["compute_seconds"] for one in devices) / step_seconds / device_count
    waiting = sum(one["idle_seconds"] for one in devices) / step_seconds / device_count
    used = len(devices) / device_count
    return computing, used - computing - waiting, waiting, 1 - used


def list_mixed(cases, options):
    """Rows of models on mixed servers."""
    rows = ["| model | servers | step | bound | gap | computing | communication | waiting | left out |",
            "|---|---|---|---|---|---|---|---|---|"]
    with tempfile.TemporaryDirectory() as folder:
        plan = os.path.join(folder, "plan.json")
        for model, text in cases:
            servers = [(name, int(count)) for name, count in (one.split(":") for one in text.split(","))]
            cluster = write_cluster(os.path.join(folder, "mixed.json"), servers)
            result, refusal, _ = searched(model, cluster, options, plan)
            if refusal:
                raise SystemExit(f"{model} on {text}: {refusal}")
            with open(plan) as file:
                parts = shares(json.load(file), result["step_seconds"], sum(count for _, count in servers))
            row = [model, text, f"{1e3 * result['step_seconds']:.2f} ms", f"{1e3 * result['bound_seconds']:.2f} ms",
                   percent(result["gap"]), *(f"{100 * part:.0f} %" for part in parts)]
            rows.append("| " + " | ".join(row) + " |")
            print(rows[-1], flush=True)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--space", default="auto")
    parser.add_argument("--attention", default="unfused")
    parser.add_argument("--write", help="document whose marked section gets the table")
    parser.add_argument("--mixed", action="store_true", help="mixed servers, with the shares of the step")
    parser.add_argument("cases", nargs="*", metavar="MODEL CLUSTER")
    arguments = parser.parse_args()
    if len(arguments.cases) % 2:
        parser.error("models and clusters come in pairs")
    cases = list(zip(arguments.cases[::2], arguments.cases[1::2])) or (MIXED if arguments.mixed else CASES)
    if arguments.mixed:
        rows = list_mixed(cases, arguments)
        if arguments.write:
            marked_section.write(arguments.write, "bench/gaps.py --mixed", "\n".join(rows) + "\n")
        return
    print("model\tcluster\tstep\tbound\tgap\tmodel gap\tplans\timport + search\tmost MiB so far")
    rows = ["| model | cluster | step | bound | gap | model gap | plans |", "|---|---|---|---|---|---|---|"]
    for model, cluster in cases:
        result, refusal, peak = searched(model, cluster, arguments)
        if refusal:
            print(f"{model}\t{cluster}\t{refusal}")
            continue
        bound = result["bound_seconds"]
        row = [model, cluster, f"{1e3 * result['step_seconds']:.3f} ms",
               "-" if bound is None else f"{1e3 * bound:.3f} ms", percent(result["gap"]), percent(result["model_gap"]),
               str(result["evaluations"])]
        rows.append("| " + " | ".join(row) + " |")
        seconds = result["import_seconds"] + result["search_seconds"]
        print(*row, f"{seconds:.2f} s", f"{peak:.0f}", sep="\t", flush=True)
    if arguments.write:
        marked_section.write(arguments.write, f"bench/gaps.py, {arguments.space}", "\n".join(rows) + "\n")


if __name__ == "__main__":
    main()
