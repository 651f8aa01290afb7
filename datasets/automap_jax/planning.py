"""Plans a step with automap and brings the plan back as shardings for jax.jit.

    shardings = plan(step, arguments, "nominal:8")
    step = jax.jit(step, in_shardings=shardings, out_shardings=(shardings[0], None))
    arguments = place(arguments, shardings)      # of NNX and Equinox, too

The package automap_hlo is used where it is installed. Otherwise, and for measured clusters (`host:4`), the
program automap runs: the file that the environment variable AUTOMAP names, else `automap` on the PATH. With
the variable the program always runs.
"""

import functools
import json
import os
import pathlib
import subprocess
import tempfile
import warnings

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from . import graph_objects
from .exporter import lower_traced, traced_step, write_files
from .step_graph import Graph, evaluate, operand_arrays

FORMAT, STAGES = "automap-jax-1", "automap-jax-2"


def automap(*arguments):
    """Runs the automap program; its error message becomes that of the exception."""
    program = os.environ.get("AUTOMAP", "automap")
    try:
        done = subprocess.run([program, *map(str, arguments), "--quiet"], capture_output=True, text=True)
    except OSError as error:
        raise RuntimeError(
            f"{program}: {error.strerror}; set the environment variable AUTOMAP to the path of the "
            "automap program, or put it on the PATH"
        ) from None
    if done.returncode:
        raise RuntimeError(f"{program} {arguments[0]}: {done.stderr.strip()}")


def library():
    """The package automap_hlo with its library, or None."""
    if os.environ.get("AUTOMAP"):
        return None
    try:
        import automap_hlo
    except ImportError:
        return None
    return automap_hlo


def keywords(options, known):
    """["--seed", 1, "--even"] as keyword arguments of automap_hlo.search, whose options are `known`.

    A name that is not known, such as an earlier one of an option, is a switch where no value follows."""
    switches = {option.key for option in known if option.value is None}
    names = {option.key for option in known}
    found, words = {}, list(map(str, options))
    while words:
        key, equals, value = words.pop(0).removeprefix("--").partition("=")
        is_last = not words or words[0].startswith("--")
        if key in switches or (key not in names and not equals and is_last):
            value = True
        elif not equals and not words:
            raise ValueError(f"options: --{key} without a value")
        elif not equals:
            value = words.pop(0)
        found.setdefault(key.replace("-", "_"), []).append(value)
    return found


def search(path, roles, cluster, options):
    """The document of `export --format jax` of the plan that a search finds for the module at `path`."""
    package = None if str(cluster).startswith("host:") else library()
    if package:
        found = package.search(
            package.Module(path, roles), cluster, **keywords(options, package.options("search"))
        )
        return json.loads(package.export(found, "jax"))
    found, result = path.with_name("plan.json"), path.with_name("jax.json")
    automap("search", path, "--roles", roles, "--cluster", cluster, "-o", found, *options)
    automap("export", found, path, "--roles", roles, "--format", "jax", "-o", result)
    return json.loads(result.read_text())


def check_cluster(cluster):
    """Raises where a cluster is neither a name nor a path."""
    if not isinstance(cluster, (str, os.PathLike)):
        raise TypeError(
            'cluster: expected a built-in name such as "nominal:8" or the path of a cluster file, '
            f"got {type(cluster).__name__}"
        )


def partition(leaf, spec):
    """The PartitionSpec of one leaf; a random key is one element, whatever integers it holds."""
    if jax.dtypes.issubdtype(getattr(leaf, "dtype", None), jax.dtypes.prng_key):
        spec = ()
    return PartitionSpec(*(axes and tuple(axes) for axes in spec))


def sharding_of(mesh, leaf, row):
    """The NamedSharding of one leaf by its row: optimizer state of an offloading plan is in the host's memory."""
    return NamedSharding(mesh, partition(leaf, row["spec"]), memory_kind=row.get("memory_kind"))


