"""Step time beside JAX: the same module trained by `automap run` and by jax.jit on the CPU.

For every model of the zoo that fits, milliseconds of a training step on one device:

    automap 1    `run --plan none --threads 1`, kept to one processor
    JAX 1        jax.jit of the step that the module was exported from, kept to one processor
                 (sched_setaffinity) with XLA_FLAGS=--xla_cpu_multi_thread_eigen=false
    automap      `run --plan none`: one rank with a team of all processors
    JAX          the same as JAX 1 with all processors and no flags

and the ratios automap / JAX with one thread and with all (below 1: automap is faster). Both sides
read the loss of every step; the batch is taken from memory (JAX: arrays on its device). The state
is donated to JAX. A figure is the median over the steps after the warm-up; the four are taken in
turn, --rounds times, and the least of each is kept, so that a passing load meets all alike. Large
models take random values (`--state random`), as their time does not depend on them.

Run as `AUTOMAP=build/automap PYTHONPATH=datasets python bench/step_time.py [--quick] [MODEL ...]`.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

SOURCE = pathlib.Path(__file__).resolve().parents[1]
MODELS = SOURCE / "datasets" / "models"
AUTOMAP = os.environ.get("AUTOMAP", str(SOURCE / "build" / "automap"))
SMALL = ["mlp_tiny", "mlp", "gpt2_tiny", "gpt2_bf16_tiny", "bert_tiny", "t5_tiny", "llama_tiny", "lstm_tiny", "moe_tiny",
         "moe_sorted_tiny", "vgg_tiny", "resnet_tiny", "vit_tiny", "unet_tiny"]
LARGE = ["resnet50_batch16", "gpt2_batch1"]


def is_large(model):
    return not (MODELS / model / "state.npz").exists()


def warm_up(model):
    return 1 if is_large(model) else 10


def kept_to(processors):
    return lambda: os.sched_setaffinity(0, processors)


def run_automap(model, one_thread, steps):
    """Median seconds of a step; the program tells each step's own."""
    at = MODELS / model
    arguments = ["run", at / "model.hlo.pb", "--plan", "none", "--steps", steps, "--json"]
    arguments += ["--state", "random"] if is_large(model) else ["--state", at / "state.npz", "--data", at / "data.npz"]
    if is_large(model):
        arguments[1] = at / "model.hlo.pb.zst"
    arguments += ["--threads", 1] if one_thread else []
    one = {min(os.sched_getaffinity(0))}
    done = subprocess.run([AUTOMAP, *map(str, arguments)], capture_output=True, text=True, check=True,
                          preexec_fn=kept_to(one) if one_thread else None)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return statistics.median([row["seconds"] for row in rows if "step" in row][warm_up(model):])


def run_jax(model, one_thread, steps):
    """The same by JAX, in a process of its own: flags and processors are set before it starts."""
    environment = dict(os.environ, JAX_PLATFORMS="cpu", PYTHONPATH=str(SOURCE / "datasets"))
    environment.pop("XLA_FLAGS", None)
    if one_thread:
        environment["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
    command = [sys.executable, __file__, "--jax-child", "1" if one_thread else "0", "--steps", str(steps), model]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return float(done.stdout)


def jax_child(model_name, one_thread, steps):
    """Trains with jax.jit and prints the median seconds of a step."""
    if one_thread:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    import jax

    from automap_jax import reference
    from automap_jax.zoo import MODELS as zoo

    model = zoo[model_name]()
    batch_count = 1 if is_large(model_name) else model.batches
    state = model.state()
    arguments = [jax.device_put(part) for part in (state if isinstance(state, tuple) else (state,))]
    del state
    batches = [[jax.device_put(array[k]) for array in model.data(batch_count)] for k in range(batch_count)]
    donated = tuple(k for k in range(len(arguments)) if k not in model.constants)
    step = jax.jit(model.step, donate_argnums=donated)
    seconds = []
    for number in range(steps):
        begin = time.perf_counter()
        *outputs, loss = step(*arguments, *batches[number % batch_count])
        float(loss)
        jax.block_until_ready(outputs)
        seconds.append(time.perf_counter() - begin)
        arguments = reference.successors(arguments, outputs)
    print(statistics.median(seconds[warm_up(model_name):]))


def measure(model, rounds, steps):
    """Seconds of the four columns."""
    columns = [lambda: run_automap(model, True, steps), lambda: run_jax(model, True, steps),
               lambda: run_automap(model, False, steps), lambda: run_jax(model, False, steps)]
    return [min(row) for row in zip(*[[column() for column in columns] for _ in range(rounds)])]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"default {' '.join(SMALL + LARGE)}")
    parser.add_argument("--rounds", type=int, default=3, help="default 3; of large models at most 2")
    parser.add_argument("--steps", type=int, default=110, help="of one round, more than 10; large models take 4")
    parser.add_argument("--quick", action="store_true", help="one short round of mlp_tiny, to see that it works")
    parser.add_argument("--json", action="store_true", help="a line of JSON per model")
    parser.add_argument("--jax-child", choices=["0", "1"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.jax_child is not None:
        return jax_child(options.models[0], options.jax_child == "1", options.steps)
    if options.steps <= 10:
        parser.error("--steps must be more than 10")
    if options.quick:
        options.models, options.rounds, options.steps = ["mlp_tiny"], 1, 20
    if not options.json:
        print("ms per step, the least of the rounds' medians")
        print(f"{'model':18}{'automap 1':>11}{'JAX 1':>10}{'ratio':>7}{'automap':>11}{'JAX':>10}{'ratio':>7}")
    for model in options.models or SMALL + LARGE:
        large = is_large(model)
        figures = measure(model, min(options.rounds, 2) if large else options.rounds, 4 if large else options.steps)
        one, jax_one, every, jax_every = (1e3 * figure for figure in figures)
        if options.json:
            print(json.dumps({"model": model, "automap_1": one, "jax_1": jax_one, "automap": every, "jax": jax_every}),
                  flush=True)
            continue
        print(f"{model:18}{one:11.3f}{jax_one:10.3f}{one / jax_one:7.2f}{every:11.3f}{jax_every:10.3f}"
              f"{every / jax_every:7.2f}", flush=True)


if __name__ == "__main__":
    main()
