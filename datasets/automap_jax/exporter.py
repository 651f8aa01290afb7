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


def without_jit(step):
    """The function inside of jax.jit; any other wrapper is part of what the step computes."""
    is_jitted = isinstance(step, type(jax.jit(abs)))
    return step.__wrapped__ if is_jitted else step


def names_of_arguments(step, count):
    """Names for messages; a wrapper with *args leaves positions."""
    try:
        names = list(inspect.signature(step).parameters.values())
    except (TypeError, ValueError):
        return []
    return [name.name for name in names if name.kind == name.POSITIONAL_OR_KEYWORD][:count]


def lower(step, arguments, constants=(), updates=None, *, data_arguments=(), loss=None):
    """Lowers `step`; returns (the lowered step, serialised HloModuleProto, roles document)."""
    plain = without_jit(step)
    traced = jax.jit(plain).trace(*arguments)
    shapes = jax.eval_shape(lambda *leaves: leaves, *arguments)
    document = roles(
        shapes,
        traced.out_info,
        traced.jaxpr.jaxpr,
        constants,
        updates,
        data_arguments=data_arguments,
        loss=loss,
        argument_names=names_of_arguments(plain, len(arguments)),
    )
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


def as_numpy(leaf, dtype=None):
    """The array as its module's parameter sees it: of the type that JAX lowered, which need not be
    NumPy's; a random key is the integers it holds."""
    if jax.dtypes.issubdtype(getattr(leaf, "dtype", None), jax.dtypes.prng_key):
        return np.asarray(jax.random.key_data(leaf))
    if dtype is None or jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key):
        return np.asarray(leaf)
    return np.asarray(leaf).astype(dtype, copy=False)


def named_arrays(rows, values, dtypes=None, what="state"):
    """{path: array} of the leaves of `values`, one for each row of the roles document; `dtypes`
    are those of all the arguments' leaves."""
    leaves = jax.tree.leaves(values)
    if len(leaves) != len(rows):
        names = ", ".join(row["path"] for row in rows) or "nothing"
        raise ValueError(f"{what}: {len(leaves)} arrays given, but {what} is: {names}")
    return {
        row["path"]: as_numpy(leaf, dtypes and dtypes[row["number"]])
        for row, leaf in zip(rows, leaves)
    }


def write_module(
    step, arguments, directory, constants=(), updates=None, *, data_arguments=(), loss=None
):
    """Writes model.hlo.pb and model.roles.json; returns the lowered step and the roles document."""
    directory.mkdir(parents=True, exist_ok=True)
    lowered, module, document = lower(
        step, arguments, constants, updates, data_arguments=data_arguments, loss=loss
    )
    (directory / "model.hlo.pb").write_bytes(module)
    write(document, directory / "model.roles.json")
    return lowered, document


def arguments_of_data(arguments, data, apart):
    """Positions of the arguments whose values `data` holds, found by shape from the last backward:
    a leaf of data has the shape of its argument, or a dimension of batches more."""
    values = [np.shape(leaf) for leaf in jax.tree.leaves(data)]
    found = []
    for position in reversed(range(len(arguments))):
        shapes = [np.shape(leaf) for leaf in jax.tree.leaves(arguments[position])]
        given = values[len(values) - len(shapes) :]
        if position in apart or not shapes or len(given) < len(shapes):
            continue
        if all(value in (shape, (*value[:1], *shape)) for value, shape in zip(given, shapes)):
            found.append(position)
            values = values[: len(values) - len(shapes)]
    return () if values else tuple(found)


def export(
    step,
    example_arguments,
    directory,
    state=None,
    data=None,
    *,
    constants=(),
    updates=None,
    data_arguments=(),
    loss=None,
):
    """Writes model.hlo.pb and model.roles.json, and state.npz and data.npz where values are known.

    step               step(state..., data...) -> (new state..., loss, ...), jitted or not
    example_arguments  its positional arguments: arrays or ShapeDtypeStructs
    state              values of all arguments that are not data, in their order, as any pytree;
                       left out, the example arguments are taken where they are arrays
    data               likewise for the data; a leading dimension more holds successive batches;
                       arguments whose values it holds are data
    constants          positions of the arguments that are neither updated nor data
    updates            {argument position: first output leaf}, where the pytrees do not tell
    data_arguments     positions of arguments that are data although they look like state
    loss               the output leaf that is the loss, by number, path or a part of its path;
                       left out, the floating scalar whose path says loss, else the first
                       that depends on the state

    Returns the lowered step and the roles document.
    """
    directory = pathlib.Path(directory)
    arguments = tuple(example_arguments)
    lowered, document = write_module(
        step, arguments, directory, constants, updates, data_arguments=data_arguments, loss=loss
    )
    found = [row for row in document["parameters"] if row["role"] not in STATE_ROLES]
    if data is not None and len(jax.tree.leaves(data)) > len(found):
        data_arguments = arguments_of_data(arguments, data, {*constants, *(updates or {})})
        lowered, document = write_module(
            step, arguments, directory, constants, updates, data_arguments=data_arguments, loss=loss
        )
    leaves = jax.tree.leaves(arguments)
    shapes = jax.eval_shape(lambda *values: values, *arguments)
    dtypes = [leaf.dtype for leaf in jax.tree.leaves(shapes)]
    for name, values, is_state in (("state", state, True), ("data", data, False)):
        rows = [row for row in document["parameters"] if (row["role"] in STATE_ROLES) == is_state]
        if values is None:
            values = [leaves[row["number"]] for row in rows]
        if any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(values)):
            continue
        np.savez_compressed(directory / f"{name}.npz", **named_arrays(rows, values, dtypes, name))
    return lowered, document
