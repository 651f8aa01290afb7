"""Mistakes in a step that would export a module that trains nothing, or not as it does in JAX."""

import warnings

import jax

from .roles import signature, subtrees
from .step_graph import Constant, Graph

OTHERWISE = "; for a step that is not to train (evaluation, inference) give inference=True"


def first_difference(old, new):
    """(path, old leaf, new leaf) of the first leaf of another shape or type in two alike trees."""
    for (path, before), after in zip(
        jax.tree_util.tree_leaves_with_path(old), jax.tree.leaves(new), strict=True
    ):
        if (before.shape, before.dtype) != (after.shape, after.dtype):
            return path, before, after
    return None


def describe(leaf):
    return f"{leaf.dtype}{list(leaf.shape)}"


def near_miss(traced):
    """Why the first argument that the step returns in other shapes or types is not updated, or
    None."""
    for name, tree in zip(traced.step.names(), traced.inputs):
        structure = jax.tree.structure(tree)
        if jax.tree_util.all_leaves([tree]) or not structure.num_leaves:
            continue
        for _, part in subtrees(traced.result):
            if jax.tree.structure(part) != structure:
                continue
            difference = first_difference(tree, part)
            if difference is not None:
                path, before, after = difference
                return (
                    f"{name}{jax.tree_util.keystr(path)} is {describe(before)}, but the step "
                    f"returns {describe(after)}; return state in the shapes and types in which "
                    "it is given"
                )
    return None


def unchanged(traced, document):
    """Numbers of the parameters whose output is the parameter itself."""
    inputs, outputs = traced.jaxpr.invars, traced.jaxpr.outvars
    return {
        row["number"]
        for row in document["parameters"]
        if row["output"] is not None and outputs[row["output"]] is inputs[row["number"]]
    }


def reason(traced, document, same):
    """Why no weight is updated."""
    rows = document["parameters"]
    updated = [row for row in rows if row["output"] is not None and row["number"] not in same]
    if not rows:
        return "its arguments hold no arrays; pass the parameters as an argument"
    near = near_miss(traced)
    if near:
        return near
    if any(row["role"] == "weight" for row in rows):
        return "it returns the parameters unchanged; return the updated ones"
    if updated and document["loss"] is None:
        return (
            "it returns no loss, and differentiates none outside of an inner jit or scan; "
            "return the loss as well"
        )
    if updated:
        return "the loss does not depend on any value that it updates; name the loss by loss="
    if traced.step.call.objects.objects:
        return "it updates no variable of its NNX objects; does it call optimizer.update?"
    return (
        "it returns new values of none of its arguments; return the new state as it is given, "
        "such as (new_params, new_opt_state, loss), or pair them by updates="
    )


def check_trains(traced, document):
    """Raises ValueError if the step updates no weight."""
    same = unchanged(traced, document)
    weights = [row for row in document["parameters"] if row["role"] == "weight"]
    if any(row["number"] not in same for row in weights):
        return
    name = getattr(traced.step.inner, "__name__", "the step")
    raise ValueError(f"{name} trains nothing: {reason(traced, document, same)}{OTHERWISE}")


def warn_of_lost_state(traced, document):
    """Warns of arguments that hold a copy of the weights' tree, as an optimizer's state does, and
    that the step does not return."""
    numbers = iter(document["parameters"])
    rows = [[next(numbers) for _ in jax.tree.leaves(tree)] for tree in traced.inputs]
    weights = [
        signature(tree)
        for tree, part in zip(traced.inputs, rows)
        if len(part) > 1 and any(row["role"] == "weight" for row in part)
    ]
    for name, tree, part in zip(traced.step.names(), traced.inputs, rows):
        if not part or any(row["output"] is not None or row["role"] != "data" for row in part):
            continue
        if any(signature(inner) in weights for _, inner in subtrees(tree)):
            near = near_miss(traced)
            warnings.warn(
                f"{name} looks like state, but the step does not return it: it stays as it is"
                f"{f' ({near})' if near else ''}; return its new value, or name it by constants=",
                stacklevel=2,
            )


