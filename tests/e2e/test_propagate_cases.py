"""Cases of `propagate --keep-shardings`: tests/data/propagate/*.hlo.

A line "// expect NAME SHARDING" gives the sharding of an instruction in the output, equal if the same
devices hold the same parts. A line "// refuse TEXT" gives a part of the message of a module that is
refused. A line "// options OPTIONS" takes the place of --keep-shardings. For every module that is accepted,
the output has the instructions of the input in their order, each with a sharding, given shardings stay, and
automap accepts the output.
"""
# labels: e2e
# cost: 3

import os
import pathlib
import re
import subprocess
import sys

SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SOURCE / "tests" / "oracle"))

import hlo_shardings as hlo  # noqa: E402

AUTOMAP = os.environ.get("AUTOMAP", str(SOURCE / "build" / "automap"))
failures = []


def check(path):
    text = path.read_text()
    expected = re.findall(r"^// expect (\S+) (\{.*\})\s*$", text, re.M)
    refused = re.findall(r"^// refuse (.*?)\s*$", text, re.M)
    if not expected and not refused:
        failures.append(f"{path.name}: no expectation")
    options = re.findall(r"^// options (.*?)\s*$", text, re.M) or ["--keep-shardings"]
    done = subprocess.run(
        [AUTOMAP, "propagate", str(path), *options[0].split()], capture_output=True, text=True, timeout=60
    )
    if refused:
        if done.returncode != 3 or refused[0] not in done.stderr:
            failures.append(f"{path.name}: exit code {done.returncode}, {done.stderr.strip()}")
        return
    if done.returncode != 0:
        failures.append(f"{path.name}: exit code {done.returncode}, {done.stderr.strip()}")
        return
    again = subprocess.run([AUTOMAP, "propagate", "-", "--keep-shardings"], input=done.stdout, capture_output=True,
                           text=True, timeout=60)
    if again.returncode != 0:
        failures.append(f"{path.name}: the output is refused: {again.stderr.strip()}")
    before, after = hlo.Module(re.sub(r"^\s*//.*$", "", text, flags=re.M)), hlo.Module(done.stdout)
    for computation, instructions in before.computations.items():
        names = [each.name for each in after.computations.get(computation, [])]
        if names != [each.name for each in instructions]:
            failures.append(f"{path.name}: {computation} has {names}")
    for each in after.all():
        if each.sharding is None:
            failures.append(f"{path.name}: {each.name} has no sharding")
    for name, sharding in expected:
        found = after.find(name)
        if not found or not hlo.same(hlo.canonical(found.sharding), hlo.canonical(sharding)):
            failures.append(f"{path.name}: {name}: expected {sharding}, got {found and found.sharding}")


cases = sorted((SOURCE / "tests" / "data" / "propagate").glob("*.hlo"))
for case in cases:
    check(case)
for failure in failures:
    print(failure)
print(f"{len(cases)} modules, {len(failures)} failures")
sys.exit(1 if failures or len(cases) < 10 else 0)
