"""The program as tests run it: $AUTOMAP."""

import json
import os
import subprocess

AUTOMAP = os.environ.get("AUTOMAP", "build/automap")


def automap(*words, threads=None):
    environment = os.environ | ({"AUTOMAP_THREADS": str(threads)} if threads else {})
    return subprocess.run([AUTOMAP, *map(str, words)], capture_output=True, text=True, env=environment)


def succeed(*words, **more):
    """Standard output of what must end well."""
    done = automap(*words, **more)
    assert done.returncode == 0, f"automap {' '.join(map(str, words))}: {done.returncode}\n{done.stderr}"
    return done.stdout


def losses(model, plan, source, steps):
    """Of each step; `source` is where the state and the data are."""
    lines = succeed("run", model, "--plan", plan, *source, "--steps", steps, "--json").splitlines()
    return [step["loss"] for step in map(json.loads, lines) if "loss" in step]
