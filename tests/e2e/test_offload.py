# labels: cpu e2e
# timeout: 600
"""Optimizer state in the host's memory changes neither losses nor saved states, and has the predicted cost.

Plans of one stage, of shards (ZeRO 1), of micro-batches and of pipelines get `offloads_optimizer`. Losses and saved
states of 2 to 4 ranks are compared byte for byte with those of the same plan without it. The predicted peak is the
measured one. The price is compared with the bytes of the state over the rate of the cluster file. A checkpoint of one
form continues in the other.

Run as `AUTOMAP=build/automap python3 tests/e2e/test_offload.py [MODEL ...]`.
"""

import json
import math
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "launch"))
from program import MODELS, automap, losses, module, need_program, succeed

STEPS = 3
EVEN = ["--space", "pipeline", "--baseline", "even_pipeline"]
PLANS = {
    "data": ["--baseline", "data_parallel", "--mesh", "data=2"],
    "zero1": ["--baseline", "zero1", "--mesh", "data=4"],
    "megatron": ["--baseline", "megatron", "--mesh", "data=2,model=2"],
    "micro": ["--baseline", "zero1", "--mesh", "data=2", "--micro-batches", "2"],
    "1f1b": [*EVEN, "--mesh", "data=2", "--micro-batches", "2"],
    "interleaved": [*EVEN, "--mesh", "data=1", "--micro-batches", "2", "--schedule", "interleaved_1f1b"],
}
# Adam; clipping before it; factored second moments; a sign; master weights in f32; a loop over layers.
CASES = [("gpt2_tiny", list(PLANS)), ("adamw_tiny", ["data", "zero1", "1f1b"]), ("adafactor_tiny", ["data"]),
         ("lion_tiny", ["data"]), ("gpt2_bf16_tiny", ["zero1"]), ("llama_tiny", ["zero1"])]  # fmt: skip


def with_offload(plan, path, stages=None, cluster=None):
    """The plan with optimizer state of the stages (all, where none are named) in the host's memory."""
    root = {k: v for k, v in json.loads(plan.read_text()).items() if k not in ("parameters", "decisions")}
    for s, stage in enumerate(root["stages"]):
        if stages is None or s in stages:
            stage["offloads_optimizer"] = True
    path.write_text(json.dumps(root))
    return path


def source_of(name):
    folder = MODELS / name
    return ["--state", folder / "state.npz", "--data", folder / "data.npz"]


def simulated(plan, model, *more):
    return json.loads(succeed("simulate", plan, model, "--json", *more))


def host_copies(facts):
    kinds = facts["collectives"]
    return [kinds[k]["tensor_bytes"] for k in ("host_load", "host_store") if k in kinds]


def check_runs(name, plan, offloaded, folder):
    """Losses, final states, and the memory of the ranks."""
    model, source = module(name), source_of(name)
    saved = folder / "kept.safetensors", folder / "offloaded.safetensors"
    for path, of in zip(saved, (plan, offloaded)):
        succeed("run", model, "--plan", of, *source, "--steps", STEPS, "--save", path)
    assert saved[0].read_bytes() == saved[1].read_bytes(), f"{name}: the saved states differ"
    assert losses(model, plan, source, STEPS) == losses(model, offloaded, source, STEPS), f"{name}: losses"
    report = json.loads(succeed("run", model, "--plan", offloaded, *source, "--steps", 1, "--json").splitlines()[-1])
    kept, there = simulated(plan, model), simulated(offloaded, model)
    assert len(report["measured"]["devices"]) == len(there["devices"]), report
    for measured, device, before in zip(report["measured"]["devices"], there["devices"], kept["devices"]):
        assert measured["peak_bytes"] == device["peak_bytes"], f"{name}: {measured} and {device}"
        assert device["optimizer_bytes"] <= 64 * 8, f"{name}: {device['optimizer_bytes']} B of state are left"
        assert device["peak_bytes"] <= before["peak_bytes"], f"{name}: the peak rose"
        if before["optimizer_bytes"] > 64 * 8:
            assert 0 <= before["optimizer_bytes"] - device["host_bytes"] <= 64 * 8, f"{name}: {device}"
    assert math.isclose(*host_copies(there)), f"{name}: {host_copies(there)}"
    return there


