# labels: cpu e2e
# timeout: 300
"""Searches of one stage give mixed devices unequal shares: never slower than the same plan with equal ones nor than the
one-stage plan of a search of all spaces, by every searcher, on meshes that are given, on either axis, within memory; so
do searches of all spaces with few evaluations; equal shares stay where they are best; and a plan with unequal shares
trains exactly as one device does.

Run as `AUTOMAP=build/automap python3 tests/e2e/test_shares.py`.
"""

import json
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "launch"))
from clusters import TYPES, write_cluster
from program import MODELS, automap, module, succeed

MEMORY = {"V100": 32 * 10**9}
FAST = {"rate": 6.2e9, "latency": 5e-6, "memory": MEMORY}


def search(name, cluster, plan, *options):
    """Seconds, and [(size, shares)] of the plan's mesh."""
    found = json.loads(succeed("search", module(name), "--cluster", cluster, "--json", "--quiet", "-o", plan, *options))
    stages = json.loads(plan.read_text())["stages"]
    assert len(stages) == 1 or "--space" not in options, f"{name}: {len(stages)} stages"
    mesh = [(axis["size"], axis["shares"]) for axis in stages[0]["mesh"] if axis["size"] > 1]
    return found, mesh if len(stages) == 1 else None


def with_shares(name, plan, shares_of):
    """Simulated seconds of the plan with other shares: shares_of(size of the axis)."""
    changed = json.loads(plan.read_text())
    for key in ("parameters", "decisions"):
        changed.pop(key, None)
    for axis in changed["stages"][0]["mesh"]:
        axis["shares"] = shares_of(axis["size"]) if axis["size"] > 1 else None
    other = plan.with_name("equal.plan.json")
    other.write_text(json.dumps(changed))
    return json.loads(succeed("simulate", other, module(name), "--json", "--quiet"))["step_seconds"]


def with_equal_shares(name, plan):
    return with_shares(name, plan, lambda size: None)


def with_peak_shares(name, cluster, plan, units):
    """The same with shares by FLOP/s, in units of an example: Whale's algorithm 1 where memory does not matter."""
    peaks = [TYPES[row["device_type"]][2] for row in json.loads(cluster.read_text())["servers"]
             for _ in range(row["devices"])]
    counts = [int(units * peak / sum(peaks)) for peak in peaks]
    for k in range(units - sum(counts)):
        counts[k] += 1
    return with_shares(name, plan, lambda size: [count / units for count in counts] if size == len(peaks) else None)


def unequal(mesh):
    return any(shares for _, shares in mesh)


def check_against_equal(work):
    """Pairs, servers and three types: quicker than equal shares, the larger share to the faster device."""
    clusters = [write_cluster(work / "pair.json", [("V100", 1), ("T4", 1)], **FAST),
                write_cluster(work / "servers.json", [("V100", 2), ("P100", 2)], **FAST),
                write_cluster(work / "three.json", [("V100", 1), ("P100", 1), ("T4", 1)], **FAST)]
    for cluster in clusters:
        plan = work / "plan.json"
        found, mesh = search("vgg19", cluster, plan, "--space", "single_stage")
        assert unequal(mesh), f"{cluster.stem}: {mesh}"
        assert found["step_seconds"] < 0.97 * with_equal_shares("vgg19", plan), (
            f"{cluster.stem}: hardly quicker than equal shares")
        assert found["step_seconds"] <= with_peak_shares("vgg19", cluster, plan, 64), (
            f"{cluster.stem}: slower than shares by FLOP/s")
        for _, shares in mesh:
            assert not shares or shares == sorted(shares, reverse=True), f"{cluster.stem}: {shares}"
        both, stages = search("vgg19", cluster, work / "auto.json")
        # auto has further evaluations, which may improve the same plan slightly.
        assert stages is None or found["step_seconds"] <= 1.001 * both["step_seconds"], (
            f"{cluster.stem}: auto has a quicker plan of one stage")
        assert found["bound_seconds"] <= found["step_seconds"], f"{cluster.stem}: bound {found['bound_seconds']}"


def check_stale_entries(work):
    """Weights that pay in shards with equal shares alone are left out together: no plan of narrower options is
    faster."""
    cluster, plan = write_cluster(work / "stale.json", [("V100", 4), ("P100", 4)], rate=6e9, inside=12e9,
                                  latency=5e-6), work / "plan.json"
    found, _ = search("vgg19", cluster, plan)
    narrow, _ = search("vgg19", cluster, work / "narrow.json", "--keep-order", "--no-overrides", "--no-polish",
                       "--no-seeds")
    assert found["step_seconds"] <= narrow["step_seconds"], f"{found['step_seconds']} after {narrow['step_seconds']}"


def check_equal_types(work):
    """Devices of two types with equal figures have as fast a plan as devices of one, by screening and overrides."""
    TYPES["W100"] = TYPES["V100"]
    steps = []
    for name in ("V100", "W100"):
        cluster = write_cluster(work / "equal.json", [("V100", 4), (name, 4)], rate=6e9, inside=12e9, latency=5e-6)
        steps.append(search("vgg19", cluster, work / "plan.json", "--space", "single_stage")[0]["step_seconds"])
    assert steps[1] <= 1.02 * steps[0], f"one type {steps[0]}, two types {steps[1]}"


