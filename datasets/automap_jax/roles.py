"""The role of each argument of a step, and the output that updates it: the contents of model.roles.json.

A step hands its state back: `step(state, x, y) -> (new_state, loss)`. An argument with a tree of
its own and the part of the output with the same tree, shapes and types are a pair, first come
first served. An argument that is an array alone looks like any result of its shape, such as a
prediction: it is a pair only next to one, in the arguments and in the output, or as the first
argument of a step without other state. No new value is taken that does not depend on the old.

The new values of objects that are updated in place stand after the step's own result; their
pairs are known.

weight     paired, floating, an ancestor of the loss
optimizer  paired, floating, no ancestor of the loss, an ancestor of an updated weight
state      any other paired argument: counters, statistics, keys that are fed back
data       not paired
constant   not paired, in an argument that the caller names as constant, or of an object
"""

import dataclasses
import json
import warnings

import jax
import numpy as np
from jax.interpreters import partial_eval

FORMAT = "automap-roles-1"


def signature(tree):
    """Returns the facts that two trees share if they are a pair: structure, shapes and types."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, tuple((leaf.shape, leaf.dtype) for leaf in leaves)


def subtrees(tree, first=0):
    """Yields (index of its first leaf, subtree) of the whole tree and of all its parts."""
    yield first, tree
    if not jax.tree_util.all_leaves([tree]):
        for child in jax.tree_util.default_registry.flatten_one_level(tree)[0]:
            yield from subtrees(child, first)
            first += len(jax.tree.leaves(child))


class Pairing:
    """Pairs of argument leaves with output leaves, found one argument at a time.

    arguments, output  trees of ShapeDtypeStructs
    jaxpr              the step, traced
    apart              positions of arguments without a new value: data and constants
    loss               number of the output leaf that is the loss, or None: no new value
    """

    def __init__(self, arguments, output, jaxpr, apart, loss):
        self.arguments, self.output, self.jaxpr, self.apart = arguments, output, jaxpr, apart
        self.leaves = jax.tree.leaves(output)
        self.claimed = set() if loss is None else {loss}
        self.first = {}  # argument position: number of its first output leaf
        self.sizes = [len(jax.tree.leaves(argument)) for argument in arguments]

    def claim(self, position, first):
        self.first[position] = first
        self.claimed.update(range(first, first + self.sizes[position]))

    def is_update(self, position, first):
        """Returns whether free outputs from `first` on depend on the argument."""
        wanted = range(first, first + self.sizes[position])
        if not self.claimed.isdisjoint(wanted):
            return False
        before = sum(self.sizes[:position])
        used = ancestors(self.jaxpr, set(wanted))
        return any(used[before : before + self.sizes[position]])

    def pair_trees(self):
        """Larger trees first: a tree of parameters is also a part of the optimizer's state."""
        order = sorted(range(len(self.arguments)), key=lambda at: -self.sizes[at])
        for position in order:
            argument = self.arguments[position]
            if self.is_settled(position) or jax.tree_util.all_leaves([argument]):
                continue
            wanted = signature(argument)
            if self.sizes[position] == 0 or is_floating_scalar(wanted[1]):
                continue
            for start, part in subtrees(self.output):
                if signature(part) == wanted and self.is_update(position, start):
                    self.claim(position, start)
                    break

    def is_settled(self, position):
        return position in self.apart or position in self.first

    def pair_array(self, position, at):
        """Pairs the array at `position` with output leaf `at` if it can be its new value."""
        if self.is_settled(position) or not jax.tree_util.all_leaves([self.arguments[position]]):
            return
        wanted = signature(self.arguments[position])
        if not 0 <= at < len(self.leaves) or signature(self.leaves[at]) != wanted:
            return
        if not is_floating_scalar(wanted[1]) and self.is_update(position, at):
            self.claim(position, at)

    def pair_arrays(self):
        """Arrays alone, next to pairs; without any, the first argument starts the run."""
        order = [at for at in range(len(self.arguments)) if at not in self.apart and self.sizes[at]]
        if not self.first and order:
            for start, part in subtrees(self.output):
                if jax.tree_util.all_leaves([part]):
                    self.pair_array(order[0], start)
        for position, after in zip(order, order[1:]):
            if position in self.first:
                self.pair_array(after, self.first[position] + self.sizes[position])
        for position, before in zip(order[:0:-1], order[-2::-1]):
            if position in self.first:
                self.pair_array(before, self.first[position] - 1)

    def of_leaves(self):
        """For each argument leaf, the number of the output leaf that updates it, or None."""
        pairs = []
        for position, size in enumerate(self.sizes):
            first = self.first.get(position)
            pairs += [None] * size if first is None else range(first, first + size)
        return pairs


