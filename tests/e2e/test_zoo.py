"""The zoo is what datasets/README.md says, and its canonical form hides what does nothing.

1. Every module under datasets/models has a row in the table, and every row its module: parameters,
   weights and the sum of their ranks, instructions, and examples in a batch, counted anew.
2. Dead code, copies, identities, and elements taken out of tuples that were just made are put into
   small models at every other instruction: the canonical hash stays the same, and so do the losses
   of a run, bit for bit.

Run as `AUTOMAP=build/automap python3 tests/e2e/test_zoo.py`.
"""
# labels: cpu e2e
# timeout: 300

import json
import math
import os
import pathlib
import re
import subprocess
import sys
import tempfile

AUTOMAP = os.environ.get("AUTOMAP", "build/automap")
DATASETS = pathlib.Path(__file__).resolve().parents[2] / "datasets"
MODELS = DATASETS / "models"
COUNTED = re.compile(r"^\s+(ROOT )?%?[\w.-]+ = ")
INSTRUCTION = re.compile(r"^\s+(ROOT )?(%?[\w.-]+) = (\([^=]*?\)|\S+) ([\w-]+)\(")
PADDED = ["mlp_tiny", "exact_gather", "llama_tiny", "dropout_tiny", "resnet_tiny", "moe_sorted_tiny", "flax_tiny"]


def automap(*arguments):
    run = subprocess.run([AUTOMAP, *map(str, arguments)], capture_output=True, text=True)
    assert run.returncode == 0, f"automap {' '.join(map(str, arguments))}: {run.returncode}\n{run.stderr}"
    return run.stdout


def module_of(name):
    return next((MODELS / name).glob("model.hlo.pb*"))


def text_of(path, directory):
    text = pathlib.Path(directory) / "module.hlo.txt"
    automap("convert", path, "-o", text)
    return text.read_text()


def table():
    """Cells of each row of the README's table of models, by name."""
    rows = re.findall(r"^\| `(\w+)` \| .* \| ([\d,]+) \| (\d+) / (\d+) \| ([\d,]+) \| [\w ]+ \| (\d+) \|$",
                      (DATASETS / "README.md").read_text(), re.MULTILINE)
    return {name: [int(cell.replace(",", "")) for cell in cells] for name, *cells in rows}


def counted(name, directory):
    """[parameters, weights, their dimensions, instructions, batch] of a committed module."""
    parameters = json.loads(automap("info", module_of(name), "--json"))["parameters"]
    shapes = {role: [p["shape"] for p in parameters if p["role"] == role] for role in ("weight", "constant", "data")}
    weights, values = shapes["weight"], shapes["weight"] or shapes["constant"]
    lines = text_of(module_of(name), directory).splitlines()
    return [sum(map(math.prod, values)), len(weights), sum(map(len, weights)),
            sum(bool(COUNTED.match(line)) for line in lines), shapes["data"][0][0]]


def check_table(directory):
    rows, names = table(), {path.parent.name for path in MODELS.glob("*/model.roles.json")}
    yield "README.md", [f"rows and modules differ in {sorted(names ^ set(rows))}"] if names != set(rows) else []
    for name in sorted(names & set(rows)):
        found = counted(name, directory)
        yield name, [] if found == rows[name] else [f"README.md says {rows[name]}, found {found}"]


def with_nothing_added(text):
    """The module with instructions beside every other one of its arrays that change nothing: what
    came after reads a copy of a copy, or an element of a tuple."""
    result, renamed, count = [], {}, 0
    for line in text.splitlines():
        if not line.startswith(" "):
            renamed = {}  # names are those of one computation
        match = INSTRUCTION.match(line)
        if match and renamed:
            head, operands = line[: match.end()], line[match.end() :]
            line = head + re.sub(r"%?[\w.-]+", lambda word: renamed.get(word[0], word[0]), operands.split(")")[0])
            line += ")" + operands.split(")", 1)[1] if ")" in operands else ""
        result.append(line)
        if not match or match[1] or match[3].startswith("(") or "token" in match[3]:
            continue
        count += 1
        name, shape = match[2], match[3]
        if count % 4 == 0:
            result += [f"  {name}.a = {shape} copy({name})", f"  {name}.b = {shape} reshape({name}.a)",
                       f"  {name}.dead = {shape} negate({name}.a)" if "pred" not in shape else ""]
            renamed[name] = f"{name}.b"
        elif count % 4 == 2:
            result += [f"  {name}.a = ({shape}, {shape}) tuple({name}, {name})",
                       f"  {name}.b = {shape} get-tuple-element({name}.a), index=1"]
            renamed[name] = f"{name}.b"
    return "\n".join(result) + "\n", count // 4


def losses(path, name):
    lines = automap("run", path, "--roles", MODELS / name / "model.roles.json", "--plan", "none", "--state",
                    MODELS / name / "state.npz", "--data", MODELS / name / "data.npz", "--steps", 3, "--json")
    return [line["loss"] for line in map(json.loads, lines.splitlines()) if "loss" in line]


def check_simplification(directory):
    for name in PADDED:
        padded = pathlib.Path(directory) / "padded.hlo.txt"
        text, added = with_nothing_added(text_of(module_of(name), directory))
        padded.write_text(text)
        hashes = [json.loads(automap("info", path, "--roles", MODELS / name / "model.roles.json", "--json"))["sha256"]
                  for path in (module_of(name), padded)]
        found = [] if added > 10 else [f"only {added} places"]
        found += [] if hashes[0] == hashes[1] else ["another hash with instructions added that do nothing"]
        found += [] if losses(module_of(name), name) == losses(padded, name) else ["other losses"]
        yield f"{name} padded", found


def main():
    failures = checked = 0
    with tempfile.TemporaryDirectory() as directory:
        for check in (check_table(directory), check_simplification(directory)):
            for name, found in check:
                checked += 1
                failures += bool(found)
                for text in found:
                    print(f"FAILED {name}: {text}")
    print(f"{checked} checks, {failures} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