def warn_of_jax_jit(traced):
    """Warns of jax.jit around a step of NNX: in JAX it loses the updates that the module has, but for those that the
    step returns, such as nnx.state(model)."""
    order, (origins, _) = traced.step.call.objects.order, traced.step.result
    returned = {place for kind, number in origins if kind == "object" for place in order[number]}
    is_lost = not returned.issuperset(traced.step.updated)
    if traced.step.is_jitted and is_lost:
        warnings.warn(
            "jax.jit does not update the NNX objects of a step, so this step trains nothing in JAX; "
            "use nnx.jit (the exported module updates them)",
            stacklevel=2,
        )


# Primitives that end a gradient, but not an update "old value plus change".
OF_GRADIENTS = {"dot_general", "conv_general_dilated", "reduce_sum", "scatter-add", "add_any"}
VIEWS = {"transpose", "convert_element_type", "reshape", "squeeze", "copy"}


def last_primitive(jaxpr, variable):
    """The name of the primitive that makes a variable of a jaxpr, after views and inner jits."""
    for equation in reversed(jaxpr.eqns):
        if not any(variable is made for made in equation.outvars):
            continue
        inner = equation.params.get("jaxpr") if equation.primitive.name in ("jit", "pjit") else None
        if inner is not None:
            at = [made is variable for made in equation.outvars].index(True)
            return last_primitive(inner.jaxpr, inner.jaxpr.outvars[at])
        if equation.primitive.name in VIEWS:
            return last_primitive(jaxpr, equation.invars[0])
        return equation.primitive.name
    return None


def warn_of_gradients(traced, document):
    """Warns of a step that returns gradients in the place of its parameters."""
    outputs = [row["output"] for row in document["parameters"] if row["role"] == "weight"]
    made = [last_primitive(traced.jaxpr, traced.jaxpr.outvars[output]) for output in outputs]
    if made and all(name in OF_GRADIENTS for name in made):
        warnings.warn(
            "the new values of the weights look like gradients; return the updated weights, "
            "such as optax.apply_updates(params, updates)",
            stacklevel=2,
        )


def constants_of_loop(node):
    """(body, the values that every trip reads unchanged) of a scan or a while loop; (None, []) of others."""
    params = node.params
    if node.primitive.name == "scan":
        return Graph(params["jaxpr"]), node.inputs[:params["num_consts"]]
    if node.primitive.name == "while":
        first = params["cond_nconsts"]
        return Graph(params["body_jaxpr"]), node.inputs[first:first + params["body_nconsts"]]
    return None, []


def warn_of_slices(traced, document):
    """Warns of a loop that cuts data into equal parts by dynamic_slice, as accumulation of gradients may do: no plan
    splits the rows of the parts over devices."""
    graph = Graph(traced.closed)
    paths = {graph.inputs[row["number"]]: row["path"] for row in document["parameters"] if row["role"] == "data"}
    for node in graph.nodes:
        body, values = constants_of_loop(node)
        if body is None:
            continue
        data = {own: value for own, value in zip(body.inputs, values)
                if not isinstance(value, Constant) and value in paths}
        for cut in body.nodes:
            if cut.primitive.name != "dynamic_slice" or cut.inputs[0] not in data:
                continue
            path, shape = paths[data[cut.inputs[0]]], body.shapes[cut.inputs[0]]
            rows = cut.params["slice_sizes"][0]
            if 1 < rows < shape[0] and shape[0] % rows == 0 and not isinstance(cut.inputs[1], Constant):
                warnings.warn(
                    f"{cut.label}: a loop cuts {path} into parts of {rows} rows, which no plan splits over devices; "
                    f"let lax.scan read {path}.reshape({shape[0] // rows}, {rows}, ...)",
                    stacklevel=2,
                )