def is_floating_scalar(leaves):
    """Returns whether a tree is one floating scalar, which the loss looks like: never paired unasked."""
    return len(leaves) == 1 and leaves[0][0] == () and is_floating(leaves[0][1])


def is_floating(dtype):
    return jax.numpy.issubdtype(dtype, jax.numpy.floating)


def argument_name(argument_names, position):
    return argument_names[position] if position < len(argument_names) else f"argument {position}"


@dataclasses.dataclass
class Known:
    """Facts about a step's leaves before it is traced, by leaf number.

    pairs          {argument leaf: output leaf that updates it}
    constants      argument leaves that are constants unless they are paired
    never_weights  argument leaves that no gradient updates
    losses         how many differentiated values stand after the other outputs of the jaxpr
    """

    pairs: dict = dataclasses.field(default_factory=dict)
    constants: set = dataclasses.field(default_factory=set)
    never_weights: set = dataclasses.field(default_factory=set)
    losses: int = 0


def pair(arguments, output, jaxpr, apart, updates, loss, argument_names, known):
    """For each leaf of `arguments`, the number of the output leaf that updates it, or None.

    `updates` maps an argument's position to the number of its first output leaf, where the
    caller knows better.
    """
    position = [at for at, argument in enumerate(arguments) for _ in jax.tree.leaves(argument)]
    apart = apart | {position[leaf] for leaf in known.pairs}
    pairing = Pairing(arguments, output, jaxpr, apart, loss)
    for position, first in updates.items():
        if first is None:
            continue
        old = jax.tree.leaves(arguments[position])
        new = pairing.leaves[first : first + len(old)] if isinstance(first, int) and first >= 0 else []
        if [leaf.shape for leaf in old] != [leaf.shape for leaf in new]:
            name = argument_name(argument_names, position)
            raise ValueError(
                f"updates: {name} has {len(old)} arrays, which are not updated by outputs from "
                f"{first!r} on (the step has {len(pairing.leaves)}); expected the first of as many outputs "
                "of the same shapes"
            )
        pairing.claim(position, first)
    pairing.pair_trees()
    trees = set(pairing.first)
    pairing.pair_arrays()
    for position in sorted(set(pairing.first) - trees if trees else ()):
        if is_floating(arguments[position].dtype):
            name = argument_name(argument_names, position)
            warnings.warn(
                f"{name} is taken for state, updated by output {pairing.first[position]}; "
                f"if it is data, say data_arguments=({position},)",
                stacklevel=2,
            )
    return [known.pairs.get(leaf, output) for leaf, output in enumerate(pairing.of_leaves())]


def find_loss(output, wanted):
    """The output leaf that the caller names as the loss: by number, path or part of a path."""
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(output)]
    if isinstance(wanted, int):
        found = [wanted] if 0 <= wanted < len(paths) else []
    else:
        found = [number for number, path in enumerate(paths) if path == wanted] or [
            number for number, path in enumerate(paths) if wanted in path
        ]
    if len(found) != 1:
        raise ValueError(f"loss={wanted!r} names {len(found)} of the outputs {paths}")
    leaf = jax.tree.leaves(output)[found[0]]
    if leaf.shape != () or not is_floating(leaf.dtype):
        raise ValueError(f"loss={wanted!r}: output {paths[found[0]]} is no floating scalar")
    return found[0]


