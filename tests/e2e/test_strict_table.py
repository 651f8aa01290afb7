"""Auto-MAP's table of operator partitioning, by `automap groups --strict`.

How many weight dimensions can be split at once and in how many linkage groups: 111 in 33 groups for
T5 with 6 + 6 layers, 432 in 120 groups for both shapes of 24 + 24, and 5 for VGG-19, where the
group of fc2's columns excludes two others. Sizes of the groups: an attention is one group of 4, an
MLP one of 3, a table its own.
"""
# labels: cpu e2e
# timeout: 120

import collections
import json
import os
import pathlib
import subprocess
import sys

MODELS = pathlib.Path(__file__).resolve().parents[2] / "datasets" / "models"
AUTOMAP = os.environ.get("AUTOMAP")

if not AUTOMAP or not os.path.exists(AUTOMAP):
    print("skipped: no automap program")
    sys.exit(77)

# model: partitioned dimensions, {size of group: how many}, pairs of groups that exclude one another
TABLE = {
    "t5_paper_6": (111, {4: 18, 3: 12, 1: 3}, 0),
    "t5_paper_24_3b": (432, {4: 72, 3: 48}, 0),
    "t5_paper_24_11b": (432, {4: 72, 3: 48}, 0),
    "vgg19": (5, {3: 2, 2: 1}, 2),
}


def strict_groups(model):
    path = next(MODELS.joinpath(model).glob("model.hlo.pb*"))
    done = subprocess.run([AUTOMAP, "groups", path, "--strict", "--axis-size", "8", "--json"],
                          capture_output=True, text=True)
    assert done.returncode == 0, f"groups {model}: {done.returncode} {done.stderr}"
    return json.loads(done.stdout)


def check(model, partitioned, sizes, exclusive_pairs):
    found = strict_groups(model)
    groups = {group["id"]: group for group in found["groups"]}
    assert (found["mode"], found["axis_size"]) == ("strict", 8), f"{model}: {found['mode']}"
    assert collections.Counter(group["size"] for group in groups.values()) == sizes, f"{model}: other sizes"
    assert all(group["size"] == len(group["members"]) for group in groups.values()), f"{model}: sizes are wrong"

    pairs = {frozenset((a, b)) for a, group in groups.items() for b in group["excludes"]}
    assert len(pairs) == exclusive_pairs, f"{model}: {len(pairs)} exclusive pairs, not {exclusive_pairs}"

    best = found["best"]
    assert best["partitioned"] == partitioned, f"{model}: {best['partitioned']} partitioned, not {partitioned}"
    assert sum(groups[chosen]["size"] for chosen in best["groups"]) == partitioned, f"{model}: best does not add up"
    assert not any(pair <= set(best["groups"]) for pair in pairs), f"{model}: best takes an exclusive pair"

    members = collections.Counter((member["parameter"], member["dimension"])
                                  for group in groups.values() for member in group["members"])
    assert max(members.values()) == 1, f"{model}: a dimension is in two groups"
    assert not members.keys() & {(row["parameter"], row["dimension"]) for row in found["rejected"]}, \
        f"{model}: a dimension is in a group and rejected"
    print(f"{model}: {best['partitioned']} dimensions in {len(best['groups'])} of {len(groups)} groups")


for name, row in TABLE.items():
    check(name, *row)
