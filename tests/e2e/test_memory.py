# labels: cpu e2e
# timeout: 900
# cost: 15
"""Measured memory is the predicted one, to the byte, on every device.

Small models are planned by the baselines, by data, tensor, ZeRO and pipeline parallelism with all schedules, with and
without micro-batches, and run for a few steps. Each rank allocates as many bytes for its values as the plan file
predicts, and the process does not grow. Without AUTOMAP_FULL some models are run.

Run as `AUTOMAP=build/automap python3 tests/e2e/test_memory.py [MODEL ...]`.
"""

import json
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "launch"))
from program import FULL, MODELS, automap

SAMPLE = ["mlp_tiny", "gpt2_tiny", "lstm_tiny", "llama_tiny", "vgg_tiny"]
PLANS = [
    ["--cluster", "nominal:4", "--baseline", "data_parallel"],
    ["--cluster", "nominal:3", "--baseline", "data_parallel"],  # parts of different sizes
    ["--cluster", "nominal:6", "--mesh", "data=3", "--space", "pipeline", "--baseline", "even_pipeline",
     "--micro-batches", "4"],
    ["--cluster", "nominal:4", "--mesh", "data=2,model=2", "--baseline", "megatron"],
    ["--cluster", "nominal:8", "--baseline", "zero1"],
    ["--cluster", "nominal:4", "--baseline", "zero2"],
    ["--cluster", "nominal:8", "--baseline", "zero3"],
    ["--cluster", "nominal:2", "--baseline", "data_parallel", "--micro-batches", "4"],
    ["--cluster", "nominal:4", "--mesh", "data=2", "--space", "pipeline", "--baseline", "even_pipeline"],
    ["--cluster", "nominal:4", "--mesh", "data=1", "--space", "pipeline", "--baseline", "even_pipeline",
     "--micro-batches", "4"],
    ["--cluster", "nominal:2", "--mesh", "data=1", "--space", "pipeline", "--baseline", "even_pipeline",
     "--micro-batches", "8", "--schedule", "gpipe"],
    ["--cluster", "nominal:4", "--mesh", "data=2", "--space", "pipeline", "--baseline", "even_pipeline",
     "--micro-batches", "4", "--schedule", "zb_h1"],
    ["--cluster", "nominal:2", "--mesh", "data=1", "--space", "pipeline", "--baseline", "even_pipeline",
     "--micro-batches", "4", "--schedule", "interleaved_1f1b"],
]
STEPS = 20 if FULL else 4


def check_plan(model, options, plan):
    """Returns whether the model has such a plan."""
    folder = MODELS / model
    search = automap("search", folder / "model.hlo.pb", "--searcher", "baseline", *options, "--quiet", "-o", plan)
    if search.returncode == 4:
        return False
    assert search.returncode == 0, f"{model} {options}: {search.stderr}"
    run = automap("run", folder / "model.hlo.pb", "--plan", plan, "--state", folder / "state.npz", "--data",
                  folder / "data.npz", "--steps", STEPS, "--json")
    assert run.returncode == 0, f"{model} {options}: {run.stderr}"
    report = json.loads(run.stdout.splitlines()[-1])
    measured = [device["peak_bytes"] for device in report["measured"]["devices"]]
    predicted = [device["peak_bytes"] for device in json.loads(plan.read_text())["predicted"]["devices"]]
    assert measured == predicted, f"{model} {options}: {measured} measured, {predicted} predicted"
    check_slots(model, options, plan, report["memory"]["channel_bytes"] if "memory" in report else 0)
    return True


def check_slots(model, options, plan, measured):
    """Slots of transfers are predicted, and the largest tensors are parts of the peak."""
    simulation = automap("simulate", plan, MODELS / model / "model.hlo.pb", "--json")
    assert simulation.returncode == 0, simulation.stderr
    found = json.loads(simulation.stdout)
    slots = sum(device["channel_bytes"] for device in found["devices"])
    assert slots == measured, f"{model} {options}: {measured} bytes of slots, {slots} predicted"
    told = [device.get("channel_bytes", 0) for device in json.loads(plan.read_text())["predicted"]["devices"]]
    assert told == [device["channel_bytes"] for device in found["devices"]], (
        f"{model} {options}: the plan file says {told}")
    fullest = max(found["devices"], key=lambda device: device["peak_bytes"] + device["channel_bytes"])
    tensors = found["memory_peak"]["tensors"]
    assert 0 < len(tensors) <= 10 and found["memory_peak"]["operator"], found["memory_peak"]
    assert sum(tensor["bytes"] for tensor in tensors) <= fullest["peak_bytes"], tensors
    assert [tensor["bytes"] for tensor in tensors] == sorted((tensor["bytes"] for tensor in tensors), reverse=True)
    assert fullest["in_flight_bytes"] + fullest["collective_bytes"] <= fullest["activation_bytes"], fullest
    if model == "gpt2_tiny" and "--micro-batches" in options and "even_pipeline" in options:
        assert fullest["in_flight_bytes"] > 0, f"{model} {options}: nothing is kept for the backward pass"


def main():
    names = sys.argv[1:] or (sorted(path.name for path in MODELS.iterdir() if path.name.endswith("_tiny"))
                             if FULL else SAMPLE)
    count = refused = 0
    with tempfile.TemporaryDirectory() as directory:
        for model in names:
            plans = [check_plan(model, options, pathlib.Path(directory) / "plan.json") for options in PLANS]
            assert sum(plans) >= 3, f"{model}: only {sum(plans)} plans"
            count += sum(plans)
            refused += len(plans) - sum(plans)
    print(f"{count} plans of {len(names)} models take what they predict; {refused} were not to be had")


if __name__ == "__main__":
    main()
