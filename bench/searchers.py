"""A contest of one-stage searchers with equal evaluations, on modules and clusters that no policy was trained on.

Every searcher has the same numbers of evaluations, without baselines to start from and without polish, under several
seeds. Two more rows start as the product does: from screened estimates and the baselines. A result is the step of the
plan over the best step known of its problem (the best of all runs); where no plan fits it counts as LOST. Tables have
geometric means over problems, with 95 % intervals by bootstrap over problems.

    python3 bench/searchers.py --results /tmp/runs.jsonl --write docs/learning.md      # runs that are there are kept
"""

import argparse
import json
import math
import os
import random
import statistics
import subprocess

SOURCE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MODELS = "vgg19,gpt2,t5_paper_6,vgg_tiny,gpt2_tiny,t5_tiny"
CLUSTERS = "C,h100:4"
BARE = ("--no-seeds", "--no-polish")
SEARCHERS = {
    "dqn, trained": ("--searcher", "dqn", *BARE),
    "dqn, untrained": ("--searcher", "dqn", "--policy", "untrained", *BARE),
    "anneal": ("--searcher", "anneal", *BARE),
    "greedy": ("--searcher", "greedy", *BARE),
    "random": ("--searcher", "random", *BARE),
    "anneal, screening and baselines first": ("--searcher", "anneal", "--no-polish"),
    "dqn, screening and baselines besides": ("--searcher", "dqn", "--no-polish"),
}
LOST = 10.0
BEGIN, END = "<!-- bench/searchers.py begins -->\n", "<!-- bench/searchers.py ends -->\n"
RESAMPLES = 2000


def model_file(name):
    path = os.path.join(SOURCE, "datasets", "models", name, "model.hlo.pb")
    return path if os.path.exists(path) else path + ".zst"


def run(automap, searcher, model, cluster, budget, seed):
    words = [automap, "search", model_file(model), "--cluster", cluster, "--space", "single_stage", "--no-exceptions",
             "--evaluations", str(budget), "--seed", str(seed), "-o", os.devnull, "--json", *SEARCHERS[searcher]]  # fmt: skip
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode not in (0, 4):
        raise SystemExit(f"{' '.join(words)}: {done.stderr}")
    found = json.loads(done.stdout) if done.returncode == 0 else {}
    return {"searcher": searcher, "model": model, "cluster": cluster, "budget": budget, "seed": seed,
            "step": found.get("step_seconds"), "evaluations": found.get("evaluations"),
            "seconds": found.get("search_seconds")}  # fmt: skip


def interval(logs):
    """Geometric mean of exp(logs) with its 95 % interval by bootstrap, as text."""
    draw = random.Random(1)
    means = sorted(statistics.fmean(draw.choices(logs, k=len(logs))) for _ in range(RESAMPLES))
    low, high = means[int(0.025 * RESAMPLES)], means[int(0.975 * RESAMPLES) - 1]
    return f"{math.exp(statistics.fmean(logs)):.3f} ({math.exp(low):.3f} to {math.exp(high):.3f})"


def tables(runs, budgets):
    problems = sorted({(r["model"], r["cluster"]) for r in runs})
    best = {p: min(r["step"] or math.inf for r in runs if (r["model"], r["cluster"]) == p) for p in problems}
    ratios = {}
    for r in runs:
        problem = (r["model"], r["cluster"])
        ratio = min((r["step"] or math.inf) / best[problem], LOST)
        ratios.setdefault((r["searcher"], r["budget"], problem), []).append(math.log(ratio))
    shared = {b: [p for p in problems if all((s, b, p) in ratios for s in SEARCHERS)] for b in budgets}
    budgets = [b for b in budgets if len(shared[b]) > 1]

    def logs(searcher, budget):
        """Mean over seeds of the logarithm of step over best, of each problem that all searchers have worked on."""
        return [statistics.fmean(ratios[searcher, budget, problem]) for problem in shared[budget]]

    head = "| searcher | " + " | ".join(f"{b} evaluations" for b in budgets) + " |\n" + "|---" * (len(budgets) + 1) + "|\n"
    text = "Step over the best step known:\n\n" + head
    for searcher in SEARCHERS:
        text += f"| {searcher} | " + " | ".join(interval(logs(searcher, b)) for b in budgets) + " |\n"
    text += "\nStep of the trained policy over that of another searcher (below 1: the policy is better):\n\n" + head
    for searcher in list(SEARCHERS)[1:]:
        cells = [interval([a - b for a, b in zip(logs("dqn, trained", n), logs(searcher, n))]) for n in budgets]
        text += f"| {searcher} | " + " | ".join(cells) + " |\n"
    lost = {s: sum(r["step"] is None for r in runs if r["searcher"] == s) for s in SEARCHERS}
    text += "\nProblems and largest number of seeds: "
    counts = [(b, len(shared[b]), max(len(v) for k, v in ratios.items() if k[1] == b)) for b in budgets]
    text += ", ".join(f"{b} evaluations {n} and {seeds}" for b, n, seeds in counts) + ".\n"
    text += "Runs without a plan that fits: " + ", ".join(f"{s} {n}" for s, n in lost.items()) + ".\n"
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--automap", default=os.path.join(SOURCE, "build", "automap"))
    parser.add_argument("--models", default=MODELS)
    parser.add_argument("--clusters", default=CLUSTERS)
    parser.add_argument("--budgets", default="20,50,150")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--only", default="", help="searchers to run, by the beginnings of their names")
    parser.add_argument("--results", required=True, help="runs as JSON lines, continued")
    parser.add_argument("--write", help="document whose marked section gets the tables")
    arguments = parser.parse_args()
    budgets = [int(b) for b in arguments.budgets.split(",")]
    runs = []
    if os.path.exists(arguments.results):
        runs = [json.loads(line) for line in open(arguments.results)]
    known = {(r["searcher"], r["model"], r["cluster"], r["budget"], r["seed"]) for r in runs}
    with open(arguments.results, "a") as results:
        for budget in budgets:
            for seed in range(arguments.seeds):
                for model in arguments.models.split(","):
                    for cluster in arguments.clusters.split(","):
                        for searcher in SEARCHERS:
                            key = (searcher, model, cluster, budget, seed)
                            if key in known or not searcher.startswith(tuple(arguments.only.split(","))) or (searcher == "greedy" and seed > 0):  # it draws nothing
                                continue
                            runs.append(run(arguments.automap, *key))
                            print(json.dumps(runs[-1]), file=results, flush=True)
    text = tables(runs, budgets)
    print(text)
    if arguments.write:
        whole = open(arguments.write).read()
        before, rest = whole.split(BEGIN)
        with open(arguments.write, "w") as file:
            file.write(before + BEGIN + text + END + rest.split(END)[1])


if __name__ == "__main__":
    main()
