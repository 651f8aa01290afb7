# labels: cpu e2e
# timeout: 300
"""Pipelines exported for PyTorch, Megatron-LM and torchtitan agree with the plan.

The arguments of Megatron-LM are parsed and, by its own rules, turned back into ranks, layers and micro-batches,
which must be those of the plan; DTensor placements must be the shardings of its parameters. Plans that neither can hold
are refused with exit code 4 and one line.

Run as `AUTOMAP=build/automap python3 tests/e2e/test_export_pipelines.py`.
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile
import types

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "launch"))
from program import AUTOMAP, MODELS

BASELINE = ["--baseline"]
EVEN = ["--space", "pipeline", *BASELINE, "even_pipeline", "--mesh", "data=2"]
MEGATRON = ["--space", "pipeline", *BASELINE, "megatron_3d"]


def automap(*arguments, code=0):
    done = subprocess.run([AUTOMAP, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == code, f"automap {' '.join(map(str, arguments))}: {done.returncode}\n{done.stderr}"
    return done.stderr if code else done.stdout


class Case:
    """A plan of a model in a directory."""

    def __init__(self, directory, name, *options):
        self.model, self.path = next((MODELS / name).glob("model.hlo.pb*")), directory / "plan.json"
        cluster = [] if "--cluster" in options else ["--cluster", "nominal:4"]
        automap("search", self.model, *cluster, *options, "-o", self.path)
        self.plan = json.loads(self.path.read_text())

    def export(self, form, *options, code=0):
        return automap("export", self.path, self.model, "--format", form, *options, code=code)

    def refused(self, form, *words):
        message = self.export(form, code=4)
        assert message.count("\n") == 1, f"{form}: {message}"
        assert all(word in message for word in words), f"{form}: {message} has not {words}"


def parse(text):
    """Arguments as argparse would have them."""
    words, arguments = text.split(), {}
    for k, word in enumerate(words):
        if word.startswith("--"):
            has_value = k + 1 < len(words) and not words[k + 1].startswith("--")
            arguments[word[2:]] = int(words[k + 1]) if has_value else True
    return arguments


def layers_of(arguments):
    """How many layers each pipeline stage or chunk has, by Megatron-LM's rules."""
    stages, total = arguments["pipeline-model-parallel-size"], arguments["num-layers"]
    chunk = arguments.get("num-layers-per-virtual-pipeline-stage")
    if chunk:
        assert total % (stages * chunk) == 0
        return [chunk] * (total // chunk)
    first, last = (arguments.get(f"decoder-{end}-pipeline-num-layers") for end in ("first", "last"))
    middle = stages - (first is not None) - (last is not None)
    rest = total - (first or 0) - (last or 0)
    assert rest % middle == 0 if middle else rest == 0
    shares = [rest // middle] * middle if middle else []
    return ([first] if first is not None else []) + shares + ([last] if last is not None else [])


def check_megatron(case, *options, **expected):
    """The arguments' ranks, layers and batches against the plan."""
    arguments = parse(case.export("megatron", *options))
    told = json.loads(case.export("megatron", *options, "--json"))
    assert {key[2:]: value for key, value in told["arguments"].items()} == arguments
    stages, tensor = arguments["pipeline-model-parallel-size"], arguments["tensor-model-parallel-size"]
    assert stages == len(case.plan["stages"])
    data = told["world_size"] // stages // tensor
    rank = 0
    for stage in case.plan["stages"]:
        sizes = {axis["axis"]: axis["size"] for axis in stage["mesh"]}
        assert sizes.get("data", 1) == data and sizes.get("model", 1) == tensor
        assert stage["devices"] == list(range(rank, rank + data * tensor))
        rank += data * tensor
    assert rank == told["world_size"]
    turns = arguments["global-batch-size"] // (arguments["micro-batch-size"] * data)
    assert turns * arguments["micro-batch-size"] * data == arguments["global-batch-size"]
    assert turns == case.plan["micro_batches"]
    kinds = {e["kind"] for stage in case.plan["stages"] for row in stage["axis_priorities"].values() for e in row}
    assert ("optimizer" in kinds) == arguments.get("use-distributed-optimizer", False)
    if stages > 1:
        assert layers_of(arguments) == told["layers"] and sum(told["layers"]) == arguments["num-layers"]
    for key, value in expected.items():
        assert arguments.get(key.replace("_", "-")) == value, f"{key}: {arguments}"
    return told


def check_torchtitan(case, *options):
    """The fields' degrees, layers and batches against the plan; the Python text sets the same."""
    told = json.loads(case.export("torchtitan", *options, "--json"))
    fields, plan = told["parallelism"], case.plan
    sizes = {axis["axis"]: axis["size"] for axis in plan["stages"][0]["mesh"]}
    data = fields["data_parallel_replicate_degree"] * fields["data_parallel_shard_degree"]
    assert (data, fields["tensor_parallel_degree"]) == (sizes.get("data", 1), sizes.get("model", 1)), fields
    assert fields["pipeline_parallel_degree"] == len(plan["stages"])
    assert told["world_size"] == data * fields["tensor_parallel_degree"] * len(plan["stages"])
    assert told["examples"]["step"] == told["examples"]["micro_batch"] * data * plan["micro_batches"]
    modules = fields.get("module_fqns_per_model_part", [])
    assert [sum(name.startswith("layers.") for name in part) for part in modules] == told["layers"]
    config = types.SimpleNamespace(parallelism=types.SimpleNamespace(),
                                   training=types.SimpleNamespace(max_context_length=10))  # fmt: skip
    settings = {}
    exec(case.export("torchtitan", *options), settings)
    assert vars(settings["configure"](config).parallelism) == fields
    assert config.training.num_tokens_per_train_step == 10 * told["examples"]["step"]
    return told


def check_dtensor(case):
    told = json.loads(case.export("dtensor"))
    plan = case.plan
    names = {"1f1b": "1F1B", "gpipe": "GPipe", "interleaved_1f1b": "Interleaved1F1B", "none": None}
    assert told["schedule"] == names[plan["schedule"]] and told["n_microbatches"] == plan["micro_batches"]
    info = json.loads(automap("info", case.model, "--json"))
    numbers = []
    for row in told["stages"]:
        stage = plan["stages"][row["index"] % len(plan["stages"])]
        mesh = row["device_mesh"]
        assert mesh["ranks"] == stage["devices"]
        assert mesh["shape"] == [axis["size"] for axis in stage["mesh"]]
        assert mesh["dim_names"] == [axis["axis"] for axis in stage["mesh"]]
        chunk = row["index"] // len(plan["stages"])
        assert row["begins"]["instruction"] == stage["ranges"][chunk][0]
        for parameter in row["parameters"]:
            numbers.append(parameter["number"])
            of_plan = plan["parameters"][parameter["number"]]
            assert of_plan["stage"] == row["index"] % len(plan["stages"])
            sharding = [[] for _ in info["parameters"][parameter["number"]]["shape"]]
            for name, placement in zip(mesh["dim_names"], parameter["placements"], strict=True):
                match = re.fullmatch(r"Shard\((\d+)\)|Replicate\(\)", placement)
                if match[1]:
                    sharding[int(match[1])].append(name)
            assert sharding == of_plan["sharding"], f"{parameter}: {of_plan}"
    assert sorted(numbers) == list(range(len(plan["parameters"])))


def check_refusals(directory):
    pipeline = Case(directory, "gpt2_tiny", *EVEN, "--micro-batches", "4")
    for form in ("hlo", "shardy"):
        pipeline.refused(form, "pipeline stages", f"search --for {form}")
    pipeline.refused("megatron", "between layers", "--whole-layers")
    turns = Case(directory, "gpt2_tiny", "--mesh", "data=4", "--micro-batches", "4", "--evaluations", "20")
    turns.refused("hlo", "micro-batches", "search --for hlo")
    check_dtensor(turns)
    bubble = Case(directory, "gpt2_tiny", *EVEN, "--micro-batches", "4", "--schedule", "zb_h1")
    bubble.refused("torch", "zb_h1", "search --for torch")
    bubble.refused("megatron", "zb_h1", "search --for megatron")
    stacks = Case(directory, "t5_tiny", *EVEN, "--micro-batches", "4")
    stacks.refused("megatron", "one stack", "--format torch")
    zero = Case(directory, "gpt2_tiny", *BASELINE, "zero3")
    zero.refused("megatron", "no ZeRO 3", "search --for megatron")
    check_dtensor(zero)
    assert check_torchtitan(zero)["parallelism"]["fsdp_reshard_after_forward"] == "always"
    Case(directory, "gpt2_tiny", *BASELINE, "zero1").refused("torchtitan", "no ZeRO 1", "search --for torchtitan")


def main():
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        for options in ([*EVEN, "--micro-batches", "4"], [*EVEN, "--micro-batches", "1"],
                        [*EVEN, "--micro-batches", "4", "--schedule", "interleaved_1f1b"],
                        [*MEGATRON, "--mesh", "data=1,model=2", "--micro-batches", "4", "--even"]):  # fmt: skip
            check_dtensor(Case(directory, "gpt2_tiny", *options))
        even = Case(directory, "gpt2_tiny", *EVEN, "--micro-batches", "4")
        assert check_megatron(even, "--whole-layers", tensor_model_parallel_size=1)["layers"] == [1, 1]
        assert check_torchtitan(even, "--whole-layers")["layers"] == [1, 1]
        tensor = Case(directory, "gpt2_tiny", *MEGATRON, "--mesh", "data=1,model=2", "--micro-batches", "4")
        assert check_megatron(tensor, "--whole-layers", tensor_model_parallel_size=2)["layers"] == [1, 1]
        uneven = Case(directory, "gpt2", "--cluster", "C", "--space", "pipeline", *BASELINE, "even_pipeline", "--mesh",
                      "data=8", "--micro-batches", "8")  # fmt: skip
        assert sum(check_torchtitan(uneven, "--whole-layers")["layers"]) == 12
        layers = check_megatron(uneven, "--whole-layers")["layers"]
        assert len(layers) == 4 and sum(layers) == 12 and layers[1] == layers[2], layers
        assert layers[3] < layers[2], "the last stage has the vocabulary"
        for baseline, flags in (("megatron", {}), ("zero1", {"use_distributed_optimizer": True}),
                              ("megatron_sequence", {"sequence_parallel": True}),
                              # fmt: skip
                              ("megatron_zero1", {"use_distributed_optimizer": True}), ("data_parallel", {})):
            mesh = ["--mesh", "data=2,model=2"] if "megatron" in baseline else []
            case = Case(directory, "gpt2_tiny", *BASELINE, baseline, *mesh)
            check_megatron(case, pipeline_model_parallel_size=1, **flags)
        check_refusals(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
