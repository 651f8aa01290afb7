"""A contest of one-stage searchers with equal evaluations, on modules and clusters that no policy was trained on.

Problems are generated: the modules on random clusters (bench/policy/bench_searchers.c says more). Every searcher has
the same numbers of evaluations, or the same processor time, without baselines to start from and without polish; the
last two start as the product does, from screened estimates and the baselines. A result is the step over the best step
known of its problem (the best of all runs); where no plan fits it counts as LOST. Tables have geometric means over
problems, with 95 % intervals by bootstrap. The trained policy is the shipped one, a regression on the teacher's plans.
Without --other, a second one is trained: the same network on the same problems by episodes, with reinforcement.

    ninja -C build automap bench_searchers processor_clock
    python3 bench/searchers.py --results /tmp/runs.jsonl --write bench/README.md   # runs that are there are kept

--searchers limits the runs: those without a policy need no repetition after a training. --stages has the contest over
any number of stages: the policy chooses it, or has one-stage plans alone, beside pipelines of the tables.

    python3 bench/searchers.py --stages --seed 36 --problems 40 --results /tmp/stages.jsonl --write bench/README.md
"""

import argparse
import concurrent.futures
import json
import math
import os
import random
import statistics
import subprocess

import marked_section

SOURCE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MODELS = "vgg_tiny,gpt2_tiny,t5_tiny"
TRAINING = ["bert", "llama", "vit", "resnet", "unet", "moe", "moe_sorted", "lstm", "mlp", "flax", "fused", "adamw",
            "adafactor"]
TRAINING = [name if name == "mlp" else name + "_tiny" for name in TRAINING + ["dropout", "lion"]]  # docs/planning.md
TRAINED, UNTRAINED, OTHER, FULL = "dqn, trained", "dqn, untrained", "dqn, trained by episodes", "full default search"
SEARCHERS = [TRAINED, UNTRAINED, OTHER, "anneal", "greedy", "random", "exact"]
AUTO = "auto, screening and baselines first"
SEARCHERS += ["anneal, screening and baselines first", AUTO]
ZERO_SHOT = {name: f"zero-shot, {name}" for name in ("trained", "untrained", "trained by episodes")}
BY_POLICY, BY_TABLES, ANY_STAGES, BARE = "stages by the policy", "stages by the tables", "auto, any stages", ", bare"
STAGES = [BY_POLICY, BY_TABLES, ANY_STAGES, BY_POLICY + BARE, BY_TABLES + BARE]
CLOCK = os.path.join(SOURCE, "build", "libprocessor_clock.so")
LOST = 10.0
RESAMPLES = 2000


def interval(logs):
    """Geometric mean of exp(logs) with its 95 % interval by bootstrap, as text."""
    draw = random.Random(1)
    means = sorted(statistics.fmean(draw.choices(logs, k=len(logs))) for _ in range(RESAMPLES))
    low, high = means[int(0.025 * RESAMPLES)], means[int(0.975 * RESAMPLES) - 1]
    return f"{math.exp(statistics.fmean(logs)):.3f} ({math.exp(low):.3f} to {math.exp(high):.3f})"


def model_path(name):
    return os.path.join("datasets", "models", name, "model.hlo.pb")


def train_other(path):
    words = [os.path.join(SOURCE, "build", "automap"), "agent", "train-search", "--problems", "800", "-o", path]
    subprocess.run([*words, *map(model_path, TRAINING)], check=True, cwd=SOURCE)


def run(arguments, models, problem, budgets, searchers):
    words = [arguments.binary, str(arguments.seed), str(problem), "1", ",".join(budgets), ";".join(searchers),
             arguments.policy, arguments.other]
    clock = {**os.environ, "LD_PRELOAD": CLOCK} if os.path.exists(CLOCK) else None  # else limits are by the wall clock
    done = subprocess.run([*words, *models], capture_output=True, text=True, cwd=SOURCE, env=clock)
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    return [json.loads(line) for line in done.stdout.splitlines()]


