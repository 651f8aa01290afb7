# labels: cpu e2e
# timeout: 600
# cost: 30
"""Every command ends with exit code 0 or 1 and at most one line when an allocation fails.

tests/lowmem/failing_allocator.c makes the allocations of a command fail one after the other, in a forked child
each. The program automap_tight is automap with an arena that gives every request a block of its own, so that a
failure reaches every allocation of the code. By default some call stacks of a few commands are tried;
AUTOMAP_LONG=1 tries all call stacks of all commands.

Usage: test_low_memory.py [NAME...]   (names of COMMANDS, or run; default: those of the short or the long form)
"""

import ctypes
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "launch"))
from clusters import write_cluster

SOURCE = os.environ.get("AUTOMAP_SOURCE", os.path.join(HERE, "..", ".."))
BUILD = os.environ.get("AUTOMAP_BUILD", os.path.join(SOURCE, "build"))
TIGHT = os.environ.get("AUTOMAP_TIGHT", os.path.join(BUILD, "automap_tight"))
MODULE = os.environ.get("AUTOMAP_FAILING_ALLOCATOR", os.path.join(BUILD, "libfailing_allocator.so"))
IS_LONG = os.environ.get("AUTOMAP_LONG") == "1"
MODELS = os.path.join(SOURCE, "datasets", "models")
MLP = os.path.join(MODELS, "mlp_tiny", "model.hlo.pb")
STATE = os.path.join(MODELS, "mlp_tiny", "state.npz")
AGENT = os.path.join(SOURCE, "datasets", "agents", "pipeline.safetensors")
BERT = os.path.join(MODELS, "bert_tiny", "model.hlo.pb")
IMPORTS = os.path.join(SOURCE, "tests", "data", "imports")
SHARDED = os.path.join(SOURCE, "tests", "data", "propagate", "branches.hlo")
SMALL = ["--cluster", "nominal:4", "--evaluations", "3", "-o", "out.plan.json"]

