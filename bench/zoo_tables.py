"""Tables of the models of datasets/models: bench/zoo_tables.py micro_batches|sums|mixed_precision

micro_batches    activations at the peak of one device with 1, 2 and 4 micro-batches
sums             steps of plans whose sums of 16-bit products stay in f32
mixed_precision  steps on a100:8 before and after convert --mixed-precision bf16

Run as `AUTOMAP=build/automap python3 bench/zoo_tables.py micro_batches`.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

import model_files

AUTOMAP = os.environ.get("AUTOMAP", "build/automap")
DIVISIBLE = ("accumulated_tiny", "adafactor_tiny", "adamw_tiny", "bert_tiny", "gpt2_bf16_tiny", "gpt2_tiny",
             "llama_tiny", "lstm_tiny", "mlp_tiny", "t5_tiny", "unet_tiny", "vgg_tiny", "vit_tiny")
PLANS = (
    *(("gpt2_bf16", cluster, "data_parallel") for cluster in ("A", "B", "C", "h100:1", "h100:4")),
    ("gpt2_bf16", "h100:1", "megatron"), ("gpt2_bf16", "h100:4", "zero1"), ("llama3_8b", "h100:4", "megatron"),
    ("llama3_8b", "h100:4", "megatron_sequence"), ("llama3_8b", "h100:4", "megatron_zero3"),
)
REWRITTEN = ("gpt2", "vgg19", "bert48", "resnet50_batch16", "t5_paper_6", "mlp")


def predict(model, cluster, *options):
    """Returns the predictions of the plan that a search finds for a model of the zoo, or for a file."""
    with tempfile.TemporaryDirectory() as folder:
        plan = pathlib.Path(folder) / "plan.json"
        module = model if os.path.isfile(model) else model_files.model_file(model)
        done = subprocess.run([AUTOMAP, "search", module, "--cluster", cluster, "-o", plan, "--quiet", *options],
                              capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{model} on {cluster}: {done.stderr}")
        return json.loads(plan.read_text())["predicted"]


def three_digits(value, units=("B", "kB", "MB", "GB")):
    """Returns a number of bytes with three digits and a unit, such as "22.1 kB"."""
    power = 0
    while value >= 999.5 and power + 1 < len(units):
        value, power = value / 1000, power + 1
    return f"{value:.3g} {units[power]}"


def micro_batches():
    print("| model | M = 1 | M = 2 | M = 4 |\n|---|---|---|---|")
    for model in DIVISIBLE:
        cells = [three_digits(predict(model, "nominal:1", "--attention", "unfused", "--micro-batches", str(number),
                                      "--evaluations", "1")["devices"][0]["activation_bytes"]) for number in (1, 2, 4)]
        print(f"| {model} | {' | '.join(cells)} |")


def sums():
    print("| module | cluster | plan | step |\n|---|---|---|---|")
    for model, cluster, plan in PLANS:
        seconds = predict(model, cluster, "--baseline", plan)["step_seconds"]
        print(f"| {model} | {cluster} | {plan} | {1e3 * seconds:.3g} |")


def mixed_precision():
    print("| model | f32 | rewritten | gain |\n|---|---|---|---|")
    for model in REWRITTEN:
        with tempfile.TemporaryDirectory() as folder:
            rewritten = os.path.join(folder, "model.hlo.pb")
            subprocess.run([AUTOMAP, "convert", model_files.model_file(model), rewritten, "--mixed-precision", "bf16",
                            "--quiet"], check=True)
            steps = [1e3 * predict(of, "a100:8", "--evaluations", "40")["step_seconds"] for of in (model, rewritten)]
        print(f"| `{model}` | {steps[0]:.3g} | {steps[1]:.3g} | {steps[0] / steps[1]:.1f} |")


if __name__ == "__main__":
    tables = {"micro_batches": micro_batches, "sums": sums, "mixed_precision": mixed_precision}
    if len(sys.argv) != 2 or sys.argv[1] not in tables:
        sys.exit(__doc__)
    tables[sys.argv[1]]()
