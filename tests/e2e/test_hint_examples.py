# labels: cpu e2e
# timeout: 300
"""The files of examples/hints: each row of their table is planned with its stages, and trains with the losses of one
device.

Run as `AUTOMAP=build/automap python3 tests/e2e/test_hint_examples.py`.
"""

import json
import pathlib
import re
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "launch"))
from program import MODELS, automap

HINTS = pathlib.Path(__file__).resolve().parents[2] / "examples" / "hints"
STEPS = 2


def losses_of(model, plan):
    done = automap("run", model, "--plan", plan, "--steps", STEPS, "--state", "random", "--json")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return [row["loss"] for row in rows if "loss" in row]


def stages_of(hints):
    named = [hint["stage"] + 1 for hint in hints.get("hints", []) if "stage" in hint]
    return max([hints.get("stages", 1), *named])


def check_example(name, model, cluster, plan):
    hints = json.loads((HINTS / name).read_text())
    done = automap("search", model, "--cluster", cluster, "--hints", HINTS / name, "--evaluations", 30, "-o", plan)
    assert done.returncode == 0, f"{name}: {done.returncode} {done.stderr}"
    found = json.loads(plan.read_text())
    assert len(found["stages"]) == stages_of(hints), f"{name}: {len(found['stages'])} stages"
    pairs = list(zip(losses_of(model, plan), losses_of(model, "none"), strict=True))
    assert len(pairs) == STEPS and all(abs(a - b) <= 1e-4 * abs(b) for a, b in pairs), f"{name}: {pairs}"


def main():
    rows = re.findall(r"^\| (\w+\.json) \| (\w+) \| ([\w:]+) \|", (HINTS / "README.md").read_text(), re.M)
    assert {row[0] for row in rows} == {path.name for path in HINTS.glob("*.json")}, rows
    with tempfile.TemporaryDirectory() as folder:
        for name, model, cluster in rows:
            check_example(name, MODELS / model / "model.hlo.pb", cluster, pathlib.Path(folder) / "plan.json")
    print(f"{len(rows)} examples are planned and trained")


main()
