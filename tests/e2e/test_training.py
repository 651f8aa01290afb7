# labels: cpu e2e
# timeout: 900
# cost: 30
"""Whatever the plan, training gives the one-device result.

Every small model is run for at least 20 steps under the reference (`--plan none`), the baselines, a
searched plan and random ones, on several meshes, and their losses and final state are compared
with JAX's, which are committed beside the models. The modules made for exactness must agree bit
for bit. A fixed sample of the matrix is run, a larger one with AUTOMAP_FULL.

Run as `AUTOMAP=build/automap python3 tests/e2e/test_training.py [MODEL ...]`.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

try:
    import numpy as np
except ImportError:
    print("skipped: numpy is not installed")
    sys.exit(77)

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "launch"))
from program import AUTOMAP, FULL, MODELS

LOSS_TOLERANCE = {"mlp_tiny": 2e-6, "vgg_tiny": 2e-6, "gpt2_tiny": 5e-6, "t5_tiny": 5e-6, "bert_tiny": 5e-6,
                  "gpt2_bf16_tiny": 1e-2}
# The rest of the zoo; a smaller sample of it is run.
LOSS_TOLERANCE |= dict.fromkeys(["lstm_tiny", "moe_tiny", "moe_sorted_tiny", "resnet_tiny", "vit_tiny", "unet_tiny",
                                 "dropout_tiny", "accumulated_tiny", "adamw_tiny", "adafactor_tiny", "lion_tiny",
                                 "flax_tiny", "fused_tiny", "two_swapped", "mlp"], 5e-6)
LOSS_TOLERANCE["llama_tiny"] = 1e-2
CORE = ["mlp_tiny", "vgg_tiny", "gpt2_tiny", "t5_tiny", "bert_tiny", "gpt2_bf16_tiny"]
EXACT = ["exact_linear", "exact_gather"]
STATE_TOLERANCE = 1e-4
# A bfloat16 keeps 8 bits, and compilers differ in where they round to it: XLA drops a rounding between
# two operators that it fuses. Adam divides a gradient by its own size, so an element whose gradient is
# all rounding may have the other sign: the tolerance of the state is larger.
BFLOAT16_STATE_TOLERANCE = {"gpt2_bf16_tiny": 0.1, "llama_tiny": 0.1}
STEPS = 20
MORE_STEPS = {"mlp": 440}  # as many as its final state is after

CLUSTERS = [(2, None), (4, None), (8, None), (4, "data=2,model=2"), (8, "data=2,model=4")]
PLANS = [
    ("data_parallel", ["--baseline", "data_parallel"]),
    ("megatron", ["--baseline", "megatron"]),
    ("zero1", ["--baseline", "zero1"]),
    ("zero2", ["--baseline", "zero2"]),
    ("zero3", ["--baseline", "zero3"]),
    ("hsdp", ["--baseline", "hsdp"]),
    ("hsdp_zero2", ["--baseline", "hsdp_zero2"]),
    ("context_zero3", ["--baseline", "context_zero3"]),
    ("searched", []),
    ("random_1", ["--searcher", "random", "--seed", "1"]),
    ("random_2", ["--searcher", "random", "--seed", "2"]),
    ("random_3", ["--searcher", "random", "--seed", "3"]),
]


class NoPlan(Exception):
    """A baseline has no plan for this model and cluster."""


def automap(*arguments):
    """Runs the program. Returns its stdout, or raises an AssertionError with its output."""
    run = subprocess.run([AUTOMAP, *map(str, arguments)], capture_output=True, text=True)
    if run.returncode == 4 and "--baseline" in arguments:
        raise NoPlan
    assert run.returncode == 0, f"automap {' '.join(map(str, arguments))}: {run.returncode}\n{run.stderr}"
    return run.stdout


def train(model, plan, directory):
    """Losses of every step and the final state under a plan file or none."""
    at = MODELS / model
    saved = pathlib.Path(directory) / "state.safetensors"
    lines = automap("run", at / "model.hlo.pb", "--plan", plan, "--state", at / "state.npz", "--data",
                    at / "data.npz", "--steps", MORE_STEPS.get(model, STEPS), "--json", "--save", saved)
    steps = [json.loads(line) for line in lines.splitlines()]
    return [step["loss"] for step in steps if "loss" in step], read_safetensors(saved)


def read_safetensors(path):
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    types = {"F32": np.float32, "F64": np.float64, "I32": np.int32, "U32": np.uint32, "BOOL": np.bool_}
    return {
        name: np.frombuffer(data[8 + length :][slice(*entry["data_offsets"])], types[entry["dtype"]]).reshape(
            entry["shape"]
        )
        for name, entry in header.items()
        if name != "__metadata__"
    }


def check(model, name, plan, directory, exact):
    reference = json.loads((MODELS / model / "losses.json").read_text())["losses"]
    final = np.load(MODELS / model / "final_state.npz")
    losses, state = train(model, plan, directory)
    assert len(losses) == len(reference), f"{model} {name}: {len(losses)} losses"
    if exact:
        assert losses == reference, f"{model} {name}: losses differ: {losses} {reference}"
    else:
        worst = max(abs(a - b) / abs(b) for a, b in zip(losses, reference))
        assert worst <= LOSS_TOLERANCE[model], f"{model} {name}: a loss is off by {worst:.2e}"
    for key in final.files:
        want, have = final[key], state[key]
        assert want.shape == have.shape, f"{model} {name} {key}: {have.shape}, not {want.shape}"
        if exact or want.dtype.kind in "iub":
            assert np.array_equal(want, have), f"{model} {name} {key}: differs"
        else:
            error = np.linalg.norm((have - want).astype(np.float64)) / max(np.linalg.norm(want), 1e-30)
            assert error <= BFLOAT16_STATE_TOLERANCE.get(model, STATE_TOLERANCE), (
                f"{model} {name} {key}: off by {error:.2e}")


def cases(models):
    """(model, plan name, search arguments) of the matrix, or of a fixed sample of it."""
    number = 0
    for model in models:
        yield model, "none", None
        for devices, mesh in CLUSTERS:
            for name, arguments in PLANS:
                number += 1
                core = model in CORE + EXACT
                rate = (3 if core else 7) if FULL else (29 if core else 61)  # no divisors of 50
                if number % rate != 1 % rate:
                    continue
                where = ["--cluster", f"nominal:{devices}"] + (["--mesh", mesh] if mesh else [])
                yield model, f"{name} nominal:{devices} {mesh or ''}".strip(), where + arguments


def check_coverage():
    """Every model that comes with a reference run is compared with it, over ten losses at least."""
    models = {path.parent.name for path in MODELS.glob("*/losses.json")}
    assert models == set(LOSS_TOLERANCE) | set(EXACT), f"not compared: {models ^ (set(LOSS_TOLERANCE) | set(EXACT))}"
    for model in models:
        count = len(json.loads((MODELS / model / "losses.json").read_text())["losses"])
        assert count >= 10, f"{model}: {count} losses"


def main():
    check_coverage()
    models = sys.argv[1:] or list(LOSS_TOLERANCE) + EXACT
    failures = passed = without = 0
    for model, name, search in cases(models):
        with tempfile.TemporaryDirectory() as directory:
            try:
                plan = "none"
                if search is not None:
                    plan = pathlib.Path(directory) / "plan.json"
                    automap("search", MODELS / model / "model.hlo.pb", *search, "-o", plan, "--quiet")
                check(model, name, plan, directory, model in EXACT)
                passed += 1
            except NoPlan:
                without += 1
            except AssertionError as failure:
                failures += 1
                print(f"FAILED {failure}")
    print(f"{passed} plans passed, {failures} failed; {without} times a baseline has none")
    return 1 if failures or without > passed // 5 else 0


if __name__ == "__main__":
    sys.exit(main())
