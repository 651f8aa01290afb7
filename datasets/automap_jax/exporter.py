"""Writes a JAX training step as the files that automap reads.

The module is the one that JAX hands to XLA: lowered, not yet optimised, with op names, source
lines and the donation of the state as input_output_alias. Lowering needs shapes only, so a step
of eleven billion parameters exports from ShapeDtypeStructs.
"""

import pathlib
import warnings

import jax
import numpy as np

from . import graph_objects, module_proto
from .checks import check_trains, warn_of_gradients, warn_of_jax_jit, warn_of_lost_state, warn_of_slices
from .groups import whole_batch
from .roles import Known, roles, write
from .step_graph import Graph
from .steps import Call, Step

STATE_ROLES = ("weight", "optimizer", "state", "constant")


class Traced:
    """A step traced to a jaxpr: its result, the facts about its leaves, and its lowering."""

    def __init__(self, step):
        self.step = step
        traced = trace(step)
        (result, losses), self.closed, self.jaxpr = traced.out_info, traced.jaxpr, traced.jaxpr.jaxpr
        self.result, new = result if step.updated else (result, [])
        self.structure = jax.tree.structure(traced.out_info)
        self.inputs = jax.eval_shape(lambda *trees: trees, *step.trees)
        self.first_new = len(jax.tree.leaves(self.result))
        self.first_loss = self.first_new + len(new)
        places = step.call.first_leaves()
        self.known = Known(
            pairs={places[place]: self.first_new + at for at, place in enumerate(step.updated)},
            constants=step.call.constants(),
            never_weights={
                leaf
                for (row, _), leaf in places.items()
                if step.call.objects.rows[row].never_weight
            },
            losses=len(losses),
        )
        self.check_types(new)

    def check_types(self, new):
        """Raises TypeError if an object's variable changes its shape or type in the step."""
        leaves = jax.tree.leaves(self.inputs)
        for (leaf, _), value in zip(self.known.pairs.items(), new, strict=True):
            old = leaves[leaf]
            if (old.shape, old.dtype) != (value.shape, value.dtype):
                row = self.step.call.objects.rows[self.step.updated[0][0]]
                for place, number in self.step.call.first_leaves().items():
                    if number == leaf:
                        row = self.step.call.objects.rows[place[0]]
                raise TypeError(
                    f"{graph_objects.text(row.path)}: the step changes it from "
                    f"{old.dtype}{list(old.shape)} to {value.dtype}{list(value.shape)}; "
                    "convert the new value to the type of the old one"
                )

    def graph(self, *trees, **keywords):
        """The step as it was traced, for arguments of the same shapes: calls no code of the user."""
        leaves = jax.tree.leaves((trees, keywords))
        values = jax.core.eval_jaxpr(self.jaxpr, self.closed.consts, *leaves)
        return jax.tree.unflatten(self.structure, values)

    def function(self, loss, step):
        """The function of `step`, the traced graph or the user's code: its result, then new values, then a loss not
        returned."""
        is_split = bool(self.step.updated)
        extra = None if loss is None or loss < self.first_loss else loss - self.first_loss

        def function(*trees, **keywords):
            result, losses = step(*trees, **keywords)
            if extra is None:
                return result
            return (*(result if is_split else (result,)), losses[extra])

        for name in ("__module__", "__name__", "__qualname__", "__doc__"):
            if hasattr(self.step.inner, name):
                setattr(function, name, getattr(self.step.inner, name))
        function.__wrapped__ = self.step.inner
        return function

    def lower(self, document):
        """Lowers the step with donation of the updated state."""
        leaves = iter(document["parameters"])
        donated = [
            any([next(leaves)["output"] is not None for _ in jax.tree.leaves(tree)])
            for tree in self.step.trees
        ]
        count, names = self.step.call.count, self.step.call.names
        jitted = jax.jit(
            self.function(document["loss"], self.graph),
            donate_argnums=tuple(at for at in range(count) if donated[at]),
            donate_argnames=tuple(name for name, is_one in zip(names, donated[count:]) if is_one),
            keep_unused=True,
        )
        with warnings.catch_warnings():  # what an updated object keeps is donated in vain
            warnings.filterwarnings("ignore", message="Some donated buffers were not usable")
            return jitted.lower(*self.step.arguments, **self.step.keywords)


