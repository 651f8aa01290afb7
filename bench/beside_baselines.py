"""Hybrid plans beside the best baseline, model by model and cluster by cluster.

Run as `AUTOMAP=build/automap python3 bench/beside_baselines.py [--model NAME] [--cluster NAME]`. --write
bench/README.md replaces the table of the document, where all models and clusters ran. A line for each, separated
by tabs: name, ours, limit, ok or no; then the meaning of the limit. Ours may not be slower than the best of all
baselines, those of one stage and the pipelines with any number of micro-batches; and T5-11B on C is to be found in 5 s,
import included.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import time

import marked_section

SOURCE = pathlib.Path(__file__).resolve().parents[1]
AUTOMAP = os.environ.get("AUTOMAP", str(SOURCE / "build" / "automap"))
MODELS = ["gpt2", "bert48", "vgg19", "resnet50_batch16", "moe_tiny", "t5_paper_24_11b"]
CLUSTERS = ["A", "B", "C", "whale-dp", "whale-pp"]
SINGLE = ["data_parallel", "megatron", "megatron_sequence", "zero1", "zero2", "zero3", "hsdp", "hsdp_zero2",
          "megatron_zero1", "megatron_zero2", "megatron_zero3", "context_zero3"]
PIPELINES = ["even_pipeline", "megatron_3d"]
LIMIT_SECONDS = {("t5_paper_24_11b", "C"): 5.0}


def search(path, cluster, *options):
    """Returns the output of `search --json`, and the seconds of the process; None: no plan."""
    command = [AUTOMAP, "search", path, "--cluster", cluster, "-o", os.devnull, "--json", *options]
    start = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True)
    seconds = time.monotonic() - start
    if done.returncode == 4:
        return None, seconds
    if done.returncode:
        sys.exit(" ".join(map(str, command)) + "\n" + done.stderr)
    return json.loads(done.stdout), seconds


def best_baseline(path, cluster):
    """Name and step seconds of the best baseline; (None, inf) where none fits."""
    plans = {}
    for name in SINGLE:
        found, _ = search(path, cluster, "--baseline", name)
        if found:
            plans[name] = found["step_seconds"]
    for name in PIPELINES:
        found, _ = search(path, cluster, "--space", "pipeline", "--baseline", name, "--micro-batches", "auto")
        if found:
            plans[name] = found["step_seconds"]
    name = min(plans, key=plans.get, default=None)
    return name, plans.get(name, float("inf"))


def row(name, ours, limit, unit, holds, remark):
    print(f"{name}\t{ours:.4g} {unit}\t{limit:.4g} {unit}\t{'ok' if holds else 'no'}\t{remark}", flush=True)


def compare(model, cluster):
    """Prints the lines of a model on a cluster. The row of the document; None: no plan."""
    folder = SOURCE / "datasets" / "models" / model
    path = next(p for p in sorted(folder.glob("model.hlo.pb*")))
    found, seconds = search(path, cluster, "--space", "hybrid")
    baseline, limit = best_baseline(path, cluster)
    name = f"hybrid {model} {cluster}"
    if not found:
        print(f"{name}\tout of memory\t{limit:.4g} s\t{'ok' if baseline is None else 'no'}\t{baseline}", flush=True)
        return None
    ours = found["step_seconds"]
    remark = "no baseline fits" if baseline is None else f"{baseline}, {limit / ours:.2f}x; found in {seconds:.2f} s"
    row(name, ours, limit, "s", ours <= limit, remark)
    allowed = LIMIT_SECONDS.get((model, cluster))
    if allowed:
        row(f"{name}, search and import", seconds, allowed, "s", seconds <= allowed, "seconds of the process")
    if baseline is None:
        return f"| {model} | {cluster} | {ours:.4g} | none fits | |"
    return f"| {model} | {cluster} | {ours:.4g} | {limit:.4g} {baseline} | {limit / ours:.2f} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", action="append", help="default: all")
    parser.add_argument("--cluster", action="append", help="default: all")
    parser.add_argument("--write", help="document whose marked section gets the table")
    arguments = parser.parse_args()
    rows = ["| model | cluster | hybrid | best baseline | gain |", "|---|---|---|---|---|"]
    for model in arguments.model or MODELS:
        for cluster in arguments.cluster or CLUSTERS:
            rows.append(compare(model, cluster))
    if arguments.write:
        text = "\n".join(row for row in rows if row) + "\n"
        marked_section.write(arguments.write, "bench/beside_baselines.py", text)


if __name__ == "__main__":
    main()
