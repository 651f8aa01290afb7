"""Compares each plan of `search` with the single changes that `explain` prices.

For every model and cluster: the step of the plan, evaluations and seconds of the search, and the fastest
alternative of `explain` that fits. With --before FILE the table has the steps of an earlier run, too; with
--limit PERCENT the exit code is 1 if an alternative is faster than its plan by more.

    python3 bench/explain_gain.py --clusters A,B,C,h100:4 --out after.json --before before.json
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile

from model_files import ZOO, find_model


def changes(explanation):
    """Yields (description, change) of every simulated change."""
    for row in explanation["alternatives"]:
        if row["what"] == "attention":  # the user's choice: --attention
            continue
        yield f"{row['what']} {row['value']}", row
    for cut in explanation["cuts"]:
        for side in ("earlier", "later"):
            if cut.get(side):
                yield f"cut {cut['part']} {side}", cut[side]
    most = explanation["peak_bytes"]
    for decision in explanation["decisions"]:
        seconds, peak = decision.get("seconds_without"), decision.get("peak_bytes_without")
        fits = peak is not None and peak <= most  # explain says so of the other changes alone
        yield f"without a decision of stage {decision['stage']}", {"step_seconds": seconds, "fits": fits}
    for exception in explanation["overrides"]:
        yield f"without an override of stage {exception['stage']}", exception.get("without") or {}
    if explanation.get("without_overrides"):
        yield "without overrides", explanation["without_overrides"]


def run(automap, model, cluster, options, plan, limit):
    command = [automap, "search", model, "--cluster", cluster, "-o", plan, "--json", *options]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return {"error": "timeout"}
    if found.returncode != 0:
        return {"error": found.stderr.strip()[-200:], "code": found.returncode}
    result = json.loads(found.stdout)
    row = {key: result[key] for key in ("step_seconds", "evaluations", "search_seconds")}
    shown = subprocess.run([automap, "explain", plan, model, "--json"], capture_output=True, text=True)
    if shown.returncode != 0:
        return row | {"error": shown.stderr.strip()[-200:]}
    explanation = json.loads(shown.stdout)
    row |= {"simulated": explanation["simulated"], "gain": 0.0, "change": ""}
    for text, change in changes(explanation):
        seconds = change.get("step_seconds")
        if seconds and change.get("fits"):
            gain = 1 - seconds / explanation["step_seconds"]
            if gain > row["gain"]:
                row |= {"gain": gain, "change": text}
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--automap", default="build/automap")
    parser.add_argument("--clusters", default="A,B,C,h100:4")
    parser.add_argument("--models", help="names, separated by commas (default: the zoo)")
    parser.add_argument("--out", help="the figures as JSON; rows that it has are kept")
    parser.add_argument("--before", help="an earlier --out")
    parser.add_argument("--limit", type=float, help="percent")
    parser.add_argument("--timeout", type=float, default=900)
    parser.add_argument("options", nargs="*", help="further options of search, after --")
    arguments = parser.parse_args()
    models = arguments.models.split(",") if arguments.models else sorted(os.listdir(ZOO))
    before = json.load(open(arguments.before)) if arguments.before else {}
    rows = json.load(open(arguments.out)) if arguments.out and os.path.exists(arguments.out) else {}
    worst = 0.0
    with tempfile.TemporaryDirectory() as folder:
        for model in models:
            path = find_model(model)
            for cluster in arguments.clusters.split(",") if path else []:
                key = f"{model} {cluster}"
                if key not in rows:
                    plan = os.path.join(folder, "plan.json")
                    rows[key] = run(arguments.automap, path, cluster, arguments.options, plan, arguments.timeout)
                    if arguments.out:
                        with open(arguments.out, "w") as file:
                            json.dump(rows, file, indent=1)
                row, old = rows[key], before.get(key, {})
                if "step_seconds" not in row:
                    print(f"{key:32} {row['error'][:80]}", flush=True)
                    continue
                worst = max(worst, row.get("gain", 0.0))
                line = f"{key:32} {row['step_seconds'] * 1e3:10.4f} ms {row['evaluations']:6} "
                line += f"{row['search_seconds']:8.2f} s"
                if "gain" in row:
                    line += f"  {row['gain'] * 100:5.2f} % {row['change']}"
                if "step_seconds" in old:
                    line += f"  [{100 * (row['step_seconds'] / old['step_seconds'] - 1):+.2f} % of the step,"
                    line += f" {old['evaluations']} evaluations, {old['search_seconds']:.2f} s,"
                    line += f" {old.get('gain', 0) * 100:.2f} %]"
                print(line, flush=True)
    print(f"fastest alternative: {worst * 100:.2f} % faster than its plan")
    return 1 if arguments.limit is not None and worst * 100 > arguments.limit else 0


if __name__ == "__main__":
    sys.exit(main())
