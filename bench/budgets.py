"""Checks that a larger budget never gives a slower plan.

For every model: the step of the plan with 1, 2, 4 and 8 times the evaluations of the default budget, and with
pairs of random budgets. The exit code is 1 if a larger budget is worse, or if 8 times the default is not better
than the default on --better models at least.

    python3 bench/budgets.py --cluster C --better 3
"""

import argparse
import json
import os
import random
import subprocess
import sys

from model_files import model_file

MODELS = "vgg19,t5_paper_6,resnet50_batch16,bert48,gpt2,gpt2_bf16,t5_pipeline_6,llama_tiny"
TIMES = (1, 2, 4, 8)


def search(arguments, model, evaluations):
    command = [arguments.automap, "search", model_file(model), "--cluster", arguments.cluster, "-o", os.devnull]
    command += ["--json", *arguments.options] + (["--evaluations", str(evaluations)] if evaluations else [])
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode == 4:
        return {"step_seconds": float("inf"), "evaluations": evaluations or 0, "search_seconds": 0.0}
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr}")
    return json.loads(done.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--automap", default="build/automap")
    parser.add_argument("--cluster", default="C")
    parser.add_argument("--models", default=MODELS)
    parser.add_argument("--pairs", type=int, default=0, help="random pairs of budgets for each model")
    parser.add_argument("--better", type=int, default=0, help="models on which 8 times the default must be better")
    parser.add_argument("options", nargs="*", help="further options of search, after --")
    arguments = parser.parse_args()
    draw = random.Random(7)
    worse, better = [], 0
    for model in arguments.models.split(","):
        default = search(arguments, model, None)
        found = [(times * default["evaluations"], None) for times in TIMES]
        found = [(most, search(arguments, model, most)) for most, _ in found]
        line = f"{model:20} {arguments.cluster:8} default {default['evaluations']:6}"
        for most, result in found:
            line += f"  {result['step_seconds'] * 1e3:11.5f} ms in {result['search_seconds']:6.1f} s"
            if result["evaluations"] > most + 1:
                worse.append(f"{model}: {result['evaluations']} evaluations of {most}")
        better += found[-1][1]["step_seconds"] < default["step_seconds"]
        if found[0][1]["step_seconds"] > default["step_seconds"]:
            worse.append(f"{model}: {default['evaluations']} given are worse than the default")
        for _ in range(arguments.pairs):
            most = draw.randint(1, 2 * default["evaluations"])
            found.append((most, search(arguments, model, most)))
        found.sort(key=lambda one: one[0])
        for (few, before), (many, after) in zip(found, found[1:]):
            if after["step_seconds"] > before["step_seconds"]:
                worse.append(f"{model}: {many} evaluations are worse than {few}")
        print(line, flush=True)
    for text in worse:
        print(text)
    print(f"8 times the default is better on {better} models; {len(worse)} violations")
    return 1 if worse or better < arguments.better else 0


if __name__ == "__main__":
    sys.exit(main())