def trace(step):
    """Traces a Step; an updated object that is no argument is an error."""
    try:
        return jax.jit(step.function, keep_unused=True).trace(*step.arguments, **step.keywords)
    except Exception as error:
        if not graph_objects.is_trace_error(error):
            raise
        if graph_objects.is_from_step(error):
            why = (
                "an inner function of the step (of nnx.value_and_grad, nnx.scan, ...) updates an NNX "
                "object that is not among its own arguments; pass the object to the inner function"
            )
        else:
            why = (
                "the step updates an NNX object that is not among its arguments; "
                "pass the object as an argument"
            )
        raise ValueError(f"{why} ({str(error).splitlines()[0]})") from error


def traced_step(step, arguments, keywords):
    """The step, traced; Python scalars are static where the step branches on one."""
    try:
        return Traced(Step(step, arguments, keywords))
    except (jax.errors.ConcretizationTypeError, jax.errors.TracerIntegerConversionError) as error:
        leaves = jax.tree.leaves((arguments, keywords or {}))
        if not any(isinstance(leaf, (bool, int, float)) for leaf in leaves):
            raise
        try:
            return Traced(Step(step, arguments, keywords, scalars_static=True))
        except jax.errors.ConcretizationTypeError:
            raise error from None


def lower(
    step,
    arguments,
    constants=(),
    updates=None,
    *,
    data_arguments=(),
    loss=None,
    keywords=None,
    inference=True,
):
    """Lowers `step`; returns (the lowered step, serialised HloModuleProto, roles document)."""
    return lower_traced(
        traced_step(step, arguments, keywords), constants, updates, data_arguments, loss, inference
    )


def positions(step, given, what):
    """Positions among all arguments of a step: of those that the caller numbers, or names."""
    if isinstance(given, (int, str)):
        raise TypeError(f"{what}: expected a list of argument positions or names, got {given!r}")
    names, found = step.names(), []
    for at in given:
        if isinstance(at, str) and at in names:
            found.append(names.index(at))
        elif isinstance(at, int) and 0 <= at < len(names) - step.offset:
            found.append(at + step.offset)
        else:
            raise ValueError(f"{what}: the step has no argument {at!r} (it has {', '.join(names)})")
    return tuple(found)


def lower_traced(traced, constants, updates, data_arguments, loss, inference):
    """Lowers a Traced, as `lower` does. Positions are those of the caller's arguments."""
    step = traced.step
    constants = positions(step, constants, "constants")
    data_arguments = positions(step, data_arguments, "data_arguments")
    updates = dict(zip(positions(step, updates or (), "updates"), (updates or {}).values()))
    document = roles(
        traced.inputs,
        traced.result,
        traced.jaxpr,
        constants,
        updates,
        data_arguments=data_arguments,
        loss=loss,
        argument_names=step.names(),
        known=traced.known,
    )
    if not inference:
        check_trains(traced, document)
        warn_of_lost_state(traced, document)
        warn_of_gradients(traced, document)
        warn_of_jax_jit(traced)
    lowered = traced.lower(document)
    module = lowered.compiler_ir("hlo").as_serialized_hlo_module_proto()
    if document["loss"] is not None and document["loss"] >= traced.first_loss:
        document["loss"] = traced.first_loss
    paths = module_proto.parameter_paths(module)
    assert len(paths) == len(document["parameters"]), "one entry parameter per leaf"
    document["parameters"] = [
        {"number": row["number"], "path": path, "role": row["role"], "output": row["output"]}
        for row, path in zip(document["parameters"], paths)
    ]
    if not inference:
        warn_of_slices(traced, document)
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


def parameter_shapes(traced):
    """Shapes of the module's parameters; a random key is the integers it holds."""
    key_data = lambda leaf: jax.eval_shape(jax.random.key_data, leaf)
    is_key = lambda leaf: jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    leaves = jax.tree.leaves(traced.inputs)
    return [(key_data(leaf) if is_key(leaf) else leaf).shape for leaf in leaves]


