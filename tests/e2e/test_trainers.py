# labels: cpu e2e torch
# python: torch
# timeout: 300
# cost: 15
"""The parsers of Megatron-LM and torchtitan accept exported plans and read the same values from them.

`.ci/trainers.sh` gets their sources at fixed commits. Megatron-LM parses and validates the arguments, and deals the
layers to ranks. torchtitan builds its configuration and checks its degrees; PyTorch knows the schedule. Without the
sources the test is shown as skipped.

Run as `AUTOMAP=build/automap .venv-torch/bin/python tests/e2e/test_trainers.py`.
"""

import contextlib
import json
import os
import pathlib
import sys
import tempfile
import types
import typing
import warnings

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "launch"))
from program import automap, module, need_program, succeed

SOURCES = pathlib.Path(__file__).resolve().parents[2] / ".trainers"
SKIPPED = 77
BASELINE = ["--baseline"]
PIPELINE = ["--space", "pipeline", *BASELINE, "even_pipeline", "--micro-batches", "4", "--mesh"]
EVEN = [*PIPELINE, "data=2"]
ONE_STAGE = {baseline: [*BASELINE, baseline, *(["--mesh", "data=2,model=2"] if "megatron" in baseline else [])]
             for baseline in ("data_parallel", "zero1", "zero2", "zero3", "megatron", "megatron_sequence",
                            "megatron_zero1", "megatron_zero3")}  # fmt: skip
PLANS = {**ONE_STAGE, "even": EVEN, "chunks": [*PIPELINE, "data=4", "--schedule", "interleaved_1f1b"],
         "gpipe": [*EVEN, "--schedule", "gpipe"],
         "offload": [*BASELINE, "zero1", "--mesh", "data=8", "--offload", "optimizer"],
         "for_megatron": ["--for", "megatron", "--evaluations", "20"],
         "for_megatron_offload": ["--for", "megatron", "--evaluations", "20", "--offload", "optimizer"],
         "for_torchtitan": ["--for", "torchtitan", "--evaluations", "20"],
         **{f"for_{target}_{name}": ["--for", target, "--data", "4", "--stages", "1", "--micro-batches", "1",
                                     "--evaluations", "60", "--attention", attention, "--memory-fraction", fraction]
            for target, name, attention, fraction in (
                ("megatron", "full", "fused", "1.05e-4"), ("megatron", "block", "fused", "1.1e-4"),
                ("megatron", "parts", "unfused", "1.25e-4"), ("torchtitan", "full", "fused", "1.05e-4"),
                ("torchtitan", "parts", "unfused", "1.3e-4"))}}  # fmt: skip
REFUSED = {"megatron": {"zero2", "zero3", "megatron_zero3", "gpipe"},
           "torchtitan": {"zero1", "megatron_zero1", "offload"}}  # fmt: skip
# Options that no plan decides: sizes of the model, its steps and kernels.
SIZES = {"--num-layers": "2", "--hidden-size": "64", "--num-attention-heads": "4", "--seq-length": "16",
         "--max-position-embeddings": "16", "--train-iters": "1", "--lr": "1e-4"}  # fmt: skip
KERNELS = ["--bf16", "--transformer-impl", "local", "--no-persist-layer-norm", "--no-gradient-accumulation-fusion"]


def plans(folder):
    """[(target, plan, its exports as text and as JSON)], recomputing ones among them, of a GPT of two layers; of one of
    12 layers for chunks."""
    for name, options in PLANS.items():
        model = "gpt2" if name == "chunks" else "gpt2_tiny"
        cluster = "h100:1" if name == "chunks" or "offload" in name else "nominal:4"
        model, file = module(model), folder / f"{name}.json"
        succeed("search", model, "--cluster", cluster, *options, "-o", file, "--quiet")
        for target, refused in REFUSED.items():
            if name.startswith("for_") and not name.startswith(f"for_{target}"):
                continue
            words = ["export", file, model, "--format", target, "--whole-layers", "--quiet"]
            if name in refused:
                assert automap(*words).returncode == 4, f"{name} is exported for {target}"
            else:
                yield target, json.loads(file.read_text()), succeed(*words), json.loads(succeed(*words, "--json"))


def recomputed_of(plan):
    """How many layers a one-stage plan recomputes; "parts" where it saves values in them."""
    return "parts" if plan["stages"][0].get("saved") else len(plan["stages"][0].get("recompute", []))


def degrees_of(plan):
    """Data, tensor and pipeline degrees."""
    sizes = {axis["axis"]: axis["size"] for axis in plan["stages"][0]["mesh"]}
    return sizes.get("data", 1), sizes.get("model", 1), len(plan["stages"])


