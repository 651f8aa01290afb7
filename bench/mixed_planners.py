"""Plans of published planners for mixed clusters beside the search, all in the same simulator.

The planners are rebuilt by the options of `search`, so that cuts, memory and prices are those of automap:

    equal     data parallelism with equal shares on all devices
    HetPipe   virtual workers of one device of each server (Park et al. 2020): a stage is a server, its devices split
              the batch equally; cuts by the dynamic program. Synchronous, where HetPipe lets workers run ahead
    AMP       the best of uniform degrees (Li et al. 2022): every stage has the same data and tensor degree; cuts by the
              dynamic program, equal shares. The three best rows of `simulate --sweep` are refined so
    Metis     stages of different widths and degrees (Um et al. 2024), cuts by the dynamic program, servers in the order
              of the file, without overrides and without changes by simulation
    Sailor    the best of all data degrees (Strati et al. 2025): every stage has the same one; its tensor degree and its
              type of device are free, within a server. Cuts and the order of the servers by the dynamic program
    search    automap search

    python3 bench/mixed_planners.py [--models vgg19,gpt2] [--planners Sailor,search] [--write bench/README.md]
"""

import argparse
import json
import os
import subprocess
import tempfile

import marked_section
from device_orders import write_cluster
from model_files import model_file

CLUSTERS = ("V100:4,P100:4", "A100:4,V100:4,T4:4")
PLANNERS = ("equal", "HetPipe", "AMP", "Metis", "Sailor", "search")
REFINED = 3  # rows of the sweep


def call(arguments, *words):
    """The JSON of a command, or None where no plan fits or none has these degrees."""
    done = subprocess.run([arguments.automap, *map(str, words), "--json", "--quiet"], capture_output=True, text=True)
    if done.returncode in (3, 4):
        return None
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, words))}: {done.stderr}")
    return json.loads(done.stdout)


def search(arguments, model, cluster, *options):
    found = call(arguments, "search", model, "--cluster", cluster, "-o", os.devnull, *options)
    return found["step_seconds"] if found else float("inf")


def find_amp(arguments, model, cluster):
    rows = call(arguments, "simulate", "--sweep", model, "--cluster", cluster)["strategies"]
    degrees = []
    for row in rows:
        key = row["stages"], row["data"], row["tensor"]
        if row.get("fits") and key not in degrees:
            degrees.append(key)
    best = min((row["step_seconds"] for row in rows if row.get("fits")), default=float("inf"))
    for stages, data, tensor in degrees[:REFINED]:
        space = "hybrid" if stages > 1 else "single_stage"
        best = min(best, search(arguments, model, cluster, "--space", space, "--stages", stages, "--data", data,
                                "--tensor", tensor,
                                "--even", "--no-overrides"))
    return best


def find_sailor(arguments, model, cluster, servers):
    degrees = [2**k for k in range(max(count for _, count in servers).bit_length())]
    return min(search(arguments, model, cluster, "--space", "hybrid", "--data", data, "--even", "--no-overrides",
                      "--no-polish",
                      "--no-seeds") for data in degrees)


def measure(arguments, name, servers):
    model = model_file(name)
    with tempfile.TemporaryDirectory() as folder:
        cluster = write_cluster(os.path.join(folder, "mixed.json"), servers)
        steps = {
            "equal": lambda: search(arguments, model, cluster, "--baseline", "data_parallel", "--even"),
            "HetPipe": lambda: search(arguments, model, cluster, "--space", "hybrid", "--stages", len(servers),
                                      "--data", servers[0][1], "--tensor", 1, "--even", "--no-overrides"),
            "AMP": lambda: find_amp(arguments, model, cluster),
            "Metis": lambda: search(arguments, model, cluster, "--space", "hybrid", "--keep-order", "--no-overrides",
                                    "--no-polish", "--no-seeds"),
            "Sailor": lambda: find_sailor(arguments, model, cluster, servers),
            "search": lambda: search(arguments, model, cluster),
        }
        for planner in arguments.planners.split(","):
            yield steps[planner]()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--automap", default="build/automap")
    parser.add_argument("--models", default="vgg19,resnet50_batch16,gpt2,t5_paper_6")
    parser.add_argument("--clusters", default=";".join(CLUSTERS),
                        help="TYPE:DEVICES of each server; clusters separated by ';'")
    parser.add_argument("--planners", default=",".join(PLANNERS))
    parser.add_argument("--write", help="document whose section gets the table")
    arguments = parser.parse_args()
    planners = arguments.planners.split(",")
    lines = [f"| model | servers | {' | '.join(planners)} |", f"|---|---|{'---|' * len(planners)}"]
    for text in arguments.clusters.split(";"):
        servers = [(name, int(count)) for name, count in (one.split(":") for one in text.split(","))]
        for name in arguments.models.split(","):
            steps = list(measure(arguments, name, servers))
            cells = [f"{1e3 * step:.1f} ms" if step < float("inf") else "none" for step in steps]
            lines.append(f"| {name} | {', '.join(f'{count} {kind}' for kind, count in servers)} | {' | '.join(cells)} "
                         f"|")
            print(lines[-1], flush=True)
    if arguments.write:
        marked_section.write(arguments.write, "bench/mixed_planners.py", "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
