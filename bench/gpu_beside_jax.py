"""Step time beside jax.jit on the same card: the same modules, trained by both.

Milliseconds of a training step, the median after the first ones, and the ratio automap / JAX (below
1: automap is faster). `automap run --plan none` takes the exported module on one device; JAX jits
the step that it was exported from, the state donated, both read the loss of every step, and the
batch lies on JAX's device. f32 means full precision on both sides (JAX's own default on a card
rounds to tf32), tf32 rounds on both sides, bf16 is a mixed-precision model with the defaults.

GPT-2 with 8 sequences of 1024 tokens runs from random values; where its module was not exported
beforehand it is exported first.

Run in the source folder as `AUTOMAP=build/automap PYTHONPATH=datasets python bench/gpu_beside_jax.py`.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import time

MODELS = pathlib.Path("datasets/models")
AUTOMAP = os.environ.get("AUTOMAP", "build/automap")
# model, precision, steps; those that matter first, as time may run out
CASES = [
    ("gpt2_bf16_batch8", "bf16", 13),
    ("gpt2_batch8", "tf32", 13),
    ("gpt2_batch8", "f32", 13),
    ("gpt2_tiny", "f32", 60),
    ("gpt2_bf16_tiny", "bf16", 60),
    ("mlp", "f32", 60),
    ("vgg_tiny", "f32", 60),
    ("t5_tiny", "f32", 60),
    ("bert_tiny", "f32", 60),
]
WARM_UP = 3
JAX_PRECISION = {"f32": "highest", "tf32": "tensorfloat32", "bf16": None}


def median(seconds):
    return statistics.median(seconds[WARM_UP:])


def module_of(name):
    """The folder of an exported model, exported now if need be."""
    at = MODELS / name
    if not (at / "model.hlo.pb").exists():
        from automap_jax.command import export_model

        export_model(name, at)
    return at


def automap_seconds(name, precision, device, steps):
    """Median seconds of a step; a RuntimeError says what automap said."""
    at = module_of(name)
    values = ["--state", "random"]
    if (at / "state.npz").exists():
        values = ["--state", at / "state.npz", "--data", at / "data.npz"]
    command = [AUTOMAP, "run", at / "model.hlo.pb", "--plan", "none", *values, "--steps", steps, "--device", device]
    command += ["--json", "--quiet"] + (["--tf32"] if precision == "tf32" else [])
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True,
                          env=dict(os.environ, LD_LIBRARY_PATH=os.environ.get("GPU_LIBRARY_PATH", "")))
    if done.returncode != 0:
        raise RuntimeError((done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1])
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return median([row["seconds"] for row in rows if "step" in row])


def jax_seconds(name, precision, steps):
    import jax

    from automap_jax import reference
    from automap_jax.zoo import MODELS as zoo

    model = zoo[name]()
    state = model.state()
    arguments = [jax.device_put(part) for part in (state if isinstance(state, tuple) else (state,))]
    batches = [jax.device_put(array[0]) for array in model.data(1)]
    donated = tuple(k for k in range(len(arguments)) if k not in model.constants)
    seconds = []
    with jax.default_matmul_precision(JAX_PRECISION[precision]):
        step = jax.jit(model.step, donate_argnums=donated)
        for _ in range(steps):
            begin = time.perf_counter()
            *outputs, loss = step(*arguments, *batches)
            float(loss)
            jax.block_until_ready(outputs)
            seconds.append(time.perf_counter() - begin)
            arguments = reference.successors(arguments, outputs)
    return median(seconds)


def measured(side, seconds):
    """{side_ms: milliseconds}, or {side_failure: why there are none}."""
    try:
        return {f"{side}_ms": 1e3 * seconds()}
    except Exception as failure:  # whatever it is, the other cases are still measured
        return {f"{side}_failure": (str(failure).strip().splitlines() or [type(failure).__name__])[0][:200]}


def text(row):
    sides = [f"{row[f'{side}_ms']:12.3f}" if f"{side}_ms" in row else f"{'-':>12}" for side in ("automap", "jax")]
    ratio = f"{row['automap_ms'] / row['jax_ms']:8.2f}" if {"automap_ms", "jax_ms"} <= row.keys() else f"{'-':>8}"
    failure = "   ".join(f"{side}: {row[f'{side}_failure']}" for side in ("automap", "jax") if f"{side}_failure" in row)
    return f"{row['model']:20}{row['precision']:>6}" + "".join(sides) + ratio + ("   " + failure if failure else "")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help="default: all of the list")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--json", action="store_true", help="a JSON object a line, first of automap, then of JAX")
    options = parser.parse_args()
    if options.device == "cpu":
        os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # the card's memory is automap's as well
    cases = [case for case in CASES if not options.models or case[0] in options.models]
    rows = [{"model": name, "precision": precision} for name, precision, _ in cases]
    if not options.json:
        print(f"{'model':20}{'type':>6}{'automap, ms':>12}{'JAX, ms':>12}{'ratio':>8}")
    # JAX keeps memory once it has it, so it comes second.
    for row, (name, precision, steps) in zip(rows, cases):
        row |= measured("automap", lambda: automap_seconds(name, precision, options.device, steps))
        if options.json:
            print(json.dumps(row), flush=True)
    for row, (name, precision, steps) in zip(rows, cases):
        row |= measured("jax", lambda: jax_seconds(name, precision, steps))
        print(json.dumps(row) if options.json else text(row), flush=True)


if __name__ == "__main__":
    main()