def guess_loss(output, pairs, jaxpr, known):
    """The number of the output that is the loss, or None: the free floating scalar whose path says
    loss; else the one that is differentiated; else the first that a gradient could come from, that
    is, that depends on updated values through floating values alone; else a differentiated value
    that the step does not return; else the first free floating scalar."""
    free = [
        (jax.tree_util.keystr(path), number)
        for number, (path, leaf) in enumerate(jax.tree_util.tree_leaves_with_path(output))
        if leaf.shape == () and is_floating(leaf.dtype) and number not in pairs
    ]
    named = [number for path, number in free if "loss" in path.lower()]
    if named:
        return named[0]
    updated = {leaf for leaf, new in enumerate(pairs) if new is not None} - known.never_weights
    first = len(jaxpr.outvars) - known.losses
    differentiated = [
        number
        for number in range(first, len(jaxpr.outvars))
        if updated & floating_ancestors(jaxpr, number)
    ]
    values = [jaxpr.outvars[number] for number in differentiated]
    for _, number in free:
        if any(jaxpr.outvars[number] is value for value in values):
            return number
    trained = [number for _, number in free if updated & floating_ancestors(jaxpr, number)]
    found = trained or differentiated
    if len(found) > 1:
        what = "outputs" if trained else "differentiated values"
        which = trained or [number - first for number in differentiated]
        warnings.warn(
            f"{what} {which} could be the loss; {which[0]} is taken: say loss=", stacklevel=2
        )
    return next(iter(found + [number for _, number in free]), None)


def floating_ancestors(jaxpr, output):
    """Numbers of the inputs of the jaxpr on which an output depends through floating values."""
    is_variable = lambda value: hasattr(value, "count") or not hasattr(value, "val")
    used = {value for value in jaxpr.outvars[output : output + 1] if is_variable(value)}
    for equation in reversed(jaxpr.eqns):
        if not used.isdisjoint(equation.outvars):
            used.update(
                value
                for value in equation.invars
                if is_variable(value) and is_floating(getattr(value.aval, "dtype", np.int32))
            )
    return {number for number, value in enumerate(jaxpr.invars) if value in used}


def ancestors(jaxpr, outputs):
    """For each input of the jaxpr, whether one of the outputs with these numbers depends on it."""
    used = [number in outputs for number in range(len(jaxpr.outvars))]
    return partial_eval.dce_jaxpr(jaxpr, used)[1]


def roles(
    arguments,
    output,
    jaxpr,
    constants=(),
    updates=None,
    *,
    data_arguments=(),
    loss=None,
    argument_names=(),
    known=None,
):
    """The roles document, without paths, of a step traced to `jaxpr`.

    `arguments` and `output` are trees of ShapeDtypeStructs, `output` without what `known` says of.
    `constants` are the positions of arguments that are neither state nor data, `data_arguments`
    of those that are data; `loss` names an output leaf.
    """
    known = known or Known()
    loss = None if loss is None else find_loss(output, loss)
    apart = {*constants, *data_arguments}
    pairs = pair(arguments, output, jaxpr, apart, updates or {}, loss, argument_names, known)
    leaves = jax.tree.leaves(arguments)
    floating = lambda leaf: is_floating(leaf.dtype)
    if loss is None:
        loss = guess_loss(output, pairs, jaxpr, known)
    feeds_loss = ancestors(jaxpr, {loss})
    is_weight = [
        pairs[number] is not None
        and floating(leaf)
        and feeds_loss[number]
        and number not in known.never_weights
        for number, leaf in enumerate(leaves)
    ]
    feeds_weight = ancestors(jaxpr, {pairs[at] for at, is_one in enumerate(is_weight) if is_one})
    position = [at for at, argument in enumerate(arguments) for _ in jax.tree.leaves(argument)]

    def role(number):
        if pairs[number] is None:
            is_constant = position[number] in constants or number in known.constants
            return "constant" if is_constant else "data"
        if not floating(leaves[number]):
            return "state"
        if is_weight[number]:
            return "weight"
        return "optimizer" if feeds_weight[number] and not feeds_loss[number] else "state"

    parameters = [
        {"number": number, "role": role(number), "output": pairs[number]}
        for number in range(len(leaves))
    ]
    return {"format": FORMAT, "parameters": parameters, "loss": loss}


def write(document, path):
    """Writes the document with one parameter per line."""
    rows = ",\n  ".join(json.dumps(row) for row in document["parameters"])
    why = f', "whole_batch": {json.dumps(document["whole_batch"])}' if "whole_batch" in document else ""
    with open(path, "w") as file:
        file.write(
            f'{{"format": "{document["format"]}", "loss": {json.dumps(document["loss"])}{why},\n'
            f' "parameters": [\n  {rows}]}}\n'
        )
