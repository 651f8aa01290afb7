"""How much faster plans get by choices beside the decisions of the policy of the search, on unseen generated problems.

A player of little skill, random or annealing, searches the policy's space on one mesh and, with the same evaluations
again, a space that differs by one choice (bench/policy/bench_choices.c). The step of the better plan counts over that
of a search of the policy's space with as many evaluations in all. Overrides belong to the polish: its step with them
counts over that without. The policy itself, dqn, has the choice among its decisions: its step with the choice counts
over that without. Evaluations are equal in every row. Below 1, the choice is worth them. A step counts as at most LOST
times the other; problems where neither has a plan that fits are left out. Rows have geometric means over problems, with
95 % intervals by bootstrap.

    ninja -C build bench_choices
    python3 bench/choices.py --results /tmp/choices.jsonl --write bench/README.md   # runs that are there are kept
"""

import argparse
import math
import os
import subprocess

import marked_section
from searchers import LOST, MODELS, SOURCE, interval, model_path, read_runs

PLAYERS = ["random", "anneal", "dqn"]
ALONE, REFERENCE, POLISHED, OVERRIDES = "policy", "policy, twice", "policy, polished", "overrides"
MESHES, ON_MESHES = "meshes", "micro-batches on all meshes, by the policy"


def reference_of(player, space):
    """The space without the choice."""
    if player == "dqn":
        return MESHES if space == ON_MESHES else ALONE
    return POLISHED if space == OVERRIDES else REFERENCE


def run(arguments, player, problem):
    words = [arguments.binary, str(arguments.seed), str(problem), "1", str(arguments.evaluations), player]
    done = subprocess.run([*words, *map(model_path, MODELS.split(","))], check=True, cwd=SOURCE,
                          stdout=subprocess.PIPE, text=True)
    return done.stdout


def ratio(player, steps, space):
    """Step with the choice over that without, at equal evaluations; None where neither has a plan."""
    reference, best = steps[reference_of(player, space)], steps[space]
    if player != "dqn" and space != OVERRIDES:
        best = min(best, steps[ALONE])
    if math.isinf(reference) and math.isinf(best):
        return None
    return min(max(best / reference if math.isfinite(reference) else 1 / LOST, 1 / LOST), LOST)


def table(runs):
    text = "| choice | player | problems | faster by 1 % | slower by 1 % | fits alone | step with over without |\n"
    text += "|---" * 7 + "|\n"
    spaces = list(dict.fromkeys(r["space"] for r in runs if r["space"] not in (ALONE, REFERENCE, POLISHED)))
    for space in spaces:
        for player in PLAYERS:
            steps = {}
            for r in runs:
                if r["searcher"] == player:
                    steps.setdefault(r["problem"], {})[r["space"]] = r["step"] or math.inf
            steps = {problem: of for problem, of in steps.items() if space in of}
            ratios = [ratio(player, of, space) for of in steps.values()]
            reference = reference_of(player, space)
            alone = sum(math.isinf(of[reference]) and math.isfinite(of[space]) for of in steps.values())
            ratios = [r for r in ratios if r is not None]
            if not ratios:
                continue
            faster, slower = sum(r < 0.99 for r in ratios), sum(r > 1.01 for r in ratios)
            text += (f"| {space} | {player} | {len(ratios)} | {faster} | {slower} | {alone} | "
                     f"{interval([math.log(r) for r in ratios])} |\n")
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=os.path.join(SOURCE, "build", "bench_choices"))
    parser.add_argument("--seed", type=int, default=27, help="of the problems")
    parser.add_argument("--problems", type=int, default=40)
    parser.add_argument("--evaluations", type=int, default=50, help="of a space; the reference has twice as many")
    parser.add_argument("--results", required=True, help="runs as JSON lines, continued")
    parser.add_argument("--write", help="document whose marked section gets the table")
    arguments = parser.parse_args()
    known = {(r["searcher"], r["problem"]) for r in read_runs(arguments.results)}
    with open(arguments.results, "a") as results:
        for problem in range(arguments.problems):
            for player in PLAYERS:
                if (player, problem) not in known:
                    results.write(run(arguments, player, problem))
                    results.flush()
    text = table(read_runs(arguments.results))
    print(text)
    if arguments.write:
        marked_section.write(arguments.write, "bench/choices.py", text)


if __name__ == "__main__":
    main()