# name: (arguments, share of the call stacks in the short form; 0: the long form only)
COMMANDS = {
    "info": (["info", MLP], 4),
    "info-json": (["info", MLP, "--json"], 0),
    "convert-text": (["convert", MLP, "out.hlo.txt"], 8),
    "convert-json": (["convert", MLP, "out.hlo.json"], 0),
    "convert-gz": (["convert", MLP, "out.hlo.pb.gz"], 0),
    "convert-zst": (["convert", MLP, "out.hlo.txt.zst"], 0),
    "convert-bf16": (["convert", MLP, "out.hlo.txt", "--mixed-precision", "bf16"], 8),
    "read-text": (["convert", "model.hlo.txt", "out.hlo.pb"], 8),
    "read-json": (["convert", "model.hlo.json", "out.hlo.pb"], 0),
    "groups": (["groups", MLP], 6),
    "groups-strict": (["groups", MLP, "--strict", "--json"], 0),
    "propagate": (["propagate", MLP, "--mesh", "data=2", "--pin", "*x=data,-"], 6),
    "lower": (["lower", MLP, "--plan", "plan.json"], 10),
    "lower-pipeline": (["lower", MLP, "--plan", "pipeline.json", "--device", "2"], 0),
    "cluster": (["cluster", "nominal:4", "--json"], 1),
    "cluster-file": (["cluster", "cluster.json"], 2),
    "import-host": (["cluster", "--import", os.path.join(IMPORTS, "hostfile"), "--device-type", "A100-80GB",
                     "--between", "infiniband-200", "--json"], 4),
    "import-hwloc": (["cluster", "--import", os.path.join(IMPORTS, "hwloc.xml"), "--device-type", "T4", "--json"], 4),
    "import-nccl": (["cluster", "--import", os.path.join(IMPORTS, "nccl.xml"), "--device-type", "T4", "--json"], 0),
    "import-matrix": (["cluster", "--import", os.path.join(IMPORTS, "matrix.txt"), "--device-type", "T4", "--json"], 0),
    "search": (["search", MLP, *SMALL], 60),
    "search-greedy": (["search", MLP, *SMALL, "--searcher", "greedy", "--space", "single_stage"], 0),
    "search-anneal": (["search", MLP, *SMALL, "--searcher", "anneal"], 0),
    "search-random": (["search", MLP, *SMALL, "--searcher", "random"], 0),
    "search-exhaustive": (["search", MLP, "--cluster", "nominal:2", "-o", "out.plan.json", "--searcher", "exhaustive",
                           "--space", "data"], 0),
    "search-paper": (["search", MLP, *SMALL, "--objective", "paper", "--space", "operator"], 0),
    "search-baseline": (["search", MLP, *SMALL, "--baseline", "zero3", "--json"], 0),
    "search-pipeline": (["search", MLP, *SMALL, "--space", "hybrid", "--micro-batches", "2"], 0),
    "simulate": (["simulate", "plan.json", MLP, "--verbose", "--trace", "t.json"], 20),
    "simulate-pipeline": (["simulate", "pipeline.json", MLP, "--json"], 0),
    "sweep": (["simulate", "--sweep", MLP, "--cluster", "nominal:2", "--plan", "out.plan.json"], 0),
    "explain": (["explain", "plan.json", MLP, "--evaluations", "2"], 0),
    "explain-html": (["explain", "pipeline.json", MLP, "--evaluations", "2", "--html", "out.html"], 0),
    "export-shardy": (["export", "plan.json", MLP, "--format", "shardy"], 0),
    "export-megatron": (["export", "zero1.json", BERT, "--format", "megatron"], 0),
    "explain-json": (["explain", "plan.json", MLP, "--evaluations", "2", "--json"], 0),
    "export-jax": (["export", "plan.json", MLP, "--format", "jax"], 12),
    "export-hlo": (["export", "plan.json", MLP, "--format", "hlo"], 0),
    "export-dtensor": (["export", "plan.json", MLP, "--format", "dtensor"], 0),
    "export-dtensor-pipeline": (["export", "pipeline.json", MLP, "--format", "dtensor"], 0),
    "agent-generate": (["agent", "generate", "-o", "out.safetensors", "--count", "2"], 0),
    "agent-generate-npz": (["agent", "generate", "-o", "out.npz", "--count", "2"], 0),
    "agent-train": (["agent", "train", "-o", "out.safetensors", "--episodes", "2", "--report", "1", "--checkpoint",
                     "c.safetensors"], 0),
    "agent-evaluate": (["agent", "evaluate", AGENT, "--count", "1", "--width", "2"], 0),
    "agent-evaluate-module": (["agent", "evaluate", AGENT, MLP, "--cluster", "nominal:2", "--stages", "2",
                               "--width", "2"], 0),
    "convert-npz": (["convert", "ck", "out.npz"], 0),
    "convert-safetensors": (["convert", "ck", "out.safetensors"], 0),
    "search-bert": (["search", BERT, *SMALL], 0),
    "search-hints": (["search", MLP, "--cluster", "nominal:4", "--evaluations", "8", "-o", "out.plan.json", "--hints",
                      "hints.json", "--pin", "params/2=value(data,-)"], 0),
    "search-mixed": (["search", MLP, "--cluster", "mixed.json", "--quota", "T4=1", "--pareto", "--evaluations", "3",
                      "--json",
                      "-o", "out.plan.json"], 0),
    "search-also": (["search", MLP, *SMALL, "--also", "torch=other.json"], 0),
    "search-for": (["search", BERT, *SMALL, "--for", "torchtitan"], 0),
    "compare": (["compare", "pipeline.json", MLP, "--trace", "run.json"], 40),
    "compare-json": (["compare", "pipeline.json", MLP, "--trace", "run.json", "--json", "-o", "out.json"], 0),
    "diff": (["diff", "plan.json", "pipeline.json", MLP, "--json"], 0),
    "export-torchtitan": (["export", "zero3.json", BERT, "--format", "torchtitan"], 12),
    "export-torchtitan-json": (["export", "zero3.json", BERT, "--format", "torchtitan", "--json", "-o", "out.json"], 0),
    "search-fused": (["search", BERT, *SMALL, "--attention", "fused"], 0),
    "search-degrees": (["search", MLP, "--cluster", "nominal:4", "--evaluations", "40", "-o", "out.plan.json",
                        "--pipeline", "2", "--data", "2"], 0),
    "search-policy": (["search", MLP, *SMALL, "--policy", "policy.safetensors"], 0),
    "agent-train-search": (["agent", "train-search", MLP, "--problems", "2", "-o", "out.safetensors"], 0),
    "propagate-kept": (["propagate", SHARDED, "--keep-shardings"], 6),
    "info-unplanned": (["info", "mixed.hlo.txt", "--json"], 2),
    "convert-meshes": (["convert", "meshes.hlo.txt", "out.hlo.txt"], 2),
    "export-open": (["export", "plan.json", MLP, "--format", "shardy", "--spelling", "open"], 0),
    "simulate-slow": (["simulate", "pipeline.json", MLP, "--jitter", "0.1", "--seed", "3", "--slow", "1=2"], 0),
    "import-tests": (["cluster", "--import", os.path.join(IMPORTS, "all_reduce.json"), "--device-type", "T4", "--json"],
                     0),
    "import-system": (["cluster", "--import", os.path.join(IMPORTS, "simumax.json"), "--device-type", "T4", "--json"],
                      0),
    "import-aceso": (["cluster", "--import", os.path.join(IMPORTS, "p2p_inter_node.csv"), "--device-type", "T4",
                      "--json"],
                     0),
    "import-operators": (["cluster", "--import", os.path.join(IMPORTS, "hostfile"), "--import",
                          os.path.join(IMPORTS, "gpt_tiny_mbs2_tp1_algo0.csv"), "--device-type", "V100", "--json"], 0),
    "import-layers": (["cluster", "--import", os.path.join(IMPORTS, "network_coeffs.json"), "--import",
                       os.path.join(IMPORTS, "sailor_profile.json"), "--import",
                       os.path.join(IMPORTS, "training_config.json"), "--device-type", "A100-40GB", "--json"], 0),
    "published": (["published", "runs.csv", "--json"], 0),
    "published-row": (["published", "runs.csv", "--row", "2", "--write-module", "m.hlo.pb", "--write-plan", "out.json"],
                      0),
}
HINTS = {"stages": 2, "hints": [{"scope": "params/0", "stage": 0},
                                {"parameter": "params/1/kernel", "sharding": "-,model"}]}