def mesh_of(row, devices=None):
    """The Mesh that a row "mesh" of a document describes, on `devices` or the first of jax.devices()."""
    count = int(np.prod(row["shape"]))
    devices = list(jax.devices() if devices is None else devices)
    if len(devices) < count:
        raise ValueError(f"the plan is for {count} devices, JAX has {len(devices)} (expected a cluster of at most "
                         f'{len(devices)}; jax.config.update("jax_num_cpu_devices", {count}) before the first use of '
                         "JAX gives it as many CPU devices)")
    chosen = [devices[number] for number in row.get("devices", range(count))]
    return Mesh(np.array(chosen).reshape(row["shape"]), row["axis_names"])


def constrain(document, step, devices=None):
    """`step` with the shardings of intermediate values that the plan decides and XLA cannot know from parameters and
    results, such as those of the parts of a batch that a loop reads. Its results are those of `step`.

    document   the parsed output of `automap export --format jax`
    step       the whole step that was exported, a function of trees of arrays
    devices    JAX devices to use, row-major over the mesh; default the first of jax.devices()

    A plan without such values gives the step as it is.
    """
    rows = document.get("constraints")
    if not rows:
        return step
    mesh = mesh_of(document["mesh"] if "mesh" in document else document["stages"][0]["mesh"], devices)

    @functools.wraps(step)
    def constrained(*arguments):
        closed, output = jax.make_jaxpr(step, return_shape=True)(*arguments)
        graph = Graph(closed)
        places = {value: NamedSharding(mesh, PartitionSpec(*spec)) for value, spec in specs_of(rows, graph).items()}
        values = dict(zip(graph.inputs, jax.tree.leaves(arguments), strict=True))
        evaluate(graph.nodes, values, places)
        return jax.tree.structure(output).unflatten(operand_arrays(graph.outputs, values))

    return constrained


def specs_of(rows, graph):
    """{value of a graph: axes of each dimension} of the rows `constraints` of a document. A warning names results of
    which the step has another number than the module."""
    places, specs = {}, {}
    for node in graph.nodes:
        for value in node.outputs:
            places.setdefault((node.primitive.name, tuple(graph.shapes[value])), []).append(value)
    for name, shape, count, number, spec in rows:
        found = places.get((name, tuple(shape)), [])
        if len(found) == count:
            specs[found[number]] = [axes and tuple(axes) for axes in spec]
        else:
            warnings.warn(f"the plan shards one of {count} results of {name} of shape {shape}, the step has "
                          f"{len(found)}: its sharding is left to XLA")
    return specs


def shardings(document, arguments, output=None, devices=None):
    """NamedShardings for the arguments, and for the output where its tree is given. Offloaded optimizer state has the
    memory kind "pinned_host": the step that jax.jit compiles copies it, as that of `run` does (`offloaded`).

    document   the parsed output of `automap export --format jax`: a plan of one stage and one micro-batch; its
               recomputation is that of `checkpoint`
    arguments  the step's positional arguments, in any form that has their trees
    output     the step's output, likewise
    devices    JAX devices to use, row-major over the mesh; default the first of jax.devices()
    """
    rows, mesh = document["parameters"], document.get("mesh")
    if document.get("format") == STAGES and len(document["stages"]) == document["micro_batches"] == 1:
        mesh = document["stages"][0]["mesh"]
        results = {row["output"]: row for row in rows if row["output"] is not None}
        count = len(jax.tree.leaves(output))
        document = {"outputs": [{"spec": (), **results.get(at, {}), "index": at} for at in range(count)]}
    elif document.get("format") != FORMAT:
        raise ValueError(f"expected format {FORMAT}, found {document.get('format')} "
                         "(automap_jax.run runs plans of stages and micro-batches)")
    mesh = mesh_of(mesh, devices)

    def tree(like, rows, key):
        by_number = {row[key]: row for row in rows}
        leaves, structure = jax.tree.flatten(like)
        return structure.unflatten(sharding_of(mesh, leaf, by_number[number]) for number, leaf in enumerate(leaves))

    inputs = tree(tuple(arguments), rows, "number")
    return inputs if output is None else (inputs, tree(output, document["outputs"], "index"))