def tables(runs):
    problems = sorted({r["problem"] for r in runs})
    steps = {(r["searcher"], r["budget"], r["problem"]): r["step"] or math.inf for r in runs}
    full = {r["problem"]: r["step"] or math.inf for r in runs if r["searcher"] == FULL}
    contest = [r for r in runs if r["searcher"] != FULL]
    best = {p: min(r["step"] or math.inf for r in contest if r["problem"] == p) for p in problems}
    problems = [p for p in problems if math.isfinite(best[p])]
    budgets = {r["budget"] for r in contest if r["searcher"] in SEARCHERS}
    budgets = sorted(budgets, key=lambda budget: (budget.endswith("s"), float(budget.rstrip("s"))))
    titles = [b[:-1] + " s" if b.endswith("s") else b + " evaluations" for b in budgets]
    searchers = [s for s in SEARCHERS if any(r["searcher"] == s for r in contest)]

    def logs(searcher, budget):
        return [math.log(min(steps[searcher, budget, p] / best[p], LOST)) for p in problems
                if (searcher, budget, p) in steps]

    titles = [f"{title}, {len(logs(TRAINED, budget))} problems" for title, budget in zip(titles, budgets)]
    head = "| searcher | " + " | ".join(titles) + " |\n" + "|---" * (len(budgets) + 1) + "|\n"
    text = "Step over the best step known:\n\n" + head
    for searcher in searchers:
        text += f"| {searcher} | " + " | ".join(interval(logs(searcher, b)) for b in budgets) + " |\n"
    for mine, name in ((TRAINED, "the trained policy"), (AUTO, "auto")):
        text += f"\nStep of {name} over that of another searcher (below 1: {name} is better):\n\n" + head
        for searcher in [searcher for searcher in searchers if searcher != mine]:
            cells = [interval([a - b for a, b in zip(logs(mine, n), logs(searcher, n))]) for n in budgets]
            text += f"| {searcher} | " + " | ".join(cells) + " |\n"
    text += "\nMean processor seconds of a search:\n\n" + head
    for searcher in searchers:
        cells = [statistics.fmean(r["seconds"] for r in runs if r["searcher"] == searcher and r["budget"] == b)
                 for b in budgets]
        text += f"| {searcher} | " + " | ".join(f"{c:.2f}" for c in cells) + " |\n"
    reference, name = (full, "the full default search") if full else (best, "the best step known")
    text += f"\nThe best of the first 10 plans without learning, over {name}:\n\n"
    text += ("| network | median | geometric mean | at most 1.1 | the trained one over it | plans | processor seconds "
             "|\n|---|---|---|---|---|---|---|\n")
    trained = []
    for network, searcher in ZERO_SHOT.items():
        mine = {r["problem"]: r for r in runs if r["searcher"] == searcher}
        if not mine:
            continue
        ratios = [min((mine[p]["step"] or math.inf) / reference[p], LOST) for p in problems
                  if math.isfinite(reference.get(p, math.inf))]
        near, logs_of = sum(r <= 1.1 for r in ratios), [math.log(r) for r in ratios]
        trained = trained or logs_of
        beside = interval([a - b for a, b in zip(trained, logs_of)])
        plans, seconds = (statistics.fmean(r[key] for r in mine.values()) for key in ("evaluations", "seconds"))
        text += (f"| {network} | {statistics.median(ratios):.3f} | {interval(logs_of)} | {near} of {len(ratios)} | "
                 f"{beside} | {plans:.1f} | {seconds:.3f} |\n")
    return text