MIXED = """HloModule m

ENTRY e {
  x = f16[2] parameter(0)
  y = f32[2] parameter(1)
  ROOT r = f32[2] add(x, y)
}
"""
MESHES = """HloModule m, num_partitions=4

ENTRY e {
  x = f32[4,4] parameter(0), sharding={mesh['a'=2,'b'=2] [{'a'}, {}], replicated={'b'}}
  ROOT r = f32[4,4] add(x, x), sharding={mesh['a'=2,'b'=2], unreduced}
}
"""
RUN = dict(source="paper", group="g", model="gpt", layers=2, hidden=16, heads=2, vocab=32, sequence=8, dtype="f16",
           device="A100-80GB", devices=2, global_batch=4, micro_batch=2, data=1, tensor=1, pipeline=2, schedule="1f1b",
           outcome="ok", step_seconds=0.01)  # fmt: skip


def prepare(folder):
    """Makes the input files of the commands in the folder."""
    def automap(*arguments):
        subprocess.run([TIGHT, *arguments], cwd=folder, check=True, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL)
    automap("convert", MLP, "model.hlo.txt")
    automap("convert", MLP, "model.hlo.json")
    automap("search", MLP, "--cluster", "nominal:4", "--baseline", "zero3", "-o", "plan.json")
    automap("search", BERT, "--cluster", "nominal:4", "--baseline", "zero1", "-o", "zero1.json")
    automap("search", MLP, "--cluster", "nominal:4", "--baseline", "even_pipeline", "-o", "pipeline.json")
    automap("search", BERT, "--cluster", "nominal:4", "--baseline", "zero3", "-o", "zero3.json")
    automap("cluster", "nominal:4", "--json", "-o", "cluster.json")
    write_cluster(pathlib.Path(folder, "mixed.json"), [("V100", 1), ("T4", 1)], prices=True)
    automap("agent", "train-search", MLP, "--problems", "2", "-o", "policy.safetensors")
    pathlib.Path(folder, "mixed.hlo.txt").write_text(MIXED)
    pathlib.Path(folder, "meshes.hlo.txt").write_text(MESHES)
    pathlib.Path(folder, "hints.json").write_text(json.dumps(HINTS))
    pathlib.Path(folder, "runs.csv").write_text("\n".join(",".join(map(str, row)) for row in (RUN.keys(), RUN.values()))
                                                + "\n")
    automap("run", MLP, "--plan", "plan.json", "--state", STATE, "--data", STATE.replace("state", "data"), "--steps",
            "2",
            "--checkpoint", "ck")
    automap("run", MLP, "--plan", "pipeline.json", "--state", STATE, "--data", STATE.replace("state", "data"),
            "--steps", "2",
            "--trace", "run.json")