def offloaded(function, inputs, outputs):
    """A function of arrays that gives arrays, for arrays in the host's memory: it copies them to the devices, and its
    results to the host. XLA chooses the time of each copy.

    inputs, outputs  NamedShardings of the arrays and of the results, or None
    """

    def in_host(place):
        return place is not None and place.memory_kind == "pinned_host"

    if not any(map(in_host, [*inputs, *outputs])):
        return function

    def copied(*arrays):
        here = [jax.device_put(array, place.with_memory_kind("device")) if in_host(place) else array
                for array, place in zip(arrays, inputs, strict=True)]
        return [jax.device_put(result, place) if in_host(place) else result
                for result, place in zip(function(*here), outputs, strict=True)]

    return copied


def of_objects(step, tree):
    """`tree`, one value for each array of the step, in the form of the step's arguments: an object
    of NNX becomes an nnx.State, a static leaf None."""
    known = {}  # id of an array: its value; a variable that two objects share stands in one
    for leaf, value in zip(jax.tree.leaves(step.trees), jax.tree.leaves(tree), strict=True):
        known.setdefault(id(leaf), value)
    found = []
    for (leaves, _, structure), part in zip(step.call.parts, tree, strict=True):
        values = [
            graph_objects.state_of(leaf, known) if graph_objects.is_object(leaf) else value
            for leaf, value in zip(leaves, structure.flatten_up_to(part), strict=True)
        ]
        found.append(structure.unflatten(values))
    count = step.call.count
    return tuple(found[:count]), dict(zip(step.call.names, found[count:]))


def place(arguments, shardings):
    """The arguments of a step on the devices that `plan` chose; objects of NNX are moved in place,
    static leaves stay."""
    leaves, structure = jax.tree.flatten(tuple(arguments), is_leaf=graph_objects.is_object)
    wanted = structure.flatten_up_to(tuple(shardings))

    def placed(leaf, sharding):
        if graph_objects.is_object(leaf):
            return graph_objects.place(leaf, sharding)
        return leaf if sharding is None else jax.device_put(leaf, sharding)

    return structure.unflatten(map(placed, leaves, wanted))


def plan(
    step,
    example_arguments,
    cluster,
    *,
    constants=(),
    updates=None,
    data_arguments=(),
    loss=None,
    example_kwargs=None,
    inference=False,
    options=(),
):
    """Searches a plan for `step` on a cluster, a built-in name or a file, and returns a tuple of
    NamedShardings like the arguments, for jax.jit's in_shardings and for `place`. An object of NNX
    is an nnx.State of shardings there, a leaf that is no array None; of a method the first is that
    of its object. With example_kwargs the result is (tuple, dict).

    constants, updates, data_arguments, loss, example_kwargs and inference are those of `export`;
    options are those of `automap search`, for instance ["--seed", 1]. Shardings cannot say pipeline stages
    or micro-batches, and are equal: the search is for plans of one stage and one micro-batch that
    cut evenly (--even). The step keeps its own recomputation (--keep-remat). Errors are those of
    automap_hlo, or a RuntimeError of the program.
    """
    if isinstance(options, str):
        raise TypeError("options: expected a list such as ['--seed', 1], got a string")
    check_cluster(cluster)
    traced = traced_step(step, example_arguments, example_kwargs)
    _, module, document = lower_traced(traced, constants, updates, data_arguments, loss, inference)
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        write_files(module, document, directory)
        switches = ["--even", "--keep-remat", *(["--inference"] if inference else [])]
        required = [switch for switch in switches if switch not in options]
        path, roles = directory / "model.hlo.pb", directory / "model.roles.json"
        document = search(path, roles, cluster, [*required, *options])
    positional, named = of_objects(traced.step, shardings(document, traced.step.trees))
    return (positional, named) if example_kwargs else positional
