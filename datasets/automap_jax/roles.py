"""What every argument of a step is, and which output updates it: the contents of model.roles.json.

A step takes its state first and hands it back: `step(state, x, y) -> (new_state, loss)`. An
argument and a part of the output with the same tree, shapes and types are a pair, first come
first served; their leaves correspond one to one. The pytrees tell this exactly, where a module
alone only knows shapes.

weight     paired, floating, an ancestor of the loss
optimizer  paired, floating, no ancestor of the loss, an ancestor of an updated weight
state      any other paired argument: counters, statistics, keys that are fed back
data       not paired
constant   not paired, in an argument that the caller names as constant
"""

import json

import jax
from jax.interpreters import partial_eval

FORMAT = "automap-roles-1"


def signature(tree):
    """What two trees must share to be a pair: structure, shapes and types."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, tuple((leaf.shape, leaf.dtype) for leaf in leaves)


def subtrees(tree, first=0):
    """Yields (index of its first leaf, subtree) of the whole tree and of all its parts."""
    yield first, tree
    if not jax.tree_util.all_leaves([tree]):
        for child in jax.tree_util.default_registry.flatten_one_level(tree)[0]:
            yield from subtrees(child, first)
            first += len(jax.tree.leaves(child))


def pair(arguments, output, updates):
    """For each leaf of `arguments`, the number of the output leaf that updates it, or None.

    `updates` maps an argument's position to the number of its first output leaf, where the
    caller knows better. A scalar on its own is never paired unasked: the loss looks like one.
    """
    claimed, pairs = set(), []
    for position, argument in enumerate(arguments):
        wanted = signature(argument)
        size = len(wanted[1])
        first = updates.get(position)
        if first is None and size and wanted[1] != (((), wanted[1][0][1]),):
            first = next(
                (
                    start
                    for start, part in subtrees(output)
                    if claimed.isdisjoint(range(start, start + size)) and signature(part) == wanted
                ),
                None,
            )
        if first is None:
            pairs += [None] * size
        else:
            claimed.update(range(first, first + size))
            pairs += range(first, first + size)
    return pairs


def ancestors(jaxpr, outputs):
    """For each input of the jaxpr, whether one of the outputs with these numbers depends on it."""
    used = [number in outputs for number in range(len(jaxpr.outvars))]
    return partial_eval.dce_jaxpr(jaxpr, used)[1]


def roles(arguments, output, jaxpr, constants=(), updates=None):
    """The roles document, without paths, of a step traced to `jaxpr`.

    `arguments` and `output` are trees of ShapeDtypeStructs.
    `constants` are the positions of arguments that are neither state nor data.
    """
    pairs = pair(arguments, output, updates or {})
    leaves = jax.tree.leaves(arguments)
    outputs = jax.tree.leaves(output)
    floating = lambda leaf: jax.numpy.issubdtype(leaf.dtype, jax.numpy.floating)
    loss = next(
        (
            number
            for number, leaf in enumerate(outputs)
            if leaf.shape == () and floating(leaf) and number not in pairs
        ),
        None,
    )
    feeds_loss = ancestors(jaxpr, {loss})
    weights = {
        pairs[number]
        for number, leaf in enumerate(leaves)
        if pairs[number] is not None and floating(leaf) and feeds_loss[number]
    }
    feeds_weight = ancestors(jaxpr, weights)
    position = [at for at, argument in enumerate(arguments) for _ in jax.tree.leaves(argument)]

    def role(number):
        if pairs[number] is None:
            return "constant" if position[number] in constants else "data"
        if not floating(leaves[number]):
            return "state"
        if feeds_loss[number]:
            return "weight"
        return "optimizer" if feeds_weight[number] else "state"

    parameters = [
        {"number": number, "role": role(number), "output": pairs[number]}
        for number in range(len(leaves))
    ]
    return {"format": FORMAT, "parameters": parameters, "loss": loss}


def write(document, path):
    """Writes the document with one parameter per line."""
    rows = ",\n  ".join(json.dumps(row) for row in document["parameters"])
    with open(path, "w") as file:
        file.write(
            f'{{"format": "{document["format"]}", "loss": {json.dumps(document["loss"])},\n'
            f' "parameters": [\n  {rows}]}}\n'
        )
