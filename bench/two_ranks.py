"""Two ranks on two processors beside two independent copies on one processor each.

    together     `run` of a data-parallel plan for host:2: two ranks, one thread each
    copies       two processes at the same time, `run --plan none --threads 1`, each kept to one processor

Both work through batches of the same size. Two copies do two batches in a step, the two ranks one, so
the efficiency is half the time of a copy's step over the time of the ranks' step: 1 when dividing costs
nothing, and above 0.9 where the work of a step is large beside its collectives. A figure is the median
over the steps after the warm-up; the two are taken in turn, --rounds times, and the least of each is
kept, so that a passing load meets both alike.

Run as `AUTOMAP=build/automap python bench/two_ranks.py [MODEL ...]`; a model is a folder of
datasets/models. Those without a state of their own take random values.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import tempfile

SOURCE = pathlib.Path(__file__).resolve().parents[1]
MODELS = SOURCE / "datasets" / "models"
AUTOMAP = os.environ.get("AUTOMAP", str(SOURCE / "build" / "automap"))
NAMES = ["gpt2_tiny", "vgg_tiny", "bert_tiny"]


def module_of(model):
    return next((MODELS / model).glob("model.hlo.pb*"))


def start(model, plan, steps, processors):
    """The run as a process; one thread for each rank."""
    at = MODELS / model
    arguments = [AUTOMAP, "run", module_of(model), "--plan", plan, "--threads", 1, "--steps", steps, "--json"]
    small = (at / "state.npz").exists()
    arguments += ["--state", at / "state.npz", "--data", at / "data.npz"] if small else ["--state", "random"]
    return subprocess.Popen([*map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                            preexec_fn=lambda: os.sched_setaffinity(0, processors))


def step_seconds(process, warm_up):
    output = process.communicate()[0]
    if process.returncode != 0:
        raise SystemExit(f"automap ended with exit code {process.returncode}")
    rows = [json.loads(line) for line in output.splitlines()]
    return statistics.median([row["seconds"] for row in rows if "step" in row][warm_up:])


def measure(model, plan, rounds, steps, warm_up):
    """Seconds of the ranks' step and of a copy's."""
    first, second = sorted(os.sched_getaffinity(0))[:2]
    together, copies = [], []
    for _ in range(rounds):
        together.append(step_seconds(start(model, plan, steps, {first, second}), warm_up))
        pair = [start(model, "none", steps, {processor}) for processor in (first, second)]
        copies.append(max([step_seconds(process, warm_up) for process in pair]))
    return min(together), min(copies)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=NAMES, metavar="MODEL", help=f"default {' '.join(NAMES)}")
    parser.add_argument("--rounds", type=int, default=3, help="default 3")
    parser.add_argument("--steps", type=int, default=60, help="of one round (default 60)")
    parser.add_argument("--warm-up", type=int, default=10, help="steps that are not counted (default 10)")
    options = parser.parse_args()
    if len(os.sched_getaffinity(0)) < 2:
        raise SystemExit("two processors are needed")
    if options.steps <= options.warm_up:
        parser.error("--steps must be more than --warm-up")
    print("ms per step, the least of the rounds' medians")
    print(f"{'model':18}{'two ranks':>11}{'a copy':>10}{'efficiency':>12}")
    for model in options.models:
        with tempfile.TemporaryDirectory() as folder:
            plan = pathlib.Path(folder) / "plan.json"
            subprocess.run([AUTOMAP, "search", str(module_of(model)), "--cluster", "host:2", "--searcher", "expert",
                            "--expert", "data_parallel", "-o", str(plan), "--quiet"], check=True,
                           stdout=subprocess.DEVNULL)
            ranks, copy = measure(model, plan, options.rounds, options.steps, options.warm_up)
        print(f"{model:18}{1e3 * ranks:11.3f}{1e3 * copy:10.3f}{copy / ranks / 2:12.2f}", flush=True)


if __name__ == "__main__":
    main()