def check_price(folder):
    """The copies take the latency of each and the bytes over the rate: of the device, or its part of the server's."""
    model, rate, latency = module("gpt2_tiny"), 1e6, 1e-3
    cluster = json.loads(succeed("cluster", "nominal:2", "--json"))
    cluster["device_types"]["host"].update({"host_bytes_per_second": rate, "host_latency_seconds": latency})
    file = folder / "cluster.json"
    file.write_text(json.dumps(cluster))
    plan = folder / "priced.json"
    succeed("search", model, "--cluster", file, *PLANS["data"], "-o", plan)
    offloaded = with_offload(plan, folder / "priced_there.json")
    kept, there = simulated(plan, model), simulated(offloaded, model)
    for kind in ("host_load", "host_store"):
        row = there["collectives"][kind]
        expected = row["count"] * latency + row["tensor_bytes"] / rate
        assert math.isclose(row["seconds"], expected, rel_tol=1e-6), (kind, row, expected)
    # The devices of this cluster do not overlap: every copy lengthens the step.
    added = sum(there["collectives"][kind]["seconds"] for kind in ("host_load", "host_store"))
    assert math.isclose(there["step_seconds"] - kept["step_seconds"], added, rel_tol=1e-6), (added, there, kept)
    # Both devices share the rate of the server.
    cluster["servers"][0]["host_bytes_per_second"] = rate
    file.write_text(json.dumps(cluster))
    shared = simulated(offloaded, model, "--cluster", file)["collectives"]["host_load"]
    assert math.isclose(shared["seconds"], shared["count"] * latency + 2 * shared["tensor_bytes"] / rate, rel_tol=1e-6)
    # A trace has the bytes of the copies, too.
    trace = folder / "trace.json"
    succeed("simulate", offloaded, model, "--trace", trace)
    for kind in ("host_load", "host_store"):
        slices = [e for e in json.loads(trace.read_text())["traceEvents"] if e.get("name") == kind and e["pid"] == 0]
        assert sum(e["args"]["bytes"] for e in slices) == there["collectives"][kind]["tensor_bytes"], kind
    # An overlapping device hides a part of them.
    cluster["device_types"]["host"]["overlaps_communication"] = True
    file.write_text(json.dumps(cluster))
    beside = simulated(offloaded, model, "--cluster", file)
    assert beside["step_seconds"] < kept["step_seconds"] + 3 * added and beside["devices"][0]["hidden_seconds"] > 0


def check_host_memory(folder):
    """A host that is too small, and a device type without a rate."""
    model, plan = module("gpt2_tiny"), folder / "zero1.json"
    offloaded = with_offload(plan, folder / "zero1_there.json")
    needed = simulated(offloaded, model)["host"]["needed_bytes"]
    cluster = json.loads(succeed("cluster", "nominal:4", "--json"))
    file = folder / "cluster.json"
    for memory, fits in ((int(needed / 0.9) + 2, True), (int(needed / 0.9) - 2, False), (0, False)):
        cluster["servers"][0]["host_memory_bytes"] = memory
        file.write_text(json.dumps(cluster))
        facts = simulated(offloaded, model, "--cluster", file)
        assert facts["fits"] == facts["host"]["fits"] == fits, (memory, facts["host"])
    cluster["device_types"] = {"unknown": cluster["device_types"]["host"]}
    cluster["servers"][0]["device_type"] = "unknown"
    file.write_text(json.dumps(cluster))
    refused = automap("simulate", offloaded, model, "--cluster", file)
    assert refused.returncode == 3 and "no host_bytes_per_second" in refused.stderr, refused
    assert refused.stderr.count("\n") == 1, refused.stderr


def check_refusals(folder):
    """Values that are no boolean, and targets that cannot run such a plan."""
    model, plan = module("gpt2_tiny"), folder / "data.json"
    offloaded = with_offload(plan, folder / "data_there.json")
    root = json.loads(offloaded.read_text())
    for value in (1, 0, "true", None, [True], {"optimizer": True}):
        root["stages"][0]["offloads_optimizer"] = value
        (folder / "bad.json").write_text(json.dumps(root))
        refused = automap("simulate", folder / "bad.json", model)
        assert refused.returncode == 3 and "expected true or false" in refused.stderr, (value, refused)
        assert refused.stderr.count("\n") == 1, refused.stderr
    # JAX has offloading for one stage and one micro-batch (test_export_jax.py). Megatron-LM has it for ZeRO 1 alone,
    # which data parallelism lacks.
    for target in ("hlo", "shardy", "torch", "megatron", "torchtitan"):
        refused = automap("export", offloaded, model, "--format", target, "-o", folder / "exported")
        assert refused.returncode == 4 and refused.stderr.count("\n") == 1, (target, refused)
    assert "Stage 0 keeps optimizer state in the host's memory" in succeed("explain", offloaded, model)
    assert "optimizer state in host memory" in succeed("diff", plan, offloaded, model)


def check_checkpoint(folder):
    """A run without offloading continues as one with it."""
    model, source, plan = module("gpt2_tiny"), source_of("gpt2_tiny"), folder / "zero1.json"
    offloaded = with_offload(plan, folder / "zero1_there.json")
    straight, continued = folder / "straight.safetensors", folder / "continued.safetensors"
    there = folder / "checkpoints"
    succeed("run", model, "--plan", plan, *source, "--steps", 4, "--save", straight)
    succeed("run", model, "--plan", plan, *source, "--steps", 2, "--checkpoint", there)
    succeed("run", model, "--plan", offloaded, *source, "--steps", 3, "--checkpoint", there, "--resume")
    succeed("run", model, "--plan", plan, *source, "--steps", 4, "--checkpoint", there, "--resume", "--save", continued)
    assert straight.read_bytes() == continued.read_bytes(), "a continued run differs"


