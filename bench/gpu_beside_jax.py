"""Step time beside jax.jit on the same card: the same modules, trained by both.

The ratio is automap / JAX: below 1, automap is faster. `automap run --plan none` takes the exported module on
one device; JAX compiles the step that the module was exported from, with its state donated. Both read the loss
of every step; JAX's batch is in the memory of its device. A case is MODEL:PRECISION:

    f32     full precision on both sides (JAX's own default on a card rounds to tf32)
    tf32    operands of products are rounded to tf32 on both sides
    bf16    a mixed-precision model with the defaults
    sdpa    bf16, and JAX with jax.nn.dot_product_attention by cuDNN: a second bar for the same module of automap

Each side reports the median of its step seconds after the first ones, seconds until the end of the first step
(automap: from the start of the process; JAX: of tracing, compilation and the step) and peak bytes of the device.
Models above 4 MB have random values. A module that is not there is exported first, to the folder that GPU_EXPORTED
names, where later runs find it.

Run in the source folder as `AUTOMAP=build/automap PYTHONPATH=datasets python bench/gpu_beside_jax.py`.
"""

import argparse
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
import unittest.mock

MODELS = pathlib.Path("datasets/models")
AUTOMAP = os.environ.get("AUTOMAP", "build/automap")
# In order of importance, as time may run out.
CASES = [
    "gpt2_bf16_batch8:bf16",
    "gpt2_batch8:tf32",
    "gpt2_batch8:f32",
    "gpt2_bf16_batch8:sdpa",
    "llama_layers:bf16",
    "bert_large:tf32",
    "resnet50_batch64:tf32",
    "vgg19:tf32",
    "moe_batch8:tf32",
    "gpt2_tiny:f32",
    "mlp:f32",
    "vgg_tiny:f32",
    "bert_tiny:f32",
]
WARM_UP = 3
STEPS, SMALL_STEPS = 15, 60  # of models above and below 4 MB
JAX_PRECISION = {"f32": "highest", "tf32": "tensorfloat32", "bf16": None, "sdpa": None}


def exported_folder():
    """The folder of the models that a run exports."""
    return pathlib.Path(os.environ.get("GPU_EXPORTED") or MODELS)


def find_module(name):
    """The folder of a model that has been exported, or None."""
    return next((parent / name for parent in (MODELS, exported_folder()) if any((parent / name).glob("model.hlo.pb*"))),
                None)


def module_of(name):
    """The folder of a model; exports it where it is not there. A run that is ended meanwhile leaves no half of it."""
    at = find_module(name)
    if not at:
        from automap_jax.command import export_model

        at = exported_folder() / name
        at.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f"{name}.part.", dir=at.parent) as part:
            export_model(name, pathlib.Path(part) / name)
            os.replace(pathlib.Path(part) / name, at)
    return at


def values_of(at):
    if (at / "state.npz").exists():
        return ["--state", at / "state.npz", "--data", at / "data.npz", "--steps", SMALL_STEPS]
    return ["--state", "random", "--steps", STEPS]


def automap_command(name, precision, device):
    at = module_of(name)
    return [AUTOMAP, "run", next(at.glob("model.hlo.pb*")), "--plan", "none", *values_of(at), "--device", device,
            "--json",
            "--quiet", *(["--tf32"] if precision == "tf32" else [])]


def automap_environment():
    """The inherited folders, which may have the driver, and those of CUDA's libraries that gpu.sh found."""
    folders = filter(None, (os.environ.get("LD_LIBRARY_PATH"), os.environ.get("GPU_LIBRARY_PATH")))
    return dict(os.environ, LD_LIBRARY_PATH=":".join(folders))


def typical_seconds(rows):
    """Median of the steps after the first ones, of the JSON lines of `automap run`."""
    return statistics.median([row["seconds"] for row in rows if "step" in row][WARM_UP:])


def measure_automap(name, precision, device):
    """Figures of a run by automap; a RuntimeError has its message."""
    begin, first, rows = time.perf_counter(), None, []
    process = subprocess.Popen([str(part) for part in automap_command(name, precision, device)], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True, env=automap_environment())
    for line in process.stdout:
        first = first or time.perf_counter() - begin
        rows.append(json.loads(line))
    error = process.stderr.read()
    if process.wait() != 0:
        raise RuntimeError((error.strip().splitlines() or [f"exit status {process.returncode}"])[-1])
    last = rows[-1]["measured"]
    return {"ms": 1e3 * typical_seconds(rows), "first_step_seconds": first,
            "peak_bytes": sum(last["devices"][0].values()), **last.get("kernels", {})}


def random_arguments(model):
    """Values for a large model in little time: one block of random numbers, repeated; Adam's state is zero."""
    import jax
    import numpy as np

    block = np.random.default_rng(0).standard_normal(1 << 20, dtype=np.float32)

    def value(path, leaf):
        names = [getattr(key, "key", None) for key in path]
        if "params" not in names or names[-1] == "bias" or not leaf.shape:
            return np.zeros(leaf.shape, leaf.dtype)
        if names[-1] == "scale":
            return np.ones(leaf.shape, leaf.dtype)
        fan_in = leaf.shape[-1] if names[-1].endswith("table") else math.prod(leaf.shape[:-1])
        return np.resize(block / math.sqrt(fan_in), leaf.shape).astype(leaf.dtype)

    return jax.tree_util.tree_map_with_path(value, model.arguments[0])