def check_small_budget(work):
    """Few evaluations are enough for shares of a baseline, some more for shares of the search's plans."""
    cluster, plan = write_cluster(work / "few.json", [("V100", 2), ("T4", 2)], **FAST), work / "plan.json"
    found, mesh = search("vgg19", cluster, plan, "--mesh", "data=4", "--evaluations", 3)
    assert found["evaluations"] <= 3 and unequal(mesh), f"{found['evaluations']} evaluations: {mesh}"
    found, _ = search("vgg19", cluster, plan, "--mesh", "data=4", "--evaluations", 8)
    improved = found["found_seconds"]["improvement"]
    assert found["step_seconds"] <= improved < 0.9 * found["baselines"]["data_parallel"], found
    pair = write_cluster(work / "few_pair.json", [("V100", 1), ("T4", 1)], **FAST)
    of_baseline, _ = search("vgg19", pair, plan, "--space", "single_stage", "--evaluations", 10)
    of_search, mesh = search("vgg19", pair, plan, "--space", "single_stage", "--evaluations", 150)
    assert unequal(mesh) and of_search["step_seconds"] < 0.9 * of_baseline["step_seconds"], (
        f"a plan of the search has no shares: {mesh}")


def check_small_budget_of_auto(work):
    """A search of all spaces is not slower than one of one stage, nor than a baseline near the fastest, for few
    evaluations."""
    cluster, plan = write_cluster(work / "few_auto.json", [("V100", 2), ("T4", 2)], slower=2000, rate=6.2e9,
                                  latency=2.5e-5), work / "plan.json"
    given = work / "given.json"
    baseline = search("gpt2_tiny", cluster, given, "--baseline", "zero1")[0]["step_seconds"]
    before = float("inf")
    for limit in (1, 4, 12):
        found, mesh = search("gpt2_tiny", cluster, plan, "--evaluations", limit)
        assert found["evaluations"] <= limit and found["step_seconds"] <= before, (
            f"{limit}: {found['step_seconds']} after {before}")
        one_stage = search("gpt2_tiny", cluster, work / "one.json", "--space", "single_stage", "--evaluations",
                           limit)[0]
        assert found["step_seconds"] <= one_stage["step_seconds"], (
            f"{limit}: {found['step_seconds']}, one stage {one_stage['step_seconds']}")
        assert mesh is None or unequal(mesh), f"{limit}: {mesh}"
        before = found["step_seconds"]
    assert before <= baseline, f"{before}, zero1 {baseline}"
    slow = write_cluster(work / "slow_auto.json", [("V100", 2), ("T4", 2)], slower=1000)
    for name, on, limit in (("vgg_tiny", slow, 60), ("gpt2_tiny", slow, 100), ("moe_tiny", "A", 60)):
        found, _ = search(name, on, plan, "--evaluations", limit)
        one_stage = search(name, on, work / "one.json", "--space", "single_stage", "--evaluations", limit)[0]
        assert found["step_seconds"] <= 1.01 * one_stage["step_seconds"], (
            f"{name}, {limit}: {found['step_seconds']}, one stage {one_stage['step_seconds']}")
    default, _ = search("vgg_tiny", slow, plan)
    for limit in (default["evaluations"], default["evaluations"] + 100):
        found, _ = search("vgg_tiny", slow, plan, "--evaluations", limit)
        assert found["step_seconds"] <= default["step_seconds"], (
            f"{limit}: {found['step_seconds']}, default {default['step_seconds']}")
    found, _ = search("gpt2_tiny", cluster, plan, "--evaluations", 1, "--init-plan", given)
    assert found["evaluations"] <= 1 and found["step_seconds"] <= baseline, (
        f"the given plan is not priced: {found['step_seconds']}")
    assert not unequal(search("gpt2_tiny", cluster, plan, "--even", "--evaluations", 4)[1] or [])


def check_tables_that_a_budget_cuts(work):
    """Pipelines by some of the tables of a round are not those of the round: a budget that cuts tables has no such
    pipelines."""
    cluster, plan = write_cluster(work / "cut.json", [("V100", 4), ("T4", 4)], slower=2000, rate=1e11,
                                  latency=4e-6), work / "plan.json"
    before = float("inf")
    for limit in range(6, 9):
        found, _ = search("vgg_tiny", cluster, plan, "--no-seeds", "--evaluations", limit)
        assert found["step_seconds"] <= before, f"{limit}: {found['step_seconds']} after {before}"
        before = found["step_seconds"]


