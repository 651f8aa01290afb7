"""An ablation of the training of the policy: each part of Rainbow is switched by itself.

For each way of training and each seed, `agent train-search` trains a policy on --training problems. The policy then
meets --problems generated problems of kinds that no training had (bench/searchers.py names them). Two figures follow:
the best of its first ten plans without learning, and the plan of a search with 20 evaluations and without baselines.
A step counts over the best step known of its problem; where no plan fits it counts as LOST. The mean of a training is
the mean logarithm over problems. Intervals are 95 % over the seeds, by Student's distribution. Differences are paired
by seed. The network has one output, so there is no dueling head to switch.

    ninja -C build automap bench_searchers
    python3 bench/policy_ablation.py --results runs.jsonl --write bench/README.md   # runs that are there are kept
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import tempfile

import marked_section
from scipy import stats
from searchers import LOST, MODELS, SOURCE, TRAINED, TRAINING, model_path, read_runs

ZERO_SHOT = "zero-shot, trained"
BUDGET = "20"
NO_REPORT = "1000000000"  # but for the one before the first problem
DEFAULT, UNTRAINED = "default", "no training"
WAYS = {
    DEFAULT: [],
    "`prioritized=off`": ["--learner", "prioritized=off"],
    "`n-step=3`": ["--learner", "n-step=3"],
    "`n-step=3,double=on`": ["--learner", "n-step=3,double=on"],
    "`noisy`": ["--learner", "noisy"],
    "`atoms=51`": ["--learner", "atoms=51"],
    "`--supervised`": ["--supervised"],
    UNTRAINED: None,
}


def trained(arguments, way, seed, path):
    """The path of a policy that is trained in the given way; "untrained" where there is no training."""
    if WAYS[way] is None:
        return "untrained"
    words = [arguments.automap, "agent", "train-search", "--quiet", "--report", NO_REPORT, "--problems",
             str(arguments.training), "--seed", str(seed), *WAYS[way], "-o", path]
    subprocess.run([*words, *map(model_path, TRAINING)], check=True, cwd=SOURCE, stdout=subprocess.DEVNULL)
    return path


def runs_of(arguments, way, seed, folder):
    policy = trained(arguments, way, seed, os.path.join(folder, "policy.safetensors"))
    words = [arguments.binary, str(arguments.seed), "0", str(arguments.problems), BUDGET, f"{ZERO_SHOT};{TRAINED}",
             policy, "none", *map(model_path, MODELS.split(","))]
    done = subprocess.run(words, check=True, cwd=SOURCE, stdout=subprocess.PIPE, text=True)
    facts = {"way": way, "training_seed": seed}
    return [facts | json.loads(line) for line in done.stdout.splitlines()]


def table(runs):
    """Rows of ways. Only seeds that every way has count, and problems for which any run found a plan."""
    best = {}
    for run in runs:
        best[run["problem"]] = min(best.get(run["problem"], math.inf), run["step"] or math.inf)
    means = {}
    for run in runs:
        if math.isfinite(best[run["problem"]]):
            ratio = (run["step"] or math.inf) / best[run["problem"]]
            key = (run["way"], run["searcher"], run["training_seed"])
            means.setdefault(key, []).append(math.log(min(ratio, LOST)))
    means = {key: statistics.fmean(logs) for key, logs in means.items()}
    ways = [way for way in WAYS if any(key[0] == way for key in means)]
    seeds = set.intersection(*({key[2] for key in means if key[0] == way} for way in ways if WAYS[way] is not None))
    text = f"{len(seeds)} seeds, {sum(map(math.isfinite, best.values()))} problems:\n\n"
    text += ("| training | first ten plans | over default | 20 evaluations | over default |\n"
             "|---|---|---|---|---|\n")
    for way in ways:
        cells = []
        for searcher in (ZERO_SHOT, TRAINED):
            # a policy without training has one seed, the same for all
            mine = [means.get((way, searcher, seed), means.get((way, searcher, 0))) for seed in sorted(seeds)]
            beside = [a - means[DEFAULT, searcher, seed] for a, seed in zip(mine, sorted(seeds))]
            cells += [interval(mine, WAYS[way] is not None), "" if way == DEFAULT else interval(beside)]
        text += f"| {way} | " + " | ".join(cells) + " |\n"
    return text


def interval(logs, is_wide=True):
    """exp of the mean with its 95 % interval by Student's distribution, as text."""
    mean = statistics.fmean(logs)
    if not is_wide or len(logs) < 2:
        return f"{math.exp(mean):.3f}"
    half = stats.t.ppf(0.975, len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    return f"{math.exp(mean):.3f} ({math.exp(mean - half):.3f} to {math.exp(mean + half):.3f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--automap", default=os.path.join(SOURCE, "build", "automap"))
    parser.add_argument("--binary", default=os.path.join(SOURCE, "build", "bench_searchers"))
    parser.add_argument("--seeds", type=int, default=20, help="trainings of each way")
    parser.add_argument("--training", type=int, default=80, help="problems of a training")
    parser.add_argument("--problems", type=int, default=16, help="unseen problems")
    parser.add_argument("--seed", type=int, default=27, help="of the unseen problems")
    parser.add_argument("--results", required=True, help="runs as JSON lines, continued")
    parser.add_argument("--write", help="document whose marked section gets the table")
    arguments = parser.parse_args()
    runs = read_runs(arguments.results)
    known = {(run["way"], run["training_seed"]) for run in runs}
    with open(arguments.results, "a") as results, tempfile.TemporaryDirectory() as folder:
        for seed in range(arguments.seeds):
            for way in [way for way in WAYS if (way, seed) not in known]:
                if WAYS[way] is None and seed > 0:
                    continue
                found = runs_of(arguments, way, seed, folder)
                runs += found
                results.write("".join(json.dumps(run) + "\n" for run in found))
                results.flush()
    text = table(runs)
    print(text)
    if arguments.write:
        marked_section.write(arguments.write, "bench/policy_ablation.py", text)


if __name__ == "__main__":
    main()
