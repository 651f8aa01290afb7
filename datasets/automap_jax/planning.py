"""Plans a step with the automap program and brings the plan back as shardings for jax.jit.

    shardings = plan(step, arguments, "nominal:8")
    step = jax.jit(step, in_shardings=shardings)

The program is found by the environment variable AUTOMAP, else as `automap` on the PATH.
"""

import json
import os
import pathlib
import subprocess
import tempfile

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from .exporter import write_module

FORMAT = "automap-jax-1"


def automap(*arguments):
    """Runs the automap program; its error message becomes that of the exception."""
    program = os.environ.get("AUTOMAP", "automap")
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{program} {arguments[0]}: {done.stderr.strip()}")


def partition(leaf, spec):
    """The PartitionSpec of one leaf; a random key is one element, whatever integers it holds."""
    if jax.dtypes.issubdtype(getattr(leaf, "dtype", None), jax.dtypes.prng_key):
        spec = ()
    return PartitionSpec(*(axes and tuple(axes) for axes in spec))


def shardings(document, arguments, output=None, devices=None):
    """NamedShardings for the arguments, and for the output where its tree is given.

    document   what `automap export --format jax` wrote, parsed
    arguments  the step's positional arguments, in any form that has their trees
    output     the step's output, likewise
    devices    JAX devices to use, row-major over the mesh; default the first of jax.devices()
    """
    if document.get("format") != FORMAT:
        raise ValueError(f"expected format {FORMAT}, found {document.get('format')}")
    shape = document["mesh"]["shape"]
    count = int(np.prod(shape))
    devices = list(jax.devices() if devices is None else devices)
    if len(devices) < count:
        raise ValueError(f"the plan is for {count} devices, JAX has {len(devices)}")
    mesh = Mesh(np.array(devices[:count]).reshape(shape), document["mesh"]["axis_names"])

    def tree(like, rows, key):
        specs = {row[key]: row["spec"] for row in rows}
        leaves, structure = jax.tree.flatten(like)
        return structure.unflatten(
            NamedSharding(mesh, partition(leaf, specs[number]))
            for number, leaf in enumerate(leaves)
        )

    inputs = tree(tuple(arguments), document["parameters"], "number")
    return inputs if output is None else (inputs, tree(output, document["outputs"], "index"))


def plan(
    step,
    example_arguments,
    cluster,
    *,
    constants=(),
    updates=None,
    data_arguments=(),
    loss=None,
    options=(),
):
    """Searches a plan for `step` on a cluster, a built-in name or a file, and returns a tuple of
    NamedShardings like the arguments, for jax.jit's in_shardings.

    constants, updates, data_arguments and loss are those of `export`; options go to `automap search`, for instance
    ["--seed", 1]. Shardings cannot say pipeline stages or micro-batches, and are equal: the search is for plans
    of one stage and one micro-batch that cut evenly (--even).
    """
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        write_module(
            step,
            tuple(example_arguments),
            directory,
            constants,
            updates,
            data_arguments=data_arguments,
            loss=loss,
        )
        module, roles = directory / "model.hlo.pb", directory / "model.roles.json"
        found, result = directory / "plan.json", directory / "jax.json"
        automap("search", module, "--roles", roles, "--cluster", cluster, "--even", "-o", found, *options)
        automap("export", found, module, "--roles", roles, "--format", "jax", "-o", result)
        document = json.loads(result.read_text())
    return shardings(document, example_arguments)
