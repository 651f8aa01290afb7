# labels: cpu e2e
# timeout: 120
"""Choices of devices on mixed clusters: quotas hold; slow devices are left out where that is faster, also with a small
limit of evaluations, and the plan trains as one device does; --objective cost is as cheap as the best of all numbers of
devices, searched one by one with quotas; the front has no plan that another one beats; mistakes are refused.

Run as `AUTOMAP=build/automap python3 tests/e2e/test_device_choice.py`.
"""

import itertools
import json
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "launch"))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench"))
import device_orders
from clusters import TYPES, write_cluster
from program import MODELS, automap, module, need_program

SERVERS = {"V100": [0, 1], "T4": [2, 3]}
SMALL = ("--evaluations", 100)


def write(path, **options):
    return write_cluster(path, [("V100", 2), ("T4", 2)], slower=1000, **options)


def search(name, cluster, plan, *options):
    """The search's JSON and the devices of the plan."""
    done = automap("search", module(name), "--cluster", cluster, "--json", "--quiet", "-o", plan, *options)
    assert done.returncode == 0, f"{' '.join(map(str, options))}: {done.returncode}\n{done.stderr}"
    stages = json.loads(plan.read_text())["stages"]
    return json.loads(done.stdout), sorted(device for stage in stages for device in stage["devices"])


def check_slow_devices(work):
    """Over a slow link the fast server alone is faster than all devices, and that plan trains as one device does."""
    cluster, plan, at = write(work / "slow.json", rate=1e4, prices=True), work / "plan.json", MODELS / "exact_linear"
    found, devices = search("exact_linear", cluster, plan)
    again, same = search("exact_linear", cluster, work / "again.json", "--init-plan", plan, "--evaluations", 8)
    assert same == devices and again["step_seconds"] <= found["step_seconds"], (
        f"--init-plan: {same}, {again['step_seconds']}")
    everything, _ = search("exact_linear", cluster, work / "all.json", "--mesh", "data=4")
    assert devices in ([0], [1], [0, 1]), f"plan on {devices}"
    assert found["step_seconds"] < everything["step_seconds"], (
        f"{found['step_seconds']}, all {everything['step_seconds']}")
    done = automap("run", module("exact_linear"), "--plan", plan, "--state", at / "state.npz", "--data",
                   at / "data.npz", "--steps", 3,
                   "--json", "--quiet")
    assert done.returncode == 0, done.stderr
    losses = [step["loss"] for step in map(json.loads, done.stdout.splitlines()) if "loss" in step]
    assert losses == json.loads((at / "losses.json").read_text())["losses"][:3], losses


def check_cost(work):
    """Every pair of numbers of devices by quotas, beside the objective and the front."""
    cluster, plan, prices = write(work / "prices.json", prices=True), work / "plan.json", {}
    for fast, slow in itertools.product((0, 1, 2), (0, 1, 2)):
        if fast + slow == 0:
            continue
        found, devices = search("mlp_tiny", cluster, plan, "--quota", f"V100={fast}", "--quota", f"t4={slow}", *SMALL)
        assert len(devices) <= fast + slow and set(devices) <= set(SERVERS["V100"][:fast] + SERVERS["T4"][:slow]), (
            devices)
        hourly = sum(TYPES["V100" if device < 2 else "T4"][3] for device in devices)
        assert abs(found["price_per_hour"] - hourly) < 1e-9, found["price_per_hour"]
        prices[fast, slow] = found["step_seconds"] * hourly / 3600
    found, devices = search("mlp_tiny", cluster, plan, "--objective", "cost")
    assert found["price_per_step"] <= 1.001 * min(prices.values()), f"{found['price_per_step']} on {devices}: {prices}"
    front = found["pareto"]
    assert [row["chosen"] for row in front].count(True) == 1 and front[-1]["chosen"], front
    for before, row in zip(front, front[1:]):
        assert before["step_seconds"] < row["step_seconds"] and before["price_per_step"] > row["price_per_step"], front
    fast, _ = search("mlp_tiny", cluster, plan, "--pareto")
    assert fast["pareto"][0]["chosen"] and fast["step_seconds"] == fast["pareto"][0]["step_seconds"], fast["pareto"]
    small, _ = search("mlp_tiny", cluster, plan, "--objective", "cost", "--evaluations", 12)
    assert len(small["pareto"]) > 1 and small["evaluations"] <= 12, small["pareto"]
    assert small["price_per_step"] <= 1.2 * found["price_per_step"], (
        f"{small['price_per_step']}, {found['price_per_step']}")
    fixed, _ = search("mlp_tiny", cluster, plan, "--pareto", "--mesh", "data=4")  # the front has one choice of devices
    assert [row["chosen"] for row in fixed["pareto"]] == [True], fixed["pareto"]


def check_small_limit(work):
    """A limit that ends before the trials of fewer devices has plans of the choice with the fastest baselines."""
    cluster, plan = str(work / "three.json"), work / "plan.json"
    device_orders.write_cluster(cluster, [("A100", 2), ("V100", 2), ("T4", 2)])
    fast, _ = search("vgg_tiny", cluster, plan, "--quota", "V100=0", "--quota", "T4=0", "--evaluations", 12)
    for limit in (60, 100):
        found, devices = search("vgg_tiny", cluster, plan, "--evaluations", limit)
        assert found["evaluations"] <= limit, found["evaluations"]
        assert found["step_seconds"] <= 1.001 * fast["step_seconds"], (
            f"{limit}: {found['step_seconds']} on {devices}, A100 alone {fast['step_seconds']}")
    # Baselines of three devices are 7 % faster here than those of four: the pipelines of four need the evaluations.
    device_orders.write_cluster(cluster, [("V100", 1), ("P100", 1), ("T4", 1), ("A100", 1)])
    few, many = (search("gpt2_tiny", cluster, plan, "--evaluations", limit)[0]["step_seconds"] for limit in (100, 150))
    assert few <= 1.01 * many, (few, many)


def check_mistakes(work):
    cluster, plan = write(work / "none.json"), work / "plan.json"
    for text, options in (("no price of V100", ("--objective", "cost")), ("expected TYPE=N", ("--quota", "V100")),
                          ("no such device type (expected one of V100, T4); did you mean V100?",
                           ("--quota", "V1000=1")),
                          ("--quota V100=2 and --quota v100=1: expected one quota",
                           ("--quota", "V100=2", "--quota", "v100=1")),
                          ("no device", ("--quota", "V100=0", "--quota", "T4=0")),
                          ("decides on the devices itself", ("--pareto", "--keep-shardings"))):
        done = automap("search", module("mlp"), "--cluster", cluster, "-o", plan, *options)
        assert done.returncode == 2 and text in done.stderr, f"{options}: {done.returncode} {done.stderr}"


def main():
    need_program()
    with tempfile.TemporaryDirectory() as directory:
        for check in (check_slow_devices, check_cost, check_small_limit, check_mistakes):
            check(pathlib.Path(directory))
            print(f"{check.__name__}: ok", flush=True)


if __name__ == "__main__":
    main()
