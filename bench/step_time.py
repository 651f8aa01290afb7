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
models take random values (`--state random`), as their time does not depend on them; those of medium
size (NAME_medium of the zoo) are exported into a passing folder first. Unless they are named, large models run with all
processors alone.

With --processor the figures are seconds of the processors' own time (user and system, all threads
of the process) over the steps after the warm-up, their mean: what waiting for a processor that
others use does not count in. Both sides' threads spin while they wait for one another, so on a
machine with free processors the time on the clock says more, above all with all processors.

Run as `AUTOMAP=build/automap PYTHONPATH=datasets python bench/step_time.py [--quick] [MODEL ...]`.
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

SOURCE = pathlib.Path(__file__).resolve().parents[1]
MODELS = SOURCE / "datasets" / "models"
AUTOMAP = os.environ.get("AUTOMAP", str(SOURCE / "build" / "automap"))
SMALL = ["mlp_tiny", "mlp", "gpt2_tiny", "gpt2_bf16_tiny", "bert_tiny", "t5_tiny", "llama_tiny", "lstm_tiny",
         "moe_tiny",
         "moe_sorted_tiny", "vgg_tiny", "resnet_tiny", "vit_tiny", "unet_tiny"]
MEDIUM = ["lstm_medium", "llama_medium", "moe_medium", "moe_sorted_medium"]
LARGE = ["resnet50_batch16", "gpt2_batch1"]


def is_large(model):
    return not (MODELS / model / "state.npz").exists() and model not in MEDIUM


def module_of(model, exported):
    """Its module; one that datasets/models/ has not is exported first."""
    for path in (MODELS / model / "model.hlo.pb", MODELS / model / "model.hlo.pb.zst",
                 exported / model / "model.hlo.pb"):
        if path.exists():
            return path
    command = [sys.executable, "-m", "automap_jax.export", model, "--out", exported / model]
    environment = dict(os.environ, JAX_PLATFORMS="cpu", PYTHONPATH=str(SOURCE / "datasets"))
    subprocess.run(list(map(str, command)), env=environment, check=True, stdout=subprocess.DEVNULL)
    return path


def warm_up(model):
    return 1 if is_large(model) else 2 if model in MEDIUM else 10


def steps_of(model, steps):
    return 3 if is_large(model) else min(steps, 12) if model in MEDIUM else steps


def kept_to(processors):
    return lambda: os.sched_setaffinity(0, processors)


def processor_seconds(process):
    """User and system time of a process until now, with all its threads."""
    fields = pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run_automap(model, module, one_thread, steps, processor):
    """Returns the median of the seconds of a step that the program prints; otherwise the mean processor time."""
    arguments = ["run", module, "--plan", "none", "--steps", steps, "--json"]
    state = module.parent / "state.npz"
    arguments += ["--state", state, "--data", module.parent / "data.npz"] if state.exists() else ["--state", "random"]
    arguments += ["--threads", 1] if one_thread else []
    one = {min(os.sched_getaffinity(0))}
    run = subprocess.Popen([AUTOMAP, *map(str, arguments)], stdout=subprocess.PIPE, text=True,
                           preexec_fn=kept_to(one) if one_thread else None)
    seconds, used = [], []
    for line in run.stdout:
        row = json.loads(line)
        if "step" in row:
            seconds.append(row["seconds"])
            used.append(processor_seconds(run.pid))
    if run.wait() != 0:
        raise SystemExit(f"step_time: {model}: automap ended with {run.returncode}")
    skipped = warm_up(model)
    return (used[-1] - used[skipped - 1]) / (len(used) - skipped) if processor else statistics.median(seconds[skipped:])


def run_jax(model, one_thread, steps, processor):
    """The same by JAX, in a process of its own: flags and processors are set before it starts."""
    environment = dict(os.environ, JAX_PLATFORMS="cpu", PYTHONPATH=str(SOURCE / "datasets"))
    environment.pop("XLA_FLAGS", None)
    if one_thread:
        environment["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
    command = [sys.executable, __file__, "--jax-child", "1" if one_thread else "0", "--steps", str(steps), model]
    command += ["--processor"] if processor else []
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return float(done.stdout)


def jax_child(model_name, one_thread, steps, processor):
    """Trains with jax.jit and prints the median seconds of a step, or the mean of the processor's time."""
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
    seconds, used = [], []
    for number in range(steps):
        begin = time.perf_counter()
        *outputs, loss = step(*arguments, *batches[number % batch_count])
        float(loss)
        jax.block_until_ready(outputs)
        seconds.append(time.perf_counter() - begin)
        used.append(time.process_time())
        arguments = reference.successors(arguments, outputs)
    skipped = warm_up(model_name)
    print((used[-1] - used[skipped - 1]) / (steps - skipped) if processor else statistics.median(seconds[skipped:]))


def measure(model, module, rounds, steps, processor, one_thread):
    """Seconds of the four columns; NaN in the first two where they are left out."""
    columns = [lambda: run_automap(model, module, True, steps, processor),
               lambda: run_jax(model, True, steps, processor),
               lambda: run_automap(model, module, False, steps, processor),
               lambda: run_jax(model, False, steps, processor)]
    columns = columns if one_thread else [lambda: math.nan] * 2 + columns[2:]
    return [min(row) for row in zip(*[[column() for column in columns] for _ in range(rounds)])]


def show(models, options, exported):
    if not options.json:
        print("ms of the processors per step" if options.processor else "ms per step, the least of the rounds' medians")
        print(f"{'model':18}{'automap 1':>11}{'JAX 1':>10}{'ratio':>7}{'automap':>11}{'JAX':>10}{'ratio':>7}",
              flush=True)
    for model in models:
        rounds = min(options.rounds, 2) if is_large(model) else options.rounds
        figures = measure(model, module_of(model, exported), rounds, steps_of(model, options.steps), options.processor,
                          one_thread=not is_large(model) or model in options.models)
        one, jax_one, every, jax_every = (1e3 * figure for figure in figures)
        if options.json:
            row = {"model": model, "automap": every, "jax": jax_every}
            print(json.dumps(row | ({} if math.isnan(one) else {"automap_1": one, "jax_1": jax_one})), flush=True)
            continue
        print(f"{model:18}{one:11.3f}{jax_one:10.3f}{one / jax_one:7.2f}{every:11.3f}{jax_every:10.3f}"
              f"{every / jax_every:7.2f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"default {' '.join(SMALL + MEDIUM + LARGE)}")
    parser.add_argument("--rounds", type=int, default=3, help="default 3; of large models at most 2")
    parser.add_argument("--steps", type=int, default=110,
                        help="of one round, more than 10; models of medium size take 12, large ones 3")
    parser.add_argument("--quick", action="store_true", help="one short round of mlp_tiny, to see that it works")
    parser.add_argument("--processor", action="store_true", help="the processors' own time instead of the clock's")
    parser.add_argument("--json", action="store_true", help="a line of JSON per model")
    parser.add_argument("--jax-child", choices=["0", "1"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.jax_child is not None:
        return jax_child(options.models[0], options.jax_child == "1", options.steps, options.processor)
    if options.steps <= 10:
        parser.error("--steps must be more than 10")
    if options.quick:
        options.models, options.rounds, options.steps = ["mlp_tiny"], 1, 20
    with tempfile.TemporaryDirectory() as folder:
        show(options.models or SMALL + MEDIUM + LARGE, options, pathlib.Path(folder))


if __name__ == "__main__":
    main()
