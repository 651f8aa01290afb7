"""The memory of a step that XLA compiles under a plan of one program, as JAX reports it, beside the prediction.

Import it before JAX: it asks for eight host devices.
"""

import json
import os
import pathlib
import subprocess

from host_devices import make_devices

make_devices(8)  # buffers are the same without LLVM's optimisations

import jax

import automap_jax


def program(*words):
    """Runs automap; the error of its failure is an AssertionError."""
    done = subprocess.run([os.environ.get("AUTOMAP", "automap"), *map(str, words)], capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(map(str, words))}: {done.stderr}"


def searched(module, options, folder):
    """(predicted bytes of the fullest device, document of `export --format jax`) of the plan for JAX."""
    plan, file = pathlib.Path(folder) / "plan.json", pathlib.Path(folder) / "jax.json"
    program("search", module, "--for", "jax", "--cluster", "nominal:8", *options, "-o", plan, "--quiet")
    program("export", plan, module, "--format", "jax", "-o", file)
    devices = json.loads(plan.read_text())["predicted"]["devices"]
    return max(device["peak_bytes"] for device in devices), json.loads(file.read_text())


def reported(document, step, arguments):
    """Bytes of a device: arguments, results beside the donated state, and temporary buffers."""
    run = automap_jax.run(document, step, arguments, donate=True)
    found = run.jitted.lower(*run.shapes).compile().memory_analysis()
    return (found.argument_size_in_bytes + found.output_size_in_bytes - found.alias_size_in_bytes
            + found.temp_size_in_bytes)
