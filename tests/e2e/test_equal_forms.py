# labels: jax e2e
# timeout: 600
# cost: 45
"""Plans of one model are priced alike in all forms of its layers.

The models of bench/layers.py (GPT, Llama, T5, mixture of experts, U-Net) are exported with one tree of parameters for
each layer, as a scan, and as slices of stacked parameters. An even pipeline of the first form applies to the others:
its step differs by at most 1 %, and its peak memory is at most 2 % higher and 10 % lower. The even pipelines that the
forms get of their own, and their bounds, are within 1 % as well. So are the steps that default searches find, of one
stage and of two, after as many evaluations within 10 % (two of the models; AUTOMAP_FULL: all). Pipelines for trainers
of transformers have the same arguments in all forms.

Run as `AUTOMAP=build/automap python tests/e2e/test_equal_forms.py`.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(SOURCE / "bench"), str(SOURCE / "datasets"), str(SOURCE / "tests" / "launch")]

import layers as forms
from program import FULL

AUTOMAP = os.environ.get("AUTOMAP", "build/automap")
# layers, width, heads, hidden, batch, length, vocabulary; operators take longer than their launches
SIZES = {"gpt": (6, 512, 8, 2048, 32, 256, 8000), "llama": (4, 1024, 16, 2816, 16, 256, 8000),
         "t5": (3, 512, 8, 2048, 32, 256, 8000), "moe": (4, 512, 8, 2048, 32, 256, 8000),
         "unet": (4, 64, 0, 0, 32, 64, 0)}
SEARCHED = {"gpt": (4 if FULL else 2, 256, 8, 1024, 16, 128, 1000), "llama": (3, 256, 8, 704, 16, 128, 1000),
            "t5": (2, 256, 8, 1024, 16, 128, 1000), "moe": (3, 256, 8, 1024, 16, 128, 1000),
            "unet": (2, 32, 0, 0, 16, 32, 0)}


def automap(*words):
    run = subprocess.run([AUTOMAP, *map(str, words)], capture_output=True, text=True)
    assert run.returncode == 0, f"automap {' '.join(map(str, words))}: {run.returncode}\n{run.stderr}"
    return run.stdout


def check_close(what, found, expected, limit):
    assert abs(found / expected - 1) <= limit, (what, found, expected)


def check_model(name, cluster, folder):
    models = {form: forms.export(name, form, SIZES[name], folder / f"{name}_{form}") for form in forms.FORMS}
    words = ["--baseline", "even_pipeline", "--searcher", "baseline", "--quiet"]
    plans, found = {}, {}
    for form, model in models.items():
        plans[form] = model.parent / "plan.json"
        split = ["--layers", "split"] if form != "trees" else []
        automap("search", model, "--cluster", cluster, "-o", plans[form], *words, *split)
        found[form] = json.loads(plans[form].read_text())
    own = found["trees"]
    assert len(own["stages"]) > 1, len(own["stages"])
    peak = max(device["peak_bytes"] for device in own["predicted"]["devices"])
    for form in ("scan", "sliced"):
        assert found[form]["rewriting"] == {"layers": "split"}, found[form].get("rewriting")
        step = own["predicted"]["step_seconds"]
        check_close((name, form, "plan"), found[form]["predicted"]["step_seconds"], step, 0.01)
        check_close((name, form, "bound"), found[form]["search"]["bound_seconds"], own["search"]["bound_seconds"], 0.01)
        carried = json.loads(automap("simulate", plans["trees"], models[form], "--json"))
        check_close((name, form, "step"), carried["step_seconds"], step, 0.01)
        there = max(device["peak_bytes"] for device in carried["devices"])
        assert 0.9 <= there / peak <= 1.02, (name, form, there, peak)


def check_searches(name, folder):
    steps, evaluations = {}, {}
    for form in forms.FORMS:
        model = forms.export(name, form, SEARCHED[name], folder / f"searched_{name}_{form}")
        plan = model.parent / "plan.json"
        found = json.loads(automap("search", model, "--cluster", "h100:4", "-o", plan, "--json", "--quiet"))
        steps[form], evaluations[form] = found["step_seconds"], found["evaluations"]
    for form in ("scan", "sliced"):
        check_close((name, form, "search"), steps[form], steps["trees"], 0.01)
        check_close((name, form, "evaluations"), evaluations[form], evaluations["trees"], 0.1)


def check_trainers(folder):
    """Arguments of Megatron-LM and torchtitan for two stages."""
    sizes = (4, 256, 8, 1024, 16, 128, 1000)
    models = {form: forms.export("gpt", form, sizes, folder / f"trained_{form}") for form in forms.FORMS}
    for target in ("megatron", "torchtitan"):
        texts, steps = {}, {}
        for form, model in models.items():
            plan = model.parent / "plan.json"
            automap("search", model, "--cluster", "nominal:4", "--for", target, "--stages", "2", "--micro-batches", "4",
                    "-o", plan, "--quiet")
            texts[form] = automap("export", plan, model, "--format", target, "--quiet")
            steps[form] = json.loads(plan.read_text())["predicted"]["step_seconds"]
        assert texts["scan"] == texts["sliced"] == texts["trees"], (target, texts)
        for form in ("scan", "sliced"):
            check_close((target, form), steps[form], steps["trees"], 0.01)


def main():
    with tempfile.TemporaryDirectory() as folder:
        for name in forms.MODELS:
            check_model(name, "h100:8" if name == "gpt" else "C", pathlib.Path(folder))
        for name in SEARCHED if FULL else ("gpt", "moe"):
            check_searches(name, pathlib.Path(folder))
        check_trainers(pathlib.Path(folder))
    print("equal forms: ok")


if __name__ == "__main__":
    main()