def stages_table(runs):
    """The policy's choice of the number of stages, beside searches without it at equal evaluations."""
    of = {}
    for r in runs:
        of.setdefault((r["searcher"], r["budget"]), {})[r["problem"]] = r
    text = "| start | evaluations | beside | problems | faster by 1 % | slower by 1 % | step over the other's | "
    text += "processor seconds of both |\n" + "|---" * 8 + "|\n"
    for mine, other in ((BY_POLICY, BY_TABLES), (BY_POLICY, ANY_STAGES), (BY_POLICY + BARE, BY_TABLES + BARE)):
        for budget in sorted({b for s, b in of if s == mine}, key=int):
            with_choice, without = of[mine, budget], of.get((other, budget), {})
            both = [p for p in with_choice if p in without and (with_choice[p]["step"] or without[p]["step"])]
            if not both:
                continue
            ratios = [(with_choice[p]["step"] or math.inf) / (without[p]["step"] or math.inf) for p in both]
            ratios = [min(max(0 if math.isnan(r) else r, 1 / LOST), LOST) for r in ratios]
            seconds = [statistics.fmean(runs[p]["seconds"] for p in both) for runs in (with_choice, without)]
            start = "bare" if BARE in mine else "baselines"
            text += (f"| {start} | {budget} | {other.removesuffix(BARE)} | {len(both)} | "
                     f"{sum(r < 0.99 for r in ratios)} | {sum(r > 1.01 for r in ratios)} | "
                     f"{interval([math.log(r) for r in ratios])} | {seconds[0]:.2f}, {seconds[1]:.2f} |\n")
    return text


def missing(arguments, problem, known):
    """Pairs of a searcher and a budget that have no run of the problem yet."""
    pairs = []
    for searcher in arguments.searchers.split(";"):
        zero_shot = searcher in ZERO_SHOT.values()
        budgets = ["zero-shot"] if zero_shot else [b for b in arguments.budgets.split(",") if b != "full"]
        pairs += [(searcher, budget) for budget in budgets]
    if "full" in arguments.budgets.split(","):
        pairs.append((FULL, "full"))
    return [(searcher, budget) for searcher, budget in pairs if (searcher, problem, budget) not in known]


def read_runs(path):
    """The runs of a file of JSON lines; none without the file."""
    if not os.path.exists(path):
        return []
    with open(path) as results:
        return [json.loads(line) for line in results]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=os.path.join(SOURCE, "build", "bench_searchers"))
    parser.add_argument("--policy", default="built-in", help="file of the trained policy")
    parser.add_argument("--other", default=os.path.join(SOURCE, "build", "episodes.safetensors"),
                        help="file of the policy trained by episodes, which is trained if there is none")
    parser.add_argument("--searchers", default=";".join([*ZERO_SHOT.values(), *SEARCHERS]),
                        help="names between semicolons")
    parser.add_argument("--models", default=MODELS)
    parser.add_argument("--budgets", default="20,50,150,0.5s,full",
                        help="evaluations, seconds, and full: the default search")
    parser.add_argument("--seed", type=int, default=20261128, help="of the problems")
    parser.add_argument("--first", type=int, default=0, help="number of the first problem")
    parser.add_argument("--problems", type=int, default=60)
    parser.add_argument("--jobs", type=int, default=1, help="problems side by side")
    parser.add_argument("--stages", action="store_true", help="the contest over any number of stages")
    parser.add_argument("--results", required=True, help="runs as JSON lines, continued")
    parser.add_argument("--write", help="document whose marked section gets the tables")
    arguments = parser.parse_args()
    if arguments.stages:
        arguments.searchers, arguments.budgets, arguments.other = ";".join(STAGES), "20,50,150", "none"
    runs = read_runs(arguments.results)
    known = {(r["searcher"], r["problem"], r["budget"]) for r in runs}
    models = [model_path(name) for name in arguments.models.split(",")]
    if arguments.other != "none" and not os.path.exists(arguments.other):
        train_other(arguments.other)
    wanted = []
    for problem in range(arguments.first, arguments.first + arguments.problems):
        left = missing(arguments, problem, known)
        if left:
            wanted.append((problem, list(dict.fromkeys(b for _, b in left)), list(dict.fromkeys(s for s, _ in left))))
    with open(arguments.results, "a") as results, concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        work = [pool.submit(run, arguments, models, *one) for one in wanted]
        for done in concurrent.futures.as_completed(work):
            found = [r for r in done.result() if (r["searcher"], r["problem"], r["budget"]) not in known]
            known |= {(r["searcher"], r["problem"], r["budget"]) for r in found}
            runs += found
            for line in found:
                print(json.dumps(line), file=results, flush=True)
    text = stages_table(runs) if arguments.stages else tables(runs)
    print(text)
    if arguments.write:
        marked_section.write(arguments.write, "bench/searchers.py" + ", stages" * arguments.stages, text)


if __name__ == "__main__":
    main()