def check_shapes(rows, values, shapes, what):
    """Raises ValueError for values that `automap run` would refuse: state of another shape, data that
    is neither one batch nor several, arrays with different numbers of batches."""
    batches = {}
    for row, value in zip(rows, values):
        found, wanted = np.shape(value), tuple(shapes[row["number"]])
        if found == wanted:
            continue
        is_stacked = len(found) == len(wanted) + 1 and found[1:] == wanted
        is_long = len(found) == len(wanted) > 0 and found[1:] == wanted[1:]
        is_long = is_long and wanted[0] > 0 and found[0] % wanted[0] == 0
        if what == "state" or not (is_stacked or is_long):
            more = "" if what == "state" else ", or more batches in a leading dimension"
            raise ValueError(
                f"{what}: {row['path']} has shape {list(found)} (expected {list(wanted)}{more})"
            )
        batches[row["path"]] = found[0] if is_stacked else found[0] // wanted[0]
    if len(set(batches.values())) > 1:
        counts = ", ".join(f"{path}: {count}" for path, count in batches.items())
        raise ValueError(f"{what}: arrays hold different numbers of batches ({counts})")


def write_files(module, document, directory):
    """Writes model.hlo.pb and model.roles.json."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "model.hlo.pb").write_bytes(module)
    write(document, directory / "model.roles.json")


def note_whole_batch(traced, document):
    """Adds why automap_jax.run cannot cut the batch into micro-batches, if it cannot."""
    graph = Graph(traced.closed)
    graph.outputs = graph.outputs[:traced.first_loss]
    graph.drop_unused()
    reason = whole_batch(graph, document["parameters"])
    if reason:
        document["whole_batch"] = reason


def write_module(step, arguments, directory, constants=(), updates=None, *, keywords=None, **more):
    """Writes model.hlo.pb and model.roles.json; returns the lowered step and the roles document.
    `more` is that of `lower`."""
    traced = traced_step(step, arguments, keywords)
    options = {"data_arguments": (), "loss": None, "inference": True} | more
    lowered, module, document = lower_traced(traced, constants, updates, **options)
    note_whole_batch(traced, document)
    write_files(module, document, directory)
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


def values_of(step, values):
    """The arrays of a pytree of values, as those of the step's arguments are taken."""
    return None if values is None else jax.tree.leaves(Call((values,), {}, step.filtered).trees)


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
    example_kwargs=None,
    inference=False,
):
    """Writes model.hlo.pb and model.roles.json, and state.npz and data.npz where values are known.

    step               step(state..., data...) -> (new state..., loss, ...), jitted or not; objects
                       of NNX among its arguments are updated in place; non-array leaves are static
    example_arguments  a tuple of its positional arguments: arrays, ShapeDtypeStructs, objects of
                       NNX, modules of Equinox, or trees of them
    state              values of all arguments that are not data, in their order, as any pytree;
                       left out, the example arguments are taken where they are arrays
    data               likewise for the data; a leading dimension more holds successive batches;
                       arguments whose values it holds are data
    constants          positions or names of the arguments that are neither updated nor data
    updates            {argument position: first output leaf}, where the pytrees do not tell
    data_arguments     positions or names of arguments that are data although they look like state
    loss               the output leaf that is the loss, by number, path or a part of its path;
                       left out, the floating scalar whose path says loss, else the value that
                       the step differentiates, returned or not
    example_kwargs     the step's keyword arguments by name
    inference          allow a step that updates no weight

    Returns the lowered step and the roles document. Raises ValueError for a step that trains
    nothing.
    """
    directory = pathlib.Path(directory)
    traced = traced_step(step, example_arguments, example_kwargs)
    state, data = values_of(traced.step, state), values_of(traced.step, data)
    options = (constants, updates, data_arguments, loss)
    lowered, module, document = lower_traced(traced, *options, inference)
    found = [row for row in document["parameters"] if row["role"] not in STATE_ROLES]
    if data is not None and len(data) > len(found):
        apart = set(positions(traced.step, (*constants, *(updates or {})), "constants"))
        found = arguments_of_data(traced.step.trees, data, apart)
        found = tuple(at - traced.step.offset for at in found)
        lowered, module, document = lower_traced(traced, constants, updates, found, loss, inference)
    note_whole_batch(traced, document)
    write_files(module, document, directory)
    leaves = jax.tree.leaves(traced.step.trees)
    dtypes = [leaf.dtype for leaf in jax.tree.leaves(traced.inputs)]
    for name, values, is_state in (("state", state, True), ("data", data, False)):
        rows = [row for row in document["parameters"] if (row["role"] in STATE_ROLES) == is_state]
        if values is None:
            values = [leaves[row["number"]] for row in rows]
        if any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in values):
            continue
        arrays = named_arrays(rows, values, dtypes, name)
        check_shapes(rows, arrays.values(), parameter_shapes(traced), name)
        np.savez_compressed(directory / f"{name}.npz", **arrays)
    return lowered, document
