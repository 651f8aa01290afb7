# labels: cpu e2e
# timeout: 120
"""Orders of mixed servers: the default plan does not depend on the order of the cluster file, is within 1 % of the best
plan of all orders of two and three servers, and of the best order of five with few evaluations. It is simulated to the
same step on the user's cluster, keeps pins to devices, starts from a given plan, and trains as one device does.
--keep-order keeps the file's order.

Run as `AUTOMAP=build/automap python3 tests/e2e/test_device_order.py`.
"""

import itertools
import json
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "launch"))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench"))
import device_orders
from clusters import write_cluster
from program import MODELS, automap, module, need_program, succeed

SMALL = ("--stages", 3, "--evaluations", 150)


def write(path, servers, slower=1000):
    return write_cluster(path, [(name, 1) for name in servers], slower=slower)


def search(name, cluster, plan, *options):
    found = json.loads(succeed("search", module(name), "--cluster", cluster, "--json", "--quiet", "-o", plan, *options))
    return found["step_seconds"], json.loads(plan.read_text())


def devices_of(plan):
    return [device for stage in plan["stages"] for device in stage["devices"]]


def check_orders(work):
    """All orders of three different servers."""
    plan, kept, found = work / "plan.json", {}, {}
    for order in itertools.permutations(("V100", "P100", "T4")):
        cluster = write(work / "orders.json", order)
        kept[order], fixed = search("gpt2_tiny", cluster, plan, "--keep-order", *SMALL)
        assert devices_of(fixed) == [0, 1, 2], f"--keep-order: {devices_of(fixed)}"
        if len(found) == 2:
            continue
        seconds, chosen = search("gpt2_tiny", cluster, plan, *SMALL)
        found[order] = seconds, [[order[d] for d in stage["devices"]] for stage in chosen["stages"]]
        simulated = json.loads(succeed("simulate", plan, module("gpt2_tiny"), "--json", "--quiet"))["step_seconds"]
        assert abs(simulated / seconds - 1) < 1e-9, f"{order}: {seconds} s, simulated {simulated} s"
    first = next(iter(found.values()))
    assert all(value == first for value in found.values()), f"the order of the file matters: {found}"
    assert first[0] < 1.01 * min(kept.values()), f"{first} is slower than the best of {kept}"
    assert max(kept.values()) > 1.01 * min(kept.values()), f"orders do not differ: {kept}"


def check_own_climbs(work):
    """Each order of two servers has a climb of its own: swaps of devices lead from the better order, whose plans begin
    slower, to the other one."""
    cluster, plan, servers, kept = str(work / "two.json"), work / "plan.json", (("V100", 2), ("A100", 1)), {}
    for order in itertools.permutations(servers):
        kept[order], _ = search("vit_tiny", device_orders.write_cluster(cluster, order), plan, "--keep-order")
    seconds, _ = search("vit_tiny", cluster, plan)
    assert seconds < 1.01 * min(kept.values()), f"{seconds} is slower than the best of {kept}"
    assert max(kept.values()) > 1.03 * min(kept.values()), f"orders do not differ: {kept}"


def check_small_budget(work):
    """A small budget reaches the plan of one stage: pipelines of other orders come after it, and none of them twice."""
    cluster, plan, limit = str(work / "five.json"), work / "plan.json", ("--evaluations", 150)
    best = [(name, 1) for name in ("V100", "A100", "A100", "V100", "T4")]  # of all 30 orders with this limit
    kept, _ = search("t5_tiny", device_orders.write_cluster(cluster, best, 300), plan, "--keep-order", *limit)
    seconds, _ = search("t5_tiny", device_orders.write_cluster(cluster, sorted(best), 300), plan, *limit)
    assert seconds < 1.01 * kept, f"{seconds} s, and {kept} s with the best order kept"


def check_devices(work):
    """Pins to devices, a given plan, and a training run."""
    cluster, plan, other = write(work / "three.json", ("T4", "V100", "P100")), work / "plan.json", work / "other.json"
    _, pinned = search("gpt2_tiny", cluster, plan, "--pin", "layers/0=devices(2)", "--pin", "layers/1=devices(T4)",
                       *SMALL)
    first = pinned["stages"][0]["devices"]
    assert first == [2], f"layers/0=devices(2): stage 0 is on {first}"
    seconds, _ = search("gpt2_tiny", cluster, plan, "--keep-order", *SMALL)
    better, _ = search("gpt2_tiny", cluster, other, "--init-plan", plan, "--evaluations", 8)
    assert better <= seconds, f"--init-plan: {better} s from {seconds} s"
    at = MODELS / "exact_linear"
    _, chosen = search("exact_linear", write(work / "train.json", ("T4", "V100", "P100"), 1e6), plan)
    assert devices_of(chosen) != [0, 1, 2], f"exact_linear: {devices_of(chosen)}"
    lines = succeed("run", module("exact_linear"), "--plan", plan, "--state", at / "state.npz", "--data",
                    at / "data.npz", "--steps", 3,
                "--json", "--quiet")
    losses = [step["loss"] for step in map(json.loads, lines.splitlines()) if "loss" in step]
    assert losses == json.loads((at / "losses.json").read_text())["losses"][:3], losses


def main():
    need_program()
    with tempfile.TemporaryDirectory() as directory:
        for check in (check_orders, check_own_climbs, check_small_budget, check_devices):
            check(pathlib.Path(directory))
            print(f"{check.__name__}: ok", flush=True)


if __name__ == "__main__":
    main()