def fused_attention(x, memory, p, heads, causal=False):
    """layers.attention() with the scores and the softmax in one kernel of cuDNN."""
    import jax

    def project(source, name):
        y = source @ p[name]["kernel"]
        return y + p[name]["bias"] if "bias" in p[name] else y

    query, key, value = (project(source, name).reshape(*source.shape[:2], heads, -1)
                         for source, name in ((x, "query"), (memory, "key"), (memory, "value")))
    implementation = "cudnn" if jax.default_backend() == "gpu" else None
    mixed = jax.nn.dot_product_attention(query, key, value, is_causal=causal, implementation=implementation)
    return project(mixed.reshape(*x.shape[:2], -1), "output")


def measure_jax(name, precision):
    import jax

    from automap_jax import reference
    from automap_jax.zoo import MODELS as zoo
    from automap_jax.zoo import gpt2_bf16

    try:
        jax.devices()
    except (RuntimeError, AssertionError) as failure:
        raise RuntimeError(f"JAX opens no device (JAX_PLATFORMS={os.environ['JAX_PLATFORMS']}): {failure}")
    model = zoo[name]()
    state = model.state() if model.is_small() else random_arguments(model)
    arguments = [jax.device_put(part) for part in (state if isinstance(state, tuple) else (state,))]
    batches = [jax.device_put(array[0]) for array in model.data(1)]
    donated = tuple(k for k in range(len(arguments)) if k not in model.constants)
    attention = fused_attention if precision == "sdpa" else gpt2_bf16.attention
    begin, seconds = time.perf_counter(), []
    with (jax.default_matmul_precision(JAX_PRECISION[precision]),
          unittest.mock.patch.object(gpt2_bf16, "attention", attention)):
        step = jax.jit(model.step, donate_argnums=donated).lower(*arguments, *batches).compile()
    compiled = time.perf_counter() - begin
    for _ in range(SMALL_STEPS if model.is_small() else STEPS):
        start = time.perf_counter()
        *outputs, loss = step(*arguments, *batches)
        float(loss)
        jax.block_until_ready(outputs)
        seconds.append(time.perf_counter() - start)
        arguments = reference.successors(arguments, outputs)
    memory = jax.devices()[0].memory_stats() or {}
    return {"ms": 1e3 * statistics.median(seconds[WARM_UP:]), "first_step_seconds": compiled + seconds[0],
            "compile_seconds": compiled, "peak_bytes": memory.get("peak_bytes_in_use"), "jax": jax.__version__,
            "jax_device": str(jax.devices()[0].device_kind)}


def measured(case, side, device):
    """{side: figures}, or {side_failure: the reason}."""
    name, precision = case.split(":")
    try:
        return {side: measure_jax(name, precision) if side == "jax" else measure_automap(name, precision, device)}
    except Exception as failure:  # whatever it is, the other cases are still measured
        return {f"{side}_failure": (str(failure).strip().splitlines() or [type(failure).__name__])[0][:200]}


def measured_apart(case, device):
    """JAX's figures by a process of its own, which gives its memory back."""
    done = subprocess.run([sys.executable, __file__, case, "--json", "--side", "jax", "--device", device],
                          stdout=subprocess.PIPE, text=True)
    lines = done.stdout.splitlines()
    return json.loads(lines[-1]) if lines else {"jax_failure": f"exit status {done.returncode}"}


def ratio_of(row):
    return row["automap"]["ms"] / row["jax"]["ms"] if {"automap", "jax"} <= row.keys() else None


def text(row):
    """Milliseconds, first step and peak of both sides, as one line without the case."""
    words = []
    for side in ("automap", "jax"):
        if side in row:
            peak = row[side].get("peak_bytes")
            words.append(f"{side} {row[side]['ms']:.3f} ms, first step {row[side]['first_step_seconds']:.1f} s"
                         + (f", peak {peak / 1e9:.2f} GB" if peak else ""))
        else:
            words.append(f"{side}: {row.get(f'{side}_failure', 'no time')}")
    ours = row.get("automap", {})
    if "graph_nodes" in ours:
        words.append(f"{ours['compile_seconds']:.1f} s of NVRTC, {ours['graphs']} graphs of {ours['graph_nodes']} "
                     f"nodes")
    return "; ".join(words)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help="MODEL:PRECISION (default: all of the list)")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--side", choices=["jax", "automap", "both"], default="both")
    parser.add_argument("--json", action="store_true", help="a JSON object per case")
    parser.add_argument("--export", action="store_true", help="export the modules of the cases and end")
    options = parser.parse_args()
    needs_card = options.device == "cuda" and options.side != "automap" and not options.export
    os.environ["JAX_PLATFORMS"] = "cuda" if needs_card else "cpu"  # without its card JAX fails and measures no CPU
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # the card's memory is automap's as well
    for case in options.cases or CASES:
        if options.export:
            module_of(case.split(":")[0])
            continue
        row = {"case": case}
        if options.side == "both":
            row |= measured_apart(case, options.device)
        elif options.side == "jax":
            row |= measured(case, "jax", options.device)
        if options.side != "jax":
            row |= measured(case, "automap", options.device)
        ratio = ratio_of(row)
        print(json.dumps(row) if options.json else f"{case:24}{f'{ratio:.2f} x JAX' if ratio else 'no ratio':>12}   "
              + text(row), flush=True)


if __name__ == "__main__":
    main()