def check_searchers(work):
    """Every searcher, a mesh, a pin, and the model axis alone across types; --even has equal shares."""
    cluster, plan = write_cluster(work / "slow.json", [("V100", 1), ("T4", 1)], slower=1000, **FAST), work / "plan.json"
    ways = [["--searcher", name] for name in ("auto", "dqn", "anneal", "greedy", "exact", "random")]
    ways += [["--baseline", "data_parallel"], ["--mesh", "data=2"], ["--mesh", "data=1,model=2"],
             ["--pin", "*[1]*bias*=-", "--mesh", "data=2,model=1"]]
    for options in ways:
        found, mesh = search("mlp_tiny", cluster, plan, *options)
        assert found["step_seconds"] <= with_equal_shares("mlp_tiny", plan), f"{options}: slower than equal shares"
        is_random = "random" in options
        assert is_random or unequal(mesh), f"{options}: {mesh}"
        assert found["bound"] != "exact", f"{options}: shares are not enumerated"
    assert not unequal(search("mlp_tiny", cluster, plan, "--even")[1])
    for limit in (1, 9, 60):
        assert search("mlp_tiny", cluster, plan, "--mesh", "data=2", "--evaluations", limit)[0]["evaluations"] <= limit


def check_equal_is_best(work):
    """Checks a case where launches take all the time, and one where devices do not differ."""
    for servers in ([("V100", 1), ("T4", 1)], [("V100", 2)]):
        _, mesh = search("mlp_tiny", write_cluster(work / "fast.json", servers, slower=0.001, **FAST),
                         work / "plan.json", "--space", "single_stage")
        assert not unequal(mesh), f"{servers}: {mesh}"


def check_memory(work):
    """A device that lacks memory for its equal share has a smaller one."""
    plan, cluster = work / "plan.json", work / "memory.json"
    options = ("--mesh", "data=2", "--space", "single_stage", "--no-exceptions", "--micro-batches", 1)
    write_cluster(cluster, [("V100", 1), ("P100", 1)], slower=1000, **FAST)
    search("gpt2_tiny", cluster, plan, *options, "--baseline", "data_parallel")
    equal = with_equal_shares("gpt2_tiny", plan)
    needed = max(d["peak_bytes"]
                 for d in json.loads(succeed("simulate", plan.with_name("equal.plan.json"), module("gpt2_tiny"),
                                             "--json",
                                                         "--quiet"))["devices"])
    write_cluster(cluster, [("V100", 1), ("P100", 1)], slower=1000,
                  **{**FAST, "memory": {**MEMORY, "P100": int(0.7 * needed / 0.9)}})
    found, mesh = search("gpt2_tiny", cluster, plan, *options, "--baseline", "data_parallel")
    assert unequal(mesh) and found["step_seconds"] > 0 and equal > 0, mesh
    fits = json.loads(succeed("simulate", plan, module("gpt2_tiny"), "--json", "--quiet"))
    assert fits["fits"], "the plan does not fit"


def check_scarce_memory(work):
    """A bound also where one micro-batch does not fit, and a baseline chooses their number."""
    plan, cluster = work / "plan.json", work / "scarce.json"
    servers = [("V100", 2), ("P100", 2)]
    write_cluster(cluster, servers, slower=1000, **FAST)
    search("gpt2_tiny", cluster, plan, "--space", "single_stage")
    simulated = json.loads(succeed("simulate", plan, module("gpt2_tiny"), "--json", "--quiet"))
    peak = max(device["peak_bytes"] for device in simulated["devices"])
    memory = dict.fromkeys(("V100", "P100"), int(0.65 * peak))
    write_cluster(cluster, servers, slower=1000, **{**FAST, "memory": memory})
    found, _ = search("gpt2_tiny", cluster, plan, "--space", "single_stage")
    assert json.loads(plan.read_text())["micro_batches"] > 1, "one micro-batch fits"
    assert 0 < (found["bound_seconds"] or 0) <= found["step_seconds"], f"bound {found['bound_seconds']}"


def check_training(work):
    """Integer-valued models: losses of a plan with unequal shares are those of one device, to the last bit."""
    cluster, plan = write_cluster(work / "train.json", [("V100", 1), ("T4", 2)], slower=1e6, **FAST), work / "plan.json"
    for name, axes in (("exact_linear", "data=3"), ("exact_gather", "data=3"), ("exact_linear", "data=1,model=3")):
        at = MODELS / name
        _, mesh = search(name, cluster, plan, "--mesh", axes)
        assert unequal(mesh), f"{name}: {mesh}"
        lines = succeed("run", module(name), "--plan", plan, "--state", at / "state.npz", "--data", at / "data.npz",
                        "--steps", 5, "--json",
                    "--quiet")
        losses = [step["loss"] for step in map(json.loads, lines.splitlines()) if "loss" in step]
        assert losses == json.loads((at / "losses.json").read_text())["losses"][:5], f"{name}: {losses}"


def main():
    with tempfile.TemporaryDirectory() as directory:
        work = pathlib.Path(directory)
        for check in (check_against_equal, check_stale_entries, check_equal_types, check_small_budget,
                      check_small_budget_of_auto, check_tables_that_a_budget_cuts,
                      check_searchers, check_equal_is_best, check_memory, check_scarce_memory, check_training):
            check(work)
            print(f"{check.__name__}: ok", flush=True)


if __name__ == "__main__":
    main()
