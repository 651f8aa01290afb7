"""Gaps of searched plans: how far the best plan can be from the one found.

    python3 bench/gaps.py [--space auto|hybrid|single_stage] [--write bench/README.md] [MODEL CLUSTER ...]

Columns: the plan's step, the bound that is proved for every plan of the space, gap, model gap (docs/planning.md), plans
priced, seconds of import and search, peak memory. Run in the source folder, on an idle machine for the times. --write
replaces the table of the space in the document; it leaves out times and memory.
"""

import argparse
import json
import os
import resource
import subprocess

import marked_section
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


def searched(model, cluster, options):
    command = [AUTOMAP, "search", model_file(model), "--cluster", cluster, "--space", options.space]
    command += ["--attention", options.attention, "-o", os.devnull, "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    out, err = process.communicate()
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    if process.returncode != 0:
        return None, json.loads(err.strip().splitlines()[-1])["error"]["message"], peak
    return json.loads(out), None, peak


def percent(value):
    return "-" if value is None else f"{100 * value:.1f} %"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--space", default="auto")
    parser.add_argument("--attention", default="unfused")
    parser.add_argument("--write", help="document whose marked section gets the table")
    parser.add_argument("cases", nargs="*", metavar="MODEL CLUSTER")
    arguments = parser.parse_args()
    if len(arguments.cases) % 2:
        parser.error("models and clusters come in pairs")
    cases = list(zip(arguments.cases[::2], arguments.cases[1::2])) or CASES
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
