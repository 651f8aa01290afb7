"""Which plan to measure next: plans of the zoo on this machine, whose measured steps are a table.

`--measure` makes the table anew, in half an hour: every model is searched with `--measure`, several times, and a row
is the run of a plan with the seconds of its steps. Contestants choose from the table (bench/bench_measurements.c). The
true step of a plan is its shortest in any repeat. A repeat that other programs disturbed is left out. A contestant sees
the shortest step of one repeat, drawn by the seed; a short run of successive halving sees three steps. The regret after
k measurements is the true step of the plan that was measured fastest, over the true step of the best plan. More than
100 % count as 100 %. Models of a family are one fold: contestants that learn from other groups never see it.

    ninja -C build automap bench_measurements
    python3 bench/measured_plans.py TABLE.csv --measure     # on an idle machine
    python3 bench/measured_plans.py TABLE.csv --write bench/README.md
"""

import argparse
import collections
import csv
import json
import os
import statistics
import subprocess

import marked_section
import measurements

SOURCE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FAMILIES = (
    ("mlp", "mlp_tiny"),
    ("gpt2_tiny",),
    ("llama_tiny",),
    ("bert_tiny", "vit_tiny"),
    ("vgg_tiny", "resnet_tiny"),
    ("moe_tiny", "moe_sorted_tiny"),
    ("t5_tiny",),
    ("lstm_tiny",),
    ("unet_tiny",),
)
RANKS = (2, 4)
PLANS, REPEATS, SHORT = 30, 3, 3  # SHORT: steps of a short run
NEAR, LEAST_PLANS = 1.25, 8
TOP_K = "simulator's top k"
COLUMNS = ("model", "ranks", "repeat", "plan", "form", "predicted_seconds", "strategy", "step_seconds")


def measured_runs(model, ranks):
    """The runs of a search, as its --json reports them."""
    path = os.path.join(SOURCE, "datasets", "models", model, "model.hlo.pb")
    program = os.path.join(SOURCE, "build", "automap")
    command = [program, "search", path, "--cluster", f"host:{ranks}", "--measure", str(PLANS), "-o", os.devnull,
               "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
    return json.loads(done.stdout)["measurements"]


def measure(path):
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        for repeat in range(REPEATS):
            for model, ranks in ((m, r) for family in FAMILIES for m in family for r in RANKS):
                for plan, run in enumerate(measured_runs(model, ranks)):
                    row = {"model": model, "ranks": ranks, "repeat": repeat, "plan": plan, "form": run["plan"]}
                    row["predicted_seconds"] = run["predicted_seconds"]
                    for key in ("strategy", "step_seconds"):
                        row[key] = " ".join(f"{number:.6g}" for number in run[key])
                    writer.writerow(row)
                file.flush()
                print(f"repeat {repeat}: {model} on {ranks} ranks", flush=True)



def undisturbed(rows):
    """The repeats whose shortest step is near the shortest of all; other programs lengthen all steps of the others."""
    least = min(min(row["steps"]) for row in rows)
    return [row for row in rows if min(row["steps"]) <= NEAR * least]


def read_plans(path):
    """Plans by model and ranks, {plan: [rows of its repeats]}, and the number of plans that are left out. A plan
    without two undisturbed repeats is left out, and a group of few plans."""
    plans = collections.defaultdict(lambda: collections.defaultdict(list))
    with open(path, newline="") as file:
        for row in csv.DictReader(file):
            row["steps"] = [float(number) for number in row["step_seconds"].split()]
            if row["steps"]:
                plans[row["model"], row["ranks"]][row["plan"]].append(row)
    kept = {}
    for group, rows_of in plans.items():
        rows_of = {plan: undisturbed(rows) for plan, rows in rows_of.items()}
        rows_of = {plan: rows for plan, rows in rows_of.items() if len(rows) > 1}
        if len(rows_of) >= LEAST_PLANS:
            kept[group] = rows_of
    return kept, sum(map(len, plans.values())) - sum(map(len, kept.values()))


def table(plans):
    """The lines that build/bench_measurements reads."""
    folds = {model: fold for fold, family in enumerate(FAMILIES) for model in family}
    kinds, lines = {}, []
    for group, ((model, _), rows_of) in enumerate(plans.items()):
        for rows in rows_of.values():
            strategy = rows[0]["strategy"].split()
            kind = kinds.setdefault(tuple(strategy[:4] + strategy[6:]), len(kinds))
            samples = [(min(row["steps"]), min(row["steps"][:SHORT])) for row in rows]
            true = min(sample for sample, _ in samples)
            words = [group, folds[model], true, rows[0]["predicted_seconds"], 1, kind, *strategy, len(samples)]
            lines.append(" ".join(map(str, words + [number for pair in samples for number in pair])))
    return "\n".join(lines) + "\n"


def noise(plans):
    """The factors by which the shortest step of a repeat exceeds that of all."""
    factors = []
    for rows_of in plans.values():
        for rows in rows_of.values():
            steps = [min(row["steps"]) for row in rows]
            factors += [step / min(steps) for step in steps]
    return statistics.median(factors), statistics.quantiles(factors, n=10)[-1]


def report(plans, left_out, seeds):
    contest = measurements.Contest(measurements.run_contest(table(plans), seeds), most=1)
    text = contest.table() + "\nRegret minus that of the simulator's top k, with 95 % intervals over groups:\n\n"
    text += measurements.heading("contestant")
    for contestant in contest.contestants:
        if contestant != TOP_K:
            cells = [contest.minus(contestant, TOP_K, k) for k in measurements.AFTER]
            text += f"| {contestant} | " + " | ".join(cells) + " |\n"
    count = sum(map(len, plans.values()))
    median, upper = noise(plans)
    text += (f"\n{len(plans)} groups with {count} plans; {left_out} disturbed ones are left out. The shortest step of "
             f"a "
             f"repeat is\n")
    return text + f"{median:.3f} times the shortest of all in the median, {upper:.3f} times at the 90th percentile.\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", help="measured steps of plans")
    parser.add_argument("--measure", action="store_true", help="makes the table anew")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--write", help="document whose marked section gets the tables")
    arguments = parser.parse_args()
    if arguments.measure:
        measure(arguments.table)
    text = report(*read_plans(arguments.table), arguments.seeds)
    print(text)
    if arguments.write:
        marked_section.write(arguments.write, "bench/measured_plans.py", text)


if __name__ == "__main__":
    main()
