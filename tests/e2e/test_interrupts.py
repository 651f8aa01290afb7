# labels: cpu e2e
# timeout: 300
"""A search that is interrupted at any moment ends with exit 130 and the best plan so far.

Ten moments by chance for each model, from right after the start on: the plan that was written reads back and simulates, and
the search ends soon after the interrupt. AUTOMAP_FULL=1 takes every model of datasets/models.

Run as `AUTOMAP=build/automap python3 tests/e2e/test_interrupts.py [MODEL ...]`.
"""

import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

AUTOMAP = os.environ.get("AUTOMAP", "build/automap")
MODELS = pathlib.Path(__file__).resolve().parents[2] / "datasets" / "models"
FULL = os.environ.get("AUTOMAP_FULL") == "1"
SAMPLE = ["gpt2_tiny", "moe_tiny", "t5_tiny"]
MOMENTS = 10
PATIENCE_SECONDS = 20  # on a crowded machine; a search that takes no notice has evaluations for hours


def interrupt(model, plan, moment):
    """Exit code, seconds that the search went on after the interrupt, and what it said."""
    words = [AUTOMAP, "search", model, "--cluster", "C", "--evaluations", "100000000", "-o", plan]
    search = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    time.sleep(moment)
    begin = time.monotonic()
    search.send_signal(signal.SIGINT)
    try:
        _, said = search.communicate(timeout=PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        search.kill()
        search.communicate()
        return None, PATIENCE_SECONDS, "it went on"
    return search.returncode, time.monotonic() - begin, said


def check_model(name, chance, work):
    files = sorted((MODELS / name).glob("model.hlo.pb*"))
    plan, failures, longest = work / f"{name}.json", [], 0
    for k in range(MOMENTS):
        # The program has caught the signal some milliseconds after its start.
        moment = 0.05 + chance.random() * (0.1 if k < 3 else 1)
        plan.unlink(missing_ok=True)
        code, seconds, said = interrupt(files[0], plan, moment)
        longest = max(longest, seconds)
        if code == -signal.SIGINT and k < 3:
            continue  # so early that the program had not begun
        if code != 130:
            failures.append(f"{name}, interrupted after {moment:.3f} s: exit {code}: {said.strip()[-200:]}")
            continue
        result = subprocess.run([AUTOMAP, "simulate", plan, files[0], "--json"], capture_output=True, text=True)
        if result.returncode != 0:
            failures.append(f"{name}, interrupted after {moment:.3f} s: the plan does not simulate: {result.stderr}")
        elif json.loads(result.stdout)["step_seconds"] != json.load(plan.open())["predicted"]["step_seconds"]:
            failures.append(f"{name}: the plan's step is not what it simulates to")
    print(f"{name}: {MOMENTS} interrupts, at most {longest:.2f} s until the end")
    return failures


def main():
    names = sys.argv[1:] or (sorted(p.name for p in MODELS.iterdir()) if FULL else SAMPLE)
    chance = random.Random(9)
    failures = []
    with tempfile.TemporaryDirectory() as work:
        for name in names:
            failures += check_model(name, chance, pathlib.Path(work))
    for failure in failures:
        print("FAIL", failure)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