def output_of(arguments):
    """The text file that a command writes, or an empty string."""
    return next((word for word in arguments if word.startswith("out.") and word.endswith((".json", ".txt"))), "")


def fix_addresses():
    """Switches address randomization off, so that each run of the test tries the same call stacks."""
    ctypes.CDLL(None).personality(0x0040000)


def run_threads(folder):
    """Lets single allocations of trainings fail, whose threads forbid a fork; returns trials and bad ends."""
    report = os.path.join(folder, "run.report")
    state = os.path.join(os.path.dirname(MLP), "state.npz")
    data = os.path.join(os.path.dirname(MLP), "data.npz")
    tried = bad = 0
    for plan in ("none", "plan.json", "pipeline.json"):
        command = [TIGHT, "run", MLP, "--plan", plan, "--state", state, "--data", data, "--steps", "2", "--save",
                   "s.safetensors", "--outputs", "o.npz", "--checkpoint", "ck", "--every", "1", "--eval", MLP,
                   "--eval-data", data, "--eval-every", "1"]

        def train(at, on):
            shutil.rmtree(os.path.join(folder, "ck"), ignore_errors=True)
            environment = dict(os.environ, LD_PRELOAD=MODULE, FAILING_REPORT=report, FAILING_AT=str(at),
                               FAILING_ON=str(on))
            return subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL,
                                  stderr=subprocess.PIPE, text=True, timeout=60)
        assert train(0, 0).returncode == 0
        total = int(open(report).read().split()[2])
        trials = 150 if IS_LONG else 8
        for k in range(trials):
            at = 1 + total * (2 * k + 1) // (2 * trials)
            for on in (0, 1):
                result = train(at, on)
                tried += 1
                lines = sum("warning:" not in line for line in result.stderr.splitlines())
                if result.returncode not in (0, 1) or (result.returncode == 1 and lines != 1):
                    bad += 1
                    print(f"run --plan {plan}, allocation {at}, {on}: exit {result.returncode}: {result.stderr[-300:]}")
    return tried, bad


def run(folder, name, arguments, share):
    """Runs one command; returns its counts and the report's lines about bad ends."""
    report = os.path.join(folder, name + ".report")
    environment = dict(os.environ, LD_PRELOAD=MODULE, FAILING_REPORT=report, FAILING_SHARE=str(share),
                       AUTOMAP_THREADS="1", FAILING_DEPTH=os.environ.get("FAILING_DEPTH", "6"))
    if output_of(arguments):
        environment["FAILING_OUTPUT"] = output_of(arguments)
    result = subprocess.run([TIGHT, *arguments], cwd=folder, env=environment, stdout=subprocess.DEVNULL,
                            stderr=subprocess.PIPE, text=True, preexec_fn=fix_addresses)
    lines = open(report).read().splitlines()
    assert result.returncode == 0, f"{name}: exit code {result.returncode}: {result.stderr[-300:]}"
    assert lines and lines[-1].startswith("COUNTS"), f"{name}: the report has no counts"
    left = [file for file in os.listdir(folder) if ".part" in file]
    assert not left, f"{name}: temporary files are left: {left}"
    words = lines[-1].split()
    return dict(tried=int(words[4]), bad=int(words[6])), lines[:-1]


def main():
    names = sys.argv[1:] or [name for name, (_, share) in COMMANDS.items() if share or IS_LONG]
    failures = 0
    tried = 0
    with tempfile.TemporaryDirectory() as folder:
        prepare(folder)
        for name in [name for name in names if name != "run"]:
            arguments, share = COMMANDS[name]
            counts, lines = run(folder, name, arguments, int(os.environ.get("FAILING_SHARE", 1))
                                if IS_LONG else max(share, 1))
            assert counts["tried"] > 0, f"{name}: nothing failed"
            tried += counts["tried"]
            failures += counts["bad"]
            print(f"{name}: {counts['tried']} failures tried, {counts['bad']} bad ends", flush=True)
            if counts["bad"]:
                print("\n".join(lines[:int(os.environ.get('FAILING_LINES', '60'))]), flush=True)
        if not sys.argv[1:] or "run" in names:
            more, bad = run_threads(folder)
            print(f"run: {more} failures tried, {bad} bad ends", flush=True)
            tried, failures = tried + more, failures + bad
    print(f"{tried} failing allocations, {failures} bad ends")
    return failures > 0


if __name__ == "__main__":
    sys.exit(main())