def check_megatron(plan, text, told):
    """The arguments pass Megatron-LM's validation, which finds the plan's degrees, micro-batches and chunks."""
    from megatron.training import arguments

    arguments.get_device_arch_version = lambda: 9  # asks a GPU otherwise
    data, tensor, stages = degrees_of(plan)
    os.environ.update(WORLD_SIZE=str(told["world_size"]), CUDA_DEVICE_MAX_CONNECTIONS="1")
    words = text.split()
    sizes = [word for size in SIZES.items() if size[0] not in words for word in size]
    sys.argv = ["pretrain_gpt.py", *sizes, *KERNELS, *words]
    with contextlib.redirect_stdout(None):
        parsed = arguments.parse_args()
        arguments.validate_args(parsed)
    assert (parsed.data_parallel_size, parsed.tensor_model_parallel_size) == (data, tensor), sys.argv
    assert parsed.pipeline_model_parallel_size == stages
    assert parsed.global_batch_size == parsed.micro_batch_size * data * plan["micro_batches"]
    chunks = len(plan["stages"][0]["ranges"]) if stages > 1 else 1
    assert (parsed.virtual_pipeline_model_parallel_size or 1) == chunks, sys.argv
    levels = {entry["kind"] for rows in plan["stages"][0]["axis_priorities"].values() for entry in rows}
    assert parsed.use_distributed_optimizer == ("optimizer" in levels)
    assert parsed.optimizer_cpu_offload == plan["stages"][0].get("offloads_optimizer", False), sys.argv
    recomputed = recomputed_of(plan)
    kinds = {"parts": "selective", 0: None}
    assert parsed.recompute_granularity == kinds.get(recomputed, "full")
    if recomputed == "parts":
        config = arguments.core_transformer_config_from_args(parsed)  # checks the names of the parts
        assert config.recompute_modules == ["core_attn", "layernorm", "mlp"], config.recompute_modules
    elif recomputed:
        method = "uniform" if recomputed == int(SIZES["--num-layers"]) else "block"
        assert (parsed.recompute_method, parsed.recompute_num_layers) == (method, 1)


def check_torchtitan(plan, text, told):
    """torchtitan's configuration takes the settings, and its degrees give the world of the plan."""
    import torch.distributed.pipelining.schedules as schedules
    from torchtitan.config import ParallelismConfig, TrainingConfig
    from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC
    from torchtitan.distributed.parallel_dims import ParallelDims

    settings = {}
    exec(compile(text, "settings", "exec"), settings)  # the exported module
    config = types.SimpleNamespace(parallelism=ParallelismConfig(), training=TrainingConfig(max_context_length=16),
                                   activation_checkpoint="selective")  # fmt: skip
    assert settings["configure"](config) is config
    if recomputed_of(plan):
        policy = SelectiveAC if recomputed_of(plan) == "parts" else FullAC
        assert type(config.activation_checkpoint) is policy.Config
    else:
        assert config.activation_checkpoint is None
    fields = config.parallelism
    for name, value in told["parallelism"].items():
        assert name in ParallelismConfig.__dataclass_fields__ and getattr(fields, name) == value, name
    rebuilt = ParallelismConfig(**told["parallelism"])
    assert rebuilt == fields
    dims = ParallelDims.from_config(fields, told["world_size"])
    data, tensor, stages = degrees_of(plan)
    assert (dims.dp_replicate * dims.dp_shard, dims.tp, dims.pp) == (data, tensor, stages)
    levels = {entry["kind"] for rows in plan["stages"][0]["axis_priorities"].values() for entry in rows}
    assert (dims.dp_shard > 1) == ("gradients" in levels)
    if "gradients" in levels:
        assert fields.fsdp_reshard_after_forward == ("always" if "weights" in levels else "never")
    TrainingConfig.__post_init__(config.training)
    turns = 1 if stages > 1 else plan["micro_batches"]
    tokens = config.training.num_tokens_per_microbatch_per_dp_rank * data * fields.num_pp_microbatches * turns
    assert tokens == config.training.num_tokens_per_train_step
    if stages == 1:
        return
    kind = schedules.get_schedule_class(fields.pipeline_parallel_schedule)
    chunks = len(fields.module_fqns_per_model_part) // stages
    assert issubclass(kind, schedules.PipelineScheduleMulti) == (chunks > 1)
    names = [name for part in fields.module_fqns_per_model_part for name in part]
    layers = [f"layers.{k}" for k in range(sum(told["layers"]))]
    assert names == ["tok_embeddings", *layers, "norm", "lm_head"], names


def import_trainers():
    """Makes both sources importable."""
    for name in ("python", "Megatron-LM", "torchtitan"):
        sys.path.append(str(SOURCES / name))
    if not hasattr(typing, "override"):
        import typing_extensions

        typing.override = typing_extensions.override  # Megatron-LM is for Python 3.12
    warnings.simplefilter("ignore")


def main():
    need_program()
    if not (SOURCES / "complete").exists():
        print("skipped: .ci/trainers.sh has not got the sources of Megatron-LM and torchtitan")
        return SKIPPED
    import_trainers()
    checks = {"megatron": check_megatron, "torchtitan": check_torchtitan}
    checked, recomputed = 0, set()
    with tempfile.TemporaryDirectory() as name:
        for target, *plan in plans(pathlib.Path(name)):
            checks[target](*plan)
            recomputed.add((target, recomputed_of(plan[0])))
            checked += 1
    expected = {*(("megatron", kind) for kind in (2, 1, "parts")), ("torchtitan", 2), ("torchtitan", "parts")}
    assert recomputed >= expected, recomputed
    print(f"{checked} exported plans read by the trainers' parsers")
    return 0


if __name__ == "__main__":
    sys.exit(main())
