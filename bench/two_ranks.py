"""Two ranks on two processors beside two independent copies on one processor each.

    together     `run` of a baseline for nominal:2: two ranks, one thread each
    copies       two processes at the same time, `run --plan none --threads 1`, each kept to one processor

Both work through batches of the same size. Two copies do two batches in a step, the two ranks one, so
the efficiency is half the time of a copy's step over the time of the ranks' step: 1 when dividing costs
nothing. What it costs:

    collectives  their number in a step and the bytes of their results, and what they take by
                 bench_comm's figures (build it first): the limit is the efficiency if nothing else were lost
    the rest     what both ranks do: under data_parallel the update of all weights, under zero1 half of
                 them each; operators whose time does not halve with their batch

A figure is the median over the steps after the warm-up; ranks and copies are taken in turn, --rounds times,
and the least of each is kept, so that a passing load meets both alike. As many steps are done as
take --seconds, 4 to 60. Models without a state of their own take random values.

Run as `AUTOMAP=build/automap python bench/two_ranks.py [--large] [MODEL[:BASELINE] ...]`; a model is a folder of
datasets/models or bench/models, BASELINE one of `search --baseline` (data_parallel). On an idle
machine of two processors the default takes three minutes, --large (GPT-2 124M) three more.
"""

import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import tempfile

SOURCE = pathlib.Path(__file__).resolve().parents[1]
FOLDERS = [SOURCE / "datasets" / "models", SOURCE / "bench" / "models"]
AUTOMAP = os.environ.get("AUTOMAP", str(SOURCE / "build" / "automap"))
NAMES = ["gpt2_small", "gpt2_small:zero1", "vgg_small", "gpt2_tiny", "vgg_tiny", "bert_tiny", "t5_tiny", "resnet_tiny"]
LARGE = ["gpt2_batch1:megatron"]
COLLECTIVES = r"(all_reduce|all_gather|reduce_scatter|all_to_all|halo_exchange)\("
LEAST_STEPS, MOST_STEPS = 4, 60


def module_of(model):
    return next(path for folder in FOLDERS for path in (folder / model).glob("model.hlo.pb*"))


def start(model, plan, steps, processors):
    """The run as a process; one thread for each rank."""
    module = module_of(model)
    arguments = [AUTOMAP, "run", module, "--plan", plan, "--threads", 1, "--steps", steps, "--json"]
    small = (module.parent / "state.npz").exists()
    arguments += ["--state", module.parent / "state.npz", "--data",
                  module.parent / "data.npz"] if small else ["--state", "random"]
    return subprocess.Popen([*map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                            preexec_fn=lambda: os.sched_setaffinity(0, processors))


def step_seconds(process, warm_up):
    output = process.communicate()[0]
    if process.returncode != 0:
        raise SystemExit(f"automap ended with exit code {process.returncode}")
    rows = [json.loads(line) for line in output.splitlines()]
    return statistics.median([row["seconds"] for row in rows if "step" in row][warm_up:])


def measure(model, plan, rounds, seconds):
    """Seconds of the ranks' step and of a copy's."""
    first, second = sorted(os.sched_getaffinity(0))[:2]
    estimate = step_seconds(start(model, "none", 3, {first}), 1)
    steps = max(LEAST_STEPS, min(MOST_STEPS, int(seconds / estimate)))
    warm_up = max(1, steps // 6)
    together, copies = [], []
    for _ in range(rounds):
        together.append(step_seconds(start(model, plan, steps, {first, second}), warm_up))
        pair = [start(model, "none", steps, {processor}) for processor in (first, second)]
        copies.append(max([step_seconds(process, warm_up) for process in pair]))
    return min(together), min(copies)


def collectives_of(model, plan):
    """Bytes of the results of each collective of a step, from the text of the local program."""
    text = subprocess.run([AUTOMAP, "lower", str(module_of(model)), "--plan", plan, "--quiet"], check=True,
                          capture_output=True, text=True).stdout
    sizes = []
    for line in text.splitlines():
        found = re.match(r"\s*[%\d, ]+ = (.*?) " + COLLECTIVES, line)
        if not found:
            continue
        total = 0
        for kind, dimensions in re.findall(r"(\w+)\[([\d,]*)\]", found[1]):
            elements = 1
            for size in filter(None, dimensions.split(",")):
                elements *= int(size)
            total += elements * max(1, int(re.sub(r"\D", "", kind) or 8) // 8)
        sizes.append(total)
    return sizes


def collective_seconds():
    """[(bytes, seconds)] of all_reduces by bench_comm; empty where it is not built."""
    program = pathlib.Path(AUTOMAP).parent / "bench_comm"
    if not program.exists():
        return []
    rows = [line.split() for line in subprocess.run([program], check=True, capture_output=True,
                                                    text=True).stdout.splitlines()]
    return [(int(row[0]), 1e-6 * float(row[1])) for row in rows if row[0].isdigit() and len(row) == 4]


def price(table, size):
    """Takes the smallest measured size that is not smaller; beyond the largest, in proportion."""
    for measured, seconds in table:
        if measured >= size:
            return seconds
    return table[-1][1] * size / table[-1][0]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL[:BASELINE]", help=f"default {' '.join(NAMES)}")
    parser.add_argument("--large", action="store_true", help=f"also {' '.join(LARGE)}")
    parser.add_argument("--rounds", type=int, default=3, help="default 3")
    parser.add_argument("--seconds", type=float, default=3, help="of one run, more or less (default 3)")
    options = parser.parse_args()
    if len(os.sched_getaffinity(0)) < 2:
        raise SystemExit("two processors are needed")
    table = collective_seconds()
    print("ms per step, the least of the rounds' medians; collectives of a step")
    print(f"{'model':28}{'two ranks':>11}{'a copy':>10}{'efficiency':>12}{'collectives':>13}"
          f"{'MB':>8}{'ms':>9}{'limit':>7}")
    for name in (options.models or NAMES) + (LARGE if options.large else []):
        model, _, baseline = name.partition(":")
        with tempfile.TemporaryDirectory() as folder:
            plan = str(pathlib.Path(folder) / "plan.json")
            subprocess.run([AUTOMAP, "search", str(module_of(model)), "--cluster", "nominal:2", "--searcher",
                            "baseline",
                            "--baseline", baseline or "data_parallel", "-o", plan, "--quiet"], check=True,
                           stdout=subprocess.DEVNULL)
            sizes = collectives_of(model, plan)
            ranks, copy = measure(model, plan, options.rounds, options.seconds)
        row = (f"{name:28}{1e3 * ranks:11.3f}{1e3 * copy:10.3f}{copy / ranks / 2:12.2f}{len(sizes):13}"
               f"{sum(sizes) / 1e6:8.2f}")
        if table:
            taken = sum(price(table, size) for size in sizes)
            row += f"{1e3 * taken:9.3f}{copy / 2 / (copy / 2 + taken):7.2f}"
        print(row, flush=True)


if __name__ == "__main__":
    main()
