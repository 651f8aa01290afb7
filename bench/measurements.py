"""Which plan to measure next: published runs as an oracle, one look-up for each measurement.

The runs of a group differ in strategy alone. A contestant measures one run after the other, and sees the simulator's
predictions of all. The regret after k measurements is the fastest measured run over the fastest of the group; a run out
of memory counts as a measurement, and without any time the regret is that of the slowest run. Contestants that learn
from other groups (ranking of other groups, re-fitted coefficients, Gaussian process, trained DQN) never see groups of
the same hidden width and source. Successive halving has no place here: a look-up has no cheaper form.

    ninja -C build automap bench_measurements
    python3 bench/measurements.py RUNS.csv [--predictions P.jsonl] [--write bench/README.md]

Without --predictions, `build/automap published RUNS.csv --json` makes them (docs/published.md), in minutes.
"""

import argparse
import collections
import csv
import json
import math
import os
import random
import statistics
import subprocess

import marked_section

SOURCE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
AFTER = (1, 3, 5, 10, 20)
LEAST_RUNS, LEAST_TIMES = 8, 4  # of a group
TRAINED = "dqn, trained"
RESAMPLES = 2000


def logarithm(row, key):
    return math.log2(float(row[key] or 1))


def features(row):
    """Ten numbers of a strategy, of about one unit each."""
    yes = [row["recompute"] == "selective", row["recompute"] == "full", row["sequence_parallel"] == "yes",
           row["attention"] != "unfused"]
    sizes = [logarithm(row, key) / 2 for key in ("tensor", "pipeline", "data", "micro_batch", "chunks")]
    return [*sizes, *map(float, yes), float(row["zero"] or 0)]


def table(runs, predictions):
    """The lines that build/bench_measurements reads."""
    rows = [{**run, **json.loads(text)} for run, text in zip(runs, predictions, strict=True)]
    groups = collections.defaultdict(list)
    for row in rows:
        if row["data"]:
            groups[row["source"], row["hidden"], row["group"]].append(row)
    groups = {
        key: group
        for key, group in groups.items()
        if len(group) >= LEAST_RUNS and sum(bool(row["step_seconds"]) for row in group) >= LEAST_TIMES
    }
    folds = {fold: k for k, fold in enumerate(sorted({key[:2] for key in groups}))}
    strategies = {}
    lines = []
    for number, (key, group) in enumerate(groups.items()):
        for row in group:
            numbers = features(row)
            strategy = strategies.setdefault(tuple(numbers), len(strategies))
            measured, predicted = row["step_seconds"] or 0, row["predicted_seconds"] or 0
            words = [number, folds[key[:2]], measured, predicted, int(bool(row["fits"])), strategy, *numbers, 0]
            lines.append(" ".join(map(str, words)))
    return "\n".join(lines) + "\n"


def mean_interval(values, digits=1):
    draw = random.Random(1)
    means = sorted(statistics.fmean(draw.choices(values, k=len(values))) for _ in range(RESAMPLES))
    low, high = means[int(0.025 * RESAMPLES)], means[int(0.975 * RESAMPLES) - 1]
    return f"{100 * statistics.fmean(values):.{digits}f} ({100 * low:.{digits}f} to {100 * high:.{digits}f})"


class Contest:
    """The regrets of the results by contestant; those above `most` count as it."""

    def __init__(self, results, most=float("inf")):
        regrets = collections.defaultdict(lambda: collections.defaultdict(list))  # contestant, group: lists by seed
        for result in results:
            regrets[result["contestant"]][result["group"]].append([min(regret, most) for regret in result["regret"]])
        self.regrets = regrets
        self.contestants = list(regrets)
        self.groups = sorted(regrets[self.contestants[0]])
        self.seeds = len(regrets[self.contestants[0]][self.groups[0]])

    def of(self, contestant, k):
        """Mean regret of each group after k measurements."""
        return [statistics.fmean(seed[k - 1] for seed in self.regrets[contestant][group]) for group in self.groups]

    def minus(self, contestant, other, k):
        return mean_interval([a - b for a, b in zip(self.of(contestant, k), self.of(other, k), strict=True)])

    def table(self):
        text = (f"Mean regret in per cent, {len(self.groups)} groups, {self.seeds} seeds, with 95 % intervals over "
                f"groups:\n\n")
        text += heading("contestant")
        for contestant in self.contestants:
            text += f"| {contestant} | " + " | ".join(mean_interval(self.of(contestant, k)) for k in AFTER) + " |\n"
        return text


def heading(first):
    return f"| {first} | " + " | ".join(f"{k} measured" for k in AFTER) + " |\n" + "|---" * (len(AFTER) + 1) + "|\n"


def report(results):
    """Mean regrets in per cent by contestant, and the trained network's minus the best of the others'."""
    contest = Contest(results)
    cells = []
    for k in AFTER:
        others = [c for c in contest.contestants if c != TRAINED]
        best = min(others, key=lambda c: statistics.fmean(contest.of(c, k)))
        cells.append(contest.minus(TRAINED, best, k) + f", {best}")
    return contest.table() + "| trained minus the best other | " + " | ".join(cells) + " |\n"


def run_contest(lines, seeds):
    """The results of build/bench_measurements on a table."""
    command = [os.path.join(SOURCE, "build", "bench_measurements"), str(seeds)]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", help="table of runs (docs/published.md)")
    parser.add_argument("--predictions", help="output of automap published RUNS.csv --json")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--write", help="document whose marked section gets the table")
    arguments = parser.parse_args()
    if arguments.predictions:
        predictions = open(arguments.predictions).read().splitlines()
    else:
        command = [os.path.join(SOURCE, "build", "automap"), "published", arguments.runs, "--json"]
        predictions = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    lines = table(csv.DictReader(open(arguments.runs)), predictions)
    text = report(run_contest(lines, arguments.seeds))
    print(text)
    if arguments.write:
        marked_section.write(arguments.write, "bench/measurements.py", text)


if __name__ == "__main__":
    main()
