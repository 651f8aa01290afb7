# labels: cpu e2e
# timeout: 300
"""The collectives of well-known plans are those of the literature.

The table of bench/README.md is made anew, row by row: which tensors each plan moves by which collective,
before they are merged into buckets, and how many bytes they have. Rules that hold for any figures are checked, too:
data parallelism reduces every gradient and the loss and does nothing else, and so on.

Run as `AUTOMAP=build/automap python3 tests/e2e/test_collectives_table.py`; with --print it prints the rows.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
from collections import Counter

AUTOMAP = os.environ.get("AUTOMAP", "build/automap")
ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCS = ROOT / "bench" / "README.md"
KINDS = ["all_reduce", "reduce_scatter", "all_gather", "all_to_all"]

# (module, plan, mesh on cluster): a baseline's name, or the list of an axis. Every mesh has one axis that splits.
CASES = [
    ("gpt2", "data_parallel", "data=32", "C"),
    ("gpt2", "zero1", "data=32", "C"),
    ("gpt2", "zero2", "data=32", "C"),
    ("gpt2", "zero3", "data=32", "C"),
    ("gpt2", "[sequence]", "data=32", "C"),
    ("gpt2_bf16", "data_parallel", "data=32", "C"),
    ("t5_paper_6", "data_parallel", "data=8", "nominal:8"),
    ("t5_paper_6", "zero3", "data=8", "nominal:8"),
    ("t5_paper_6", "megatron", "model=8", "nominal:8"),
    ("t5_paper_6", "megatron_sequence", "model=8", "nominal:8"),
    ("t5_paper_6", "[sequence]", "data=8", "nominal:8"),
    ("vgg19", "data_parallel", "data=8", "nominal:8"),
    ("vgg19", "[fc1, fc2, batch]", "data=8", "nominal:8"),
    ("moe_tiny", "data_parallel", "data=4", "nominal:4"),
    ("moe_tiny", "[batch, experts]", "data=4", "nominal:4"),
    ("fused_tiny", "data_parallel", "data=4", "nominal:4"),
    ("fused_tiny", "megatron", "model=3", "nominal:3"),
    ("fused_tiny", "megatron", "model=4", "nominal:4"),
    ("llama_tiny", "megatron", "model=2", "nominal:2"),
    ("accumulated_tiny", "zero1", "data=4", "nominal:4"),
    ("accumulated_tiny", "zero2", "data=4", "nominal:4"),
    ("accumulated_tiny", "zero3", "data=4", "nominal:4"),
]

# Modules whose products are of 16 bits.
SUMS_IN_F32 = ("gpt2_bf16", "llama_tiny")

# Words of lists: parameters' dimensions, by the ends of their paths, that are in the classes.
WORDS = {
    ("gpt2", "sequence"): [("['position_table']", 0)],
    ("t5_paper_6", "sequence"): [("shifted", 1), ("inputs", 1)],
    ("vgg19", "fc1"): [("['params']['fc1']['bias']", 0)],
    ("vgg19", "fc2"): [("['params']['fc2']['bias']", 0)],
    ("moe_tiny", "experts"): [("['params']['in']['kernel']", 0)],
}


def automap(*arguments):
    run = subprocess.run([AUTOMAP, *map(str, arguments)], capture_output=True, text=True)
    assert run.returncode == 0, f"automap {' '.join(map(str, arguments))}: {run.stderr}"
    return run.stdout


def path_of(module):
    return next((ROOT / "datasets" / "models" / module).glob("model.hlo.pb*"))


def parameters(module):
    return json.loads(automap("info", path_of(module), "--json"))["parameters"]


def class_of(module, path, dimension):
    """The class of a parameter's dimension: a group's, or where no weight is in it named by the parameter."""
    for group in json.loads(automap("groups", path_of(module), "--axis-size", 2, "--json"))["groups"]:
        for member in group["members"]:
            if member["path"].endswith(path) and member["dimension"] == dimension:
                return group["class"]
    found = [p["number"] for p in parameters(module) if p["path"].endswith(path)]
    assert len(found) == 1, f"{module}: {path}"
    return ["parameter", found[0], dimension]


def baseline_plan(module, baseline, mesh, cluster, at):
    automap("search", path_of(module), "--cluster", cluster, "--mesh", mesh, "--baseline", baseline, "-o", at,
            "--quiet")


def make_plan(module, plan, mesh, cluster, at):
    if not plan.startswith("["):
        return baseline_plan(module, plan, mesh, cluster, at)
    baseline_plan(module, "zero1", mesh, cluster, at)  # whose list begins with the batch
    document = json.loads(at.read_text())
    lists = document["stages"][0]["axis_priorities"]
    ((axis, entries),) = lists.items()
    lists[axis] = []
    for word in plan.strip("[]").split(", "):
        if word == "batch":
            lists[axis].append(entries[0])
            continue
        for path, dimension in WORDS[module, word]:
            lists[axis].append({"class": class_of(module, path, dimension), "kind": "compute"})
    del document["parameters"], document["decisions"]  # what the lists give, which these no longer are
    at.write_text(json.dumps(document))


def collectives(module, at):
    """Tensors and their bytes by kind of collective."""
    tensors, sizes = Counter(), Counter()
    for row in json.loads(automap("explain", at, path_of(module), "--json"))["collectives"]:
        tensors[row["kind"]] += row["tensors"]
        sizes[row["kind"]] += row["bytes"]
    assert set(tensors) <= set(KINDS), f"{module}: {set(tensors)}"
    return tensors, sizes


def in_words(size):
    return f"{size / 1e6:.1f} MB" if size >= 1e5 else f"{size / 1e3:.1f} kB" if size >= 1e3 else f"{size:.0f} B"


def row_of(case, tensors, sizes):
    module, plan, mesh, _ = case
    cells = [f"{tensors[kind]}, {in_words(sizes[kind])}" if tensors[kind] else "" for kind in KINDS]
    return "| " + " | ".join([module, plan, mesh.replace("=", " = "), *cells]) + " |"


def check_plans(results):
    """Checks each plan without the table."""
    tensors = {key: value[0] for key, value in results.items()}
    sizes = {key: value[1] for key, value in results.items()}
    for (module, plan, mesh), counts in tensors.items():
        weights = sum(p["role"] == "weight" for p in parameters(module))
        if module in SUMS_IN_F32:  # added up in f32 and rounded in shards, which are gathered
            assert counts["reduce_scatter"] == counts["all_gather"] > 0, f"{module} {plan}: {counts}"
            size = sizes[module, plan, mesh]
            assert size["reduce_scatter"] == 2 * size["all_gather"], f"{module} {plan}: {size}"
        if plan == "data_parallel" and module in SUMS_IN_F32:
            sums = counts["all_reduce"] + counts["reduce_scatter"]
            assert sums == weights + 1, f"{module}: {counts}, {weights} weights"
        elif plan == "data_parallel" and module != "moe_tiny":
            sums = 2 if module == "fused_tiny" else 1  # of its masked mean, and of the others' loss
            assert counts == {"all_reduce": weights + sums}, f"{module}: {counts}, {weights} weights"
        if plan in ("zero1", "zero2") and module == "gpt2":
            expected = {"all_reduce": 1, "reduce_scatter": weights, "all_gather": weights}
            assert counts == expected, f"{module} {plan}: {counts}, {weights} weights"
        if plan == "zero3" and module != "accumulated_tiny":
            assert counts["all_reduce"] == 1 and counts["reduce_scatter"] == weights, f"{module} zero3: {counts}"
        if plan == "[sequence]":
            assert counts["all_to_all"] == 0, f"{module}: {counts}"
        if (module, plan) == ("fused_tiny", "megatron"):
            assert set(counts) == {"all_reduce"}, f"{module}: {counts}"
    megatron, sequence = ("t5_paper_6", "megatron", "model=8"), ("t5_paper_6", "megatron_sequence", "model=8")
    assert tensors[megatron] == {"all_reduce": 68}, tensors[megatron]
    assert tensors[sequence]["reduce_scatter"] == 68, tensors[sequence]
    for kind in ("reduce_scatter", "all_gather"):
        ratio = sizes[sequence][kind] / sizes[megatron]["all_reduce"]
        assert abs(ratio - 1) < 1e-3, f"{kind}: {ratio} of the all_reduces' bytes"
    # Krizhevsky's trick: fully connected layers by their outputs, the rest by the batch.
    once = lambda key, n: sum((n - 1) / n * (2 if kind == "all_reduce" else 1) * size
                              for kind, size in sizes[key].items())
    assert once(("vgg19", "[fc1, fc2, batch]", "data=8"), 8) < 0.16 * once(("vgg19", "data_parallel", "data=8"), 8)


def main():
    rows, results = [], {}
    with tempfile.TemporaryDirectory() as directory:
        at = pathlib.Path(directory) / "plan.json"
        for case in CASES:
            make_plan(*case, at)
            results[case[:3]] = collectives(case[0], at)
            rows.append(row_of(case, *results[case[:3]]))
    if "--print" in sys.argv:
        print("| module | plan | mesh |", " | ".join(KINDS), "|")
        print("|---" * (3 + len(KINDS)) + "|", *rows, sep="\n")
        return 0
    check_plans(results)
    documented = DOCS.read_text()
    missing = [row for row in rows if row not in documented]
    for row in missing:
        print(f"not in {DOCS.name}: {row}")
    print(f"{len(rows) - len(missing)} of {len(rows)} rows as documented")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
