"""Writes a JAX training step as the files that automap reads.

The module is the one that JAX hands to XLA: lowered, not yet optimised, with op names, source
lines and the donation of the state as input_output_alias. Lowering needs shapes only, so a step
of eleven billion parameters exports from ShapeDtypeStructs.
"""

import inspect
import pathlib

import jax
import numpy as np

from . import module_proto
from .roles import roles, write

STATE_ROLES = ("weight", "optimizer", "state", "constant")


def lower(step, arguments, constants=(), updates=None):
    """Lowers `step`; returns (the lowered step, serialised HloModuleProto, roles document)."""
    plain = inspect.unwrap(step)
    traced = jax.jit(plain).trace(*arguments)
    shapes = jax.eval_shape(lambda *leaves: leaves, *arguments)
    document = roles(shapes, traced.out_info, traced.jaxpr.jaxpr, constants, updates)
    paired = iter(row["output"] is not None for row in document["parameters"])
    donated = tuple(
        position
        for position, argument in enumerate(arguments)
        if any([next(paired) for _ in jax.tree.leaves(argument)])
    )
    lowered = jax.jit(plain, donate_argnums=donated, keep_unused=True).lower(*arguments)
    module = lowered.compiler_ir("hlo").as_serialized_hlo_module_proto()
    paths = module_proto.parameter_paths(module)
    assert len(paths) == len(document["parameters"]), "one entry parameter per leaf"
    document["parameters"] = [
        {"number": row["number"], "path": path, "role": row["role"], "output": row["output"]}
        for row, path in zip(document["parameters"], paths)
    ]
    return lowered, module, document


def as_numpy(leaf):
    """The array as its module's parameter sees it: a random key is the integers it holds."""
    if jax.dtypes.issubdtype(getattr(leaf, "dtype", None), jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return np.asarray(leaf)


def named_arrays(rows, values):
    """{path: array} of the leaves of `values`, one for each row of the roles document."""
    leaves = jax.tree.leaves(values)
    if len(leaves) != len(rows):
        raise ValueError(f"{len(leaves)} arrays given for {len(rows)} parameters")
    return {row["path"]: as_numpy(leaf) for row, leaf in zip(rows, leaves)}


def write_module(step, arguments, directory, constants=(), updates=None):
    """Writes model.hlo.pb and model.roles.json; returns the lowered step and the roles document."""
    directory.mkdir(parents=True, exist_ok=True)
    lowered, module, document = lower(step, arguments, constants, updates)
    (directory / "model.hlo.pb").write_bytes(module)
    write(document, directory / "model.roles.json")
    return lowered, document


def export(
    step, example_arguments, directory, state=None, data=None, *, constants=(), updates=None
):
    """Writes model.hlo.pb and model.roles.json, and state.npz and data.npz where values are known.

    step               step(state..., data...) -> (new state..., loss, ...), jitted or not
    example_arguments  its positional arguments: arrays or ShapeDtypeStructs
    state              values of all arguments that are not data, in their order, as any pytree;
                       left out, the example arguments are taken where they are arrays
    data               likewise for the data; a leading dimension more holds successive batches
    constants          positions of the arguments that are neither updated nor data
    updates            {argument position: first output leaf}, where the pytrees do not tell

    Returns the lowered step and the roles document.
    """
    directory = pathlib.Path(directory)
    arguments = tuple(example_arguments)
    lowered, document = write_module(step, arguments, directory, constants, updates)
    leaves = jax.tree.leaves(arguments)
    for name, values, is_state in (("state", state, True), ("data", data, False)):
        rows = [row for row in document["parameters"] if (row["role"] in STATE_ROLES) == is_state]
        if values is None:
            values = [leaves[row["number"]] for row in rows]
        if any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(values)):
            continue
        np.savez_compressed(directory / f"{name}.npz", **named_arrays(rows, values))
    return lowered, document