def check_search(folder):
    """`--offload auto` finds a plan where no other one fits, and changes nothing elsewhere."""
    model, file, plan = module("adamw_tiny"), folder / "cluster.json", folder / "found.json"
    cluster = json.loads(succeed("cluster", "nominal:2", "--json"))
    cluster["servers"][0]["host_memory_bytes"] = 1 << 30

    def search(memory, *more):
        cluster["device_types"]["host"]["memory_bytes"] = memory
        file.write_text(json.dumps(cluster))
        done = automap("search", model, "--cluster", file, "--space", "single_stage", "--evaluations", 60, *more, "-o",
                       plan)  # fmt: skip
        return done, json.loads(plan.read_text()) if done.returncode == 0 else None

    memory, found = 60000, None
    while True:
        done, root = search(memory, "--offload", "none")
        assert done.returncode in (0, 4), done
        if done.returncode == 4:
            break
        assert not any(stage.get("offloads_optimizer") for stage in root["stages"]), root["stages"]
        memory, found = memory - 2000, root
    _, same = search(memory + 2000)
    for root in (found, same):
        root["search"]["settings"].pop("offload", None)
    assert same["stages"] == found["stages"] and same["search"]["evaluations"] == found["search"]["evaluations"]
    done, root = search(memory)
    assert done.returncode == 0 and "optimizer state in the host's memory" in done.stdout, done
    assert all(stage["offloads_optimizer"] for stage in root["stages"]), root["stages"]
    assert root["search"]["evaluations"] > 60 and simulated(plan, model)["fits"]
    assert simulated(plan, model)["host"]["needed_bytes"] == sum(d["host_bytes"] for d in root["predicted"]["devices"])
    one_device = losses(model, "none", source_of("adamw_tiny"), STEPS)
    for have, want in zip(losses(model, plan, source_of("adamw_tiny"), STEPS), one_device, strict=True):
        assert math.isclose(have, want, rel_tol=1e-5), (have, want)
    _, forced = search(1 << 30, "--offload", "optimizer")
    assert all(stage["offloads_optimizer"] for stage in forced["stages"]), forced["stages"]
    assert forced["search"]["settings"]["offload"] == "optimizer"
    # The bound of these plans holds: their steps are longer.
    assert forced["search"]["bound_seconds"] <= forced["predicted"]["step_seconds"]
    cluster["servers"][0]["host_memory_bytes"] = 1000
    for more in ([], ["--offload", "optimizer"]):
        done, _ = search(memory, *more)
        assert done.returncode == 4, done
    assert "in the memory of their host" in done.stderr and done.stderr.count("\n") == 1, done.stderr
    # Pipelines are found, too.
    cluster["servers"][0]["host_memory_bytes"] = 1 << 30
    cluster["device_types"]["host"]["memory_bytes"] = 1 << 30
    file.write_text(json.dumps(cluster))
    succeed("search", module("gpt2_tiny"), "--cluster", file, "--stages", 2, "--offload", "optimizer", "-o", plan)
    stages = json.loads(plan.read_text())["stages"]
    assert len(stages) == 2 and all(stage["offloads_optimizer"] for stage in stages), stages
    for words in (["--for", "jax"], ["--objective", "paper"], ["--init-plan", plan]):
        refused = automap("search", model, "--cluster", file, "--offload", "optimizer", *words)
        assert refused.returncode == 2 and "--offload optimizer and" in refused.stderr, (words, refused)


def main(names):
    need_program()
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        for name, plans in CASES:
            for kind in plans if not names or name in names else []:
                plan = folder / f"{kind}.json"
                ranks = 2 if kind in ("data", "micro", "interleaved") else 4
                options = [*PLANS[kind], "--cluster", f"nominal:{ranks}", "-o", plan]
                succeed("search", module(name), *options)
                check_runs(f"{name}", plan, with_offload(plan, folder / "there.json"), folder)
                if kind == "1f1b":  # one stage alone
                    some = with_offload(plan, folder / "some.json", stages=[1])
                    assert losses(module(name), plan, source_of(name), STEPS) == losses(
                        module(name), some, source_of(name), STEPS), name  # fmt: skip
                print(f"{name} {kind}: equal")
            if name == "gpt2_tiny" and (not names or name in names):
                check_refusals(folder)
                check_host_memory(folder)
                check_checkpoint(folder)
        check_price(folder)
        check_search(folder)
    print("prices, memory and refusals are right")


if __name__ == "__main__":
    main(sys.argv[1:])
