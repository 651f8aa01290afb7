"""Planning a scan over layers beside the same layers written out.

One transformer's training step twice: its layers by lax.scan over stacked weights, and in a Python
loop. Both are searched on a cluster; printed are, for each of the baselines and for the plan that
is found,

    the predicted step of both, and the ratio scan / unrolled (what the loop costs: slices of the stacks,
    residuals that are stacked up, more launches)
    what both plans split, which is to be the same

and for both the instructions, the seconds of the search, and the evaluations it was given.

Run as `AUTOMAP=build/automap python bench/scan_beside_unrolled.py [--quick] [--cluster CLUSTER]`.
"""

import argparse
import functools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

SOURCE = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(SOURCE / "datasets"))
os.environ.setdefault("AUTOMAP", str(SOURCE / "build" / "automap"))

import jax
import jax.numpy as jnp

import automap_jax

SIZES = {"layers": 12, "width": 512, "hidden": 2048, "heads": 8, "batch": 32, "length": 128, "vocabulary": 1000}
QUICK = {"layers": 3, "width": 64, "hidden": 128, "heads": 2, "batch": 8, "length": 16, "vocabulary": 100}
PLANS = {"data_parallel": ["--baseline", "data_parallel"], "megatron": ["--baseline", "megatron"], "searched": []}


def norm(x, gain):
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * gain


def layer(heads, x, weights):
    batch, length, width = x.shape
    inner = norm(x, weights["first_gain"])
    query, key, value = ((inner @ weights[name]).reshape(batch, length, heads, -1)
                         for name in ("query", "key", "value"))
    scores = jax.nn.softmax(jnp.einsum("bthd,bshd->bhts", query, key) / (width // heads) ** 0.5)
    x = x + jnp.einsum("bhts,bshd->bthd", scores, value).reshape(x.shape) @ weights["out"]
    return x + jax.nn.gelu(norm(x, weights["second_gain"]) @ weights["up"]) @ weights["down"]


def loss(heads, weights, tokens, targets):
    x = weights["table"][tokens]
    layers = weights["layers"]
    if isinstance(layers, dict):
        x, _ = jax.lax.scan(lambda x, one: (layer(heads, x, one), None), x, layers)
    else:
        for one in layers:
            x = layer(heads, x, one)
    logarithms = jax.nn.log_softmax(x @ weights["table"].T)
    return -jnp.mean(jnp.take_along_axis(logarithms, targets[..., None], -1))


def step(state, tokens, targets, heads):
    value, gradients = jax.value_and_grad(functools.partial(loss, heads))(state["weights"], tokens, targets)
    means = jax.tree.map(lambda mean, gradient: 0.9 * mean + 0.1 * gradient, state["means"], gradients)
    weights = jax.tree.map(lambda weight, mean: weight - 1e-3 * mean, state["weights"], means)
    return {"weights": weights, "means": means}, value


def export(sizes, is_scan, folder):
    width, hidden = sizes["width"], sizes["hidden"]
    shapes = dict.fromkeys(["query", "key", "value", "out"], (width, width))
    shapes |= {"up": (width, hidden), "down": (hidden, width), "first_gain": (width,), "second_gain": (width,)}
    stack = (sizes["layers"],) if is_scan else ()
    one = {name: jax.ShapeDtypeStruct(stack + shape, jnp.float32) for name, shape in shapes.items()}
    weights = {"layers": one if is_scan else [one] * sizes["layers"],
               "table": jax.ShapeDtypeStruct((sizes["vocabulary"], width), jnp.float32)}
    tokens = jax.ShapeDtypeStruct((sizes["batch"], sizes["length"]), jnp.int32)

    def train(state, tokens, targets):
        return step(state, tokens, targets, sizes["heads"])

    automap_jax.export(train, ({"weights": weights, "means": weights}, tokens, tokens), str(folder))
    return folder / "model.hlo.pb"


def automap(*arguments):
    return subprocess.run([os.environ["AUTOMAP"], *map(str, arguments)], capture_output=True, text=True,
                          check=True).stdout


def search(model, cluster, options):
    """(predicted seconds, classes split by axis, seconds of the search)"""
    plan = model.parent / "plan.json"
    begin = time.perf_counter()
    automap("search", model, "--cluster", cluster, "-o", plan,
            *(["--searcher", "baseline", *options] if options else []))
    seconds = time.perf_counter() - begin
    document = json.loads(plan.read_text())
    mesh = document["stages"][0]["mesh"]
    return document["predicted"]["step_seconds"], " ".join(f"{axis['axis']}={axis['size']}" for axis in mesh), seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small layers, for a test of this program")
    parser.add_argument("--cluster", default="C")
    options = parser.parse_args()
    sizes = QUICK if options.quick else SIZES
    with tempfile.TemporaryDirectory() as folder:
        models = [export(sizes, is_scan, pathlib.Path(folder) / name)
                  for name, is_scan in (("unrolled", False), ("scan", True))]
        counts = [json.loads(automap("info", model, "--json"))["instructions"] for model in models]
        print(f"instructions: {counts[0]} unrolled, {counts[1]} scan")
        print(f"{'plan':14} {'unrolled ms':>12} {'scan ms':>10} {'ratio':>6}   {'search s':>16}   mesh")
        for name, flags in PLANS.items():
            unrolled, scan = (search(model, options.cluster, flags) for model in models)
            meshes = unrolled[1] if unrolled[1] == scan[1] else f"{unrolled[1]}; {scan[1]}"
            print(f"{name:14} {unrolled[0] * 1e3:12.2f} {scan[0] * 1e3:10.2f} {scan[0] / unrolled[0]:6.2f}   "
                  f"{unrolled[2]:7.2f} {scan[2]:8.2f}   {meshes}")


if __name__ == "__main__":
    main()
