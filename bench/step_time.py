"""Step time beside JAX: the same module trained by `automap run` and by jax.jit on the CPU.

For the tiny models and mlp, milliseconds of a training step:

    automap        `run --plan none`: the whole module on one device, one thread
    automap 2      data parallel on host:2: two ranks, a thread each
    JAX 1 thread   jax.jit of the step that the module was exported from, kept to one processor
                   (sched_setaffinity) with XLA_FLAGS=--xla_cpu_multi_thread_eigen=false
    JAX            the same with all processors and no flags

and the ratios automap / JAX 1 thread and automap 2 / JAX (below 1: automap is faster). Both sides
read the loss of every step; the batch is taken from memory (JAX: arrays on its device). The state
is donated to JAX. Each figure is the median over the steps after the first ten, the least of
--rounds such medians, taken in turn so that a passing load meets all alike.

Run as `AUTOMAP=build/automap PYTHONPATH=datasets python bench/step_time.py [--quick] [MODEL ...]`.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

SOURCE = pathlib.Path(__file__).resolve().parents[1]
MODELS = SOURCE / "datasets" / "models"
AUTOMAP = os.environ.get("AUTOMAP", str(SOURCE / "build" / "automap"))
NAMES = ["mlp_tiny", "mlp", "vgg_tiny", "gpt2_tiny", "t5_tiny", "bert_tiny"]
WARM_UP = 10


def median_after_warm_up(seconds):
    return statistics.median(seconds[WARM_UP:])


def run_automap(model, plan, steps):
    """Median seconds of a step; the program tells each step's own."""
    at = MODELS / model
    arguments = ["run", at / "model.hlo.pb", "--plan", plan, "--state", at / "state.npz", "--data",
                 at / "data.npz", "--steps", steps, "--json"]
    done = subprocess.run([AUTOMAP, *map(str, arguments)], capture_output=True, text=True, check=True)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return median_after_warm_up([row["seconds"] for row in rows if "step" in row])


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
    state = model.state()
    arguments = [jax.device_put(part) for part in (state if isinstance(state, tuple) else (state,))]
    batches = [[jax.device_put(array[k]) for array in model.data(model.batches)] for k in range(model.batches)]
    donated = tuple(k for k in range(len(arguments)) if k not in model.constants)
    step = jax.jit(model.step, donate_argnums=donated)
    seconds = []
    for number in range(steps):
        begin = time.perf_counter()
        *outputs, loss = step(*arguments, *batches[number % model.batches])
        float(loss)
        jax.block_until_ready(outputs)
        seconds.append(time.perf_counter() - begin)
        arguments = reference.successors(arguments, outputs)
    print(median_after_warm_up(seconds))


def search_data_parallel(model, plan):
    subprocess.run([AUTOMAP, "search", str(MODELS / model / "model.hlo.pb"), "--cluster", "host:2",
                    "--searcher", "expert", "--expert", "data_parallel", "-o", str(plan), "--quiet"],
                   check=True, stdout=subprocess.DEVNULL)


def measure(model, rounds, steps):
    """Seconds of the four columns."""
    with tempfile.TemporaryDirectory() as folder:
        plan = pathlib.Path(folder) / "plan.json"
        search_data_parallel(model, plan)
        columns = [lambda: run_automap(model, "none", steps), lambda: run_automap(model, plan, steps),
                   lambda: run_jax(model, True, steps), lambda: run_jax(model, False, steps)]
        return [min(row) for row in zip(*[[column() for column in columns] for _ in range(rounds)])]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=NAMES, metavar="MODEL", help=f"default {' '.join(NAMES)}")
    parser.add_argument("--rounds", type=int, default=3, help="default 3")
    parser.add_argument("--steps", type=int, default=210, help="of one round, more than 10; default 210")
    parser.add_argument("--quick", action="store_true", help="one short round of mlp_tiny, to see that it works")
    parser.add_argument("--jax-child", choices=["0", "1"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.steps <= WARM_UP:
        parser.error(f"--steps must be more than {WARM_UP}")
    if options.jax_child is not None:
        return jax_child(options.models[0], options.jax_child == "1", options.steps)
    if options.quick:
        options.models, options.rounds, options.steps = ["mlp_tiny"], 1, 2 * WARM_UP
    print("ms per step, the least of the rounds' medians")
    print(f"{'model':12}{'automap':>10}{'automap 2':>11}{'JAX 1 thread':>14}{'JAX':>9}"
          f"{'1 device / JAX 1':>18}{'2 ranks / JAX':>15}")
    for model in options.models:
        one, two, jax_one, jax_all = measure(model, options.rounds, options.steps)
        print(f"{model:12}{1e3 * one:10.3f}{1e3 * two:11.3f}{1e3 * jax_one:14.3f}{1e3 * jax_all:9.3f}"
              f"{one / jax_one:18.2f}{two / jax_all:15.2f}", flush=True)


if __name__ == "__main__":
    main()
