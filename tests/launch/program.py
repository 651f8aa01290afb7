"""The program as tests run it ($AUTOMAP), the models, and the choice of the long form of the tests."""

import contextlib
import json
import os
import pathlib
import subprocess
import sys

AUTOMAP = os.environ.get("AUTOMAP", "build/automap")
MODELS = pathlib.Path(__file__).resolve().parents[2] / "datasets" / "models"
FULL = os.environ.get("AUTOMAP_FULL") == "1"


def module(name):
    """The module of a model, compressed or not."""
    return next((MODELS / name).glob("model.hlo.pb*"))


def need_program():
    """Ends the test as skipped (77) where $AUTOMAP names no program."""
    if "AUTOMAP" not in os.environ or not os.path.exists(AUTOMAP):
        print("skipped: no automap program")
        sys.exit(77)


@contextlib.contextmanager
def skip_where_missing():
    """Ends the test as skipped (77) without the program, or without a module that is imported inside."""
    need_program()
    try:
        yield
    except ImportError as missing:
        print(f"skipped: {missing}")
        sys.exit(77)


def automap(*words, threads=None):
    environment = os.environ | ({"AUTOMAP_THREADS": str(threads)} if threads else {})
    return subprocess.run([AUTOMAP, *map(str, words)], capture_output=True, text=True, env=environment)


def succeed(*words, **more):
    """Returns the standard output of a command that must succeed."""
    done = automap(*words, **more)
    assert done.returncode == 0, f"automap {' '.join(map(str, words))}: {done.returncode}\n{done.stderr}"
    return done.stdout


def losses(model, plan, source, steps):
    """Of each step; `source` is where the state and the data are."""
    lines = succeed("run", model, "--plan", plan, *source, "--steps", steps, "--json").splitlines()
    return [step["loss"] for step in map(json.loads, lines) if "loss" in step]
