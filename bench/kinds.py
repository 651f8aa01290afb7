"""Kinds of training steps that the zoo does not have, in sizes that take a cluster: ours beside the baselines.

Four of tests/oracle/training_steps.py, exported without values and searched with the defaults on 16 H100. Columns:
kind, ours, the best baseline and its name, data parallel, gap, seconds of import and search of all processors. Exit
code 1: a step is slower than a baseline. Needs JAX to export.

    AUTOMAP=build/automap PYTHONPATH=datasets python bench/write_section.py bench/README.md python bench/kinds.py
"""

import argparse
import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile

os.environ["JAX_PLATFORMS"] = "cpu"
SOURCE = pathlib.Path(__file__).resolve().parents[1]
AUTOMAP = os.environ.get("AUTOMAP", str(SOURCE / "build" / "automap"))
sys.path += [str(SOURCE / "datasets"), str(SOURCE / "tests" / "oracle")]
SIZES = {
    "recommender": dict(batch=8192, tables=8, rows=4_000_000, width=128, hidden=1024),
    "graph": dict(nodes=1_000_000, edges=16_000_000, width=256, hidden=512, classes=47),
    "state_space": dict(batch=64, time=2048, width=4096, states=16, classes=32_000),
    "triangles": dict(batch=8, places=512, width=128),
}
NAMES = {
    "recommender": "recommender, 8 tables of 4 million rows",
    "graph": "graph of 1 million nodes, 16 million edges",
    "state_space": "state space, 64 sequences of 2,048",
    "triangles": "triangles, 8 folds of 512 places",
}


def milliseconds(seconds):
    return f"{seconds * 1e3:.4g} ms" if seconds is not None else "does not fit"


def processor_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def search(module, cluster):
    start = processor_seconds()
    done = subprocess.run([AUTOMAP, "search", module, "--cluster", cluster, "-o", os.devnull, "--json"],
                          capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout), processor_seconds() - start


def main():
    import automap_jax
    from training_steps import STEPS, Shapes

    parser = argparse.ArgumentParser()
    parser.add_argument("--cluster", default="h100:2")
    cluster, slower = parser.parse_args().cluster, 0
    print("| kind | ours | best baseline | data parallel | gap | processors |\n|---|---|---|---|---|---|")
    for kind, sizes in SIZES.items():
        step, state, data = STEPS[kind](Shapes(), **sizes)
        with tempfile.TemporaryDirectory() as folder:
            automap_jax.export(step, (state, *data), folder)
            found, took = search(pathlib.Path(folder) / "model.hlo.pb", cluster)
        baselines = {name: seconds for name, seconds in found["baselines"].items() if seconds}
        best, ours = min(baselines, key=baselines.get), found["step_seconds"]
        slower += ours > baselines[best]
        cells = [NAMES[kind], milliseconds(ours), f"{milliseconds(baselines[best])}, {best}",
                 milliseconds(baselines.get("data_parallel")), f"{found['gap'] * 100:.0f} %", f"{took:.1f} s"]
        print("| " + " | ".join(cells) + " |", flush=True)
    sys.exit(slower > 0)


if __name__ == "__main__":
    main()
