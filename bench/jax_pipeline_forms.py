"""Pipelines in JAX as one function for each part and pass, beside one program with shard_map and ppermute.

    AUTOMAP=build/automap PYTHONPATH=datasets python bench/jax_pipeline_forms.py [--write bench/README.md] [MODEL ...]

Both forms of `automap_jax.run` train with the same plan in one process on eight host devices, a step of one after a
step of the other. The table has the medians of the processor time of a step on all threads, of its ratio and of that of
step times, the time in which XLA compiles, and the bytes of the fullest device: arrays and temporary buffers. Takes ten
minutes.
"""

import argparse
import pathlib
import statistics
import sys
import tempfile
import time

import marked_section

SOURCE = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(SOURCE / "tests" / "e2e")]
import test_jax_pipelines as pipelines  # before JAX
from program import MODELS, succeed

import jax
import numpy as np

import automap_jax
from automap_jax import reference
from automap_jax.zoo import MODELS as ZOO

FORMS = "functions", "one_program"
EVEN = [*pipelines.EVEN, "--micro-batches", "8", "--mesh", "data=2", "--cluster", "nominal:8", "--schedule"]
PLANS = {name: pipelines.MORE for name in ("mlp_tiny", "gpt2_tiny", "vgg_tiny")}
PLANS["gpt2_small"] = {"1f1b": [*EVEN, "1f1b"]}
CASES = [("mlp_tiny", "gpipe"), ("mlp_tiny", "1f1b"), ("gpt2_small", "1f1b"), ("gpt2_tiny", "1f1b"),
         ("vgg_tiny", "gpipe"), ("gpt2_tiny", "gpipe")]
STEPS = {"gpt2_small": 3}
HEAD = ["| model | schedule, stages x devices | processor time, functions | one program | ratio | ratio of step times "
        "| compiled in, functions | one program | memory, functions | one program | ratio |",
        "|---|---|---|---|---|---|---|---|---|---|---|"]


def training(name, folder):
    """The step, its state, the data of a step, and the module."""
    if (MODELS / name / "state.npz").exists():
        step, state, data = pipelines.arguments_of(name)
        return step, state, data(0), next((MODELS / name).glob("model.hlo.pb*"))
    model = ZOO[name]()
    automap_jax.export(model.step, model.arguments, folder / name)
    data = [array[0] for array in model.data(1)]
    return model.step, [model.state()], data, folder / name / "model.hlo.pb"


class Compilation:
    """The seconds for which XLA compiles."""

    def __init__(self):
        self.seconds = 0
        jax.monitoring.register_event_duration_secs_listener(self.listen)

    def listen(self, event, seconds, **_):
        if event == "/jax/core/compile/backend_compile_duration":
            self.seconds += seconds


def steps_of(run, state, data):
    """Trains; gives the seconds, those of processors and the loss of each step."""
    while True:
        begin, begin_processor = time.perf_counter(), time.process_time()
        *results, loss = jax.block_until_ready(run(*state, *data))
        yield time.perf_counter() - begin, time.process_time() - begin_processor, float(loss)
        state = reference.successors(state, results)


def bytes_of_program(run, state, data):
    """The most bytes of a device: arrays, and the temporary buffers of the program."""
    next(steps_of(run, state, data))
    temporary = run.compiled.memory_analysis().temp_size_in_bytes
    arrays = max(pipelines.bytes_of_devices().values())
    return arrays + temporary


def bytes_of_functions(run, state, data):
    with pipelines.peak_memory() as peaks:
        next(steps_of(run, state, data))
    return max(peaks.values())


def measured(name, what, folder, compilation):
    """A row of the table."""
    step, state, data, module = training(name, folder)
    plan, file = folder / "plan.json", folder / "jax.json"
    succeed("search", module, "--for", "jax", *PLANS[name][what], "-o", plan, "--quiet")
    succeed("export", plan, module, "--format", "jax", "-o", file)
    document = pipelines.json.loads(file.read_text())
    runs, trains, compiled, losses = {}, {}, {}, {}
    for form in FORMS:
        runs[form] = automap_jax.run(document, step, (*state, *data), donate=True, form=form)
        trains[form] = steps_of(runs[form], jax.tree.map(np.array, state), data)
        before = compilation.seconds
        losses[form] = next(trains[form])[-1]
        compiled[form] = compilation.seconds - before
        next(trains[form])
    assert np.isclose(*losses.values(), rtol=pipelines.TOLERANCE), losses
    times = {form: [] for form in FORMS}
    for _ in range(STEPS.get(name, 20)):
        for form in FORMS:
            times[form].append(next(trains[form])[:2])
    pairs = list(zip(*times.values(), strict=True))
    wall, ratio = (statistics.median(b[k] / a[k] for a, b in pairs) for k in (0, 1))
    for train in trains.values():
        train.close()
    held = {}
    for form, count in zip(FORMS, (bytes_of_functions, bytes_of_program), strict=True):
        held[form] = count(runs[form], jax.tree.map(np.array, state), data)
        runs[form] = None
    times = [f"{1000 * statistics.median(row[1] for row in found):.1f} ms" for found in times.values()]
    stages, devices = len(document["stages"]), len(document["stages"][0]["mesh"]["devices"])
    compiled, memory = [f"{found:.1f} s" for found in compiled.values()], [f"{found:,}" for found in held.values()]
    return (f"| {name} | {document['schedule']}, {stages} x {devices} | {times[0]} | {times[1]} | {ratio:.2f} "
            f"| {wall:.2f} | {compiled[0]} | {compiled[1]} | {memory[0]} | {memory[1]} "
            f"| {held[FORMS[1]] / held[FORMS[0]]:.2f} |")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", metavar="DOCUMENT")
    parser.add_argument("models", nargs="*", metavar="MODEL")
    options = parser.parse_args()
    rows, compilation = list(HEAD), Compilation()
    print(*rows, sep="\n")
    with tempfile.TemporaryDirectory() as folder:
        for name, what in CASES:
            if not options.models or name in options.models:
                rows.append(measured(name, what, pathlib.Path(folder), compilation))
                print(rows[-1], flush=True)
    if options.write:
        marked_section.write(options.write, "bench/jax_pipeline_forms.py", "\n".join(rows) + "\n")


if __name__ == "__main__":
    main()
