"""Flax NNX objects as trees of arrays.

A step of NNX updates modules, optimizers, metrics and random streams in place. All objects among
its arguments are split together, so that a variable that two of them share is one array. A copy
of the objects is merged inside of the traced function; after the call it is split again, and the
variables that then hold another array are the updated ones.

    model = CNN(rngs)   ->   {"conv1": {"kernel": array, "bias": array}, ...}

Flax is not imported here: objects of NNX exist only where the caller has imported it.
"""

import dataclasses
import sys
import warnings

import jax


def nnx():
    """The module flax.nnx, or None where nothing has imported it."""
    return sys.modules.get("flax.nnx")


def is_object(value):
    """Returns whether `value` is an object of NNX (a module, optimizer, metric, variable, ...)."""
    library = nnx()
    if library is None or isinstance(value, type):
        return False
    return isinstance(value, (library.Pytree, library.Variable))


def is_never_weight(variable):
    """Returns whether no gradient updates variables of this type."""
    library = nnx()
    names = ("BatchStat", "Cache", "Intermediate", "RngState")
    types = tuple(getattr(library, name) for name in names if hasattr(library, name))
    return isinstance(variable, types)


def is_trace_error(error):
    """Returns whether Flax raises an exception for the use of an object from outside of the trace."""
    errors = sys.modules.get("flax.errors")
    kind = getattr(errors, "TraceContextError", ())
    return nnx() is not None and (isinstance(error, kind) or "different trace level" in str(error))


def is_from_step(error):
    """Returns whether the object of a trace error belongs to the step: an inner function closes over it."""
    traceback = error.__traceback__
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    found = [value for value in traceback.tb_frame.f_locals.values() if is_object(value)]
    leaves = jax.tree.leaves(nnx().split(found)[1])
    return any(isinstance(leaf, jax.core.Tracer) for leaf in leaves)


@dataclasses.dataclass
class Variable:
    """One variable of a split: its path below its object, and its leaves."""

    path: tuple
    structure: object
    leaves: list
    never_weight: bool


def split(objects):
    """Splits a tuple of objects together; returns (graph definition, list of Variable)."""
    definition, state = nnx().split(tuple(objects))
    rows = []
    for path, value in nnx().to_flat_state(state):
        leaves, structure = jax.tree.flatten(value)
        rows.append(Variable(tuple(path), structure, leaves, is_never_weight(value)))
    return definition, rows


def merge(definition, rows, values):
    """Copies of the objects with `values`, one list of leaves for each row."""
    pairs = [(row.path, row.structure.unflatten(new)) for row, new in zip(rows, values)]
    return nnx().merge(definition, nnx().from_flat_state(pairs))


def as_dict(entries):
    """The nested dict of (path, value) pairs; keys of mixed types in one dict become strings."""
    if len(entries) == 1 and entries[0][0] == ():
        return entries[0][1]
    parts = {}
    for path, value in entries:
        parts.setdefault(path[0], []).append((path[1:], value))
    mixed = len({type(key) for key in parts}) > 1
    return {str(key) if mixed else key: as_dict(part) for key, part in parts.items()}


def entries_of(row):
    """(path, leaf) of every leaf of a variable; several leaves are numbered."""
    if len(row.leaves) == 1:
        return [(row.path, row.leaves[0])]
    return [((*row.path, number), leaf) for number, leaf in enumerate(row.leaves)]


class Objects:
    """The objects among a step's arguments.

    objects  in the order of the arguments
    rows     their variables; the first item of a path is the object's number
    order    [object]: its leaves as (row, leaf) numbers, in the order of its dict's leaves
    """

    def __init__(self, objects):
        self.objects = list(objects)
        self.definition, self.rows = split(self.objects) if self.objects else (None, [])
        self.order = [jax.tree.leaves(self.tree(number)) for number in range(len(self.objects))]
        self.order = [[at.place for at in order] for order in self.order]

    def tree(self, number):
        """The dict of an object's variables whose leaves are Place(row, leaf)."""
        entries = []
        for at, row in enumerate(self.rows):
            if row.path[0] == number:
                places = [Place((at, leaf)) for leaf in range(len(row.leaves))]
                entries += entries_of(dataclasses.replace(row, leaves=places))
        return as_dict([(path[1:], place) for path, place in entries]) if entries else {}

    def arrays(self, number):
        """The dict of an object's variables, with their values."""
        return jax.tree.map(
            lambda at: self.rows[at.place[0]].leaves[at.place[1]], self.tree(number)
        )

    def merged(self, trees):
        """Copies of the objects that hold the leaves of `trees`, one for each object; returns
        (objects, values)."""
        values = [list(row.leaves) for row in self.rows]
        for order, tree in zip(self.order, trees, strict=True):
            for (row, leaf), value in zip(order, jax.tree.leaves(tree), strict=True):
                values[row][leaf] = value
        return merge(self.definition, self.rows, values) if self.objects else (), values

    def updates(self, objects, values):
        """New values after a call: {object: {path: value}} of the variables whose array is another
        than in `values`, keyed by (row, leaf)."""
        if not self.objects:
            return {}
        after = {row.path: row.leaves for row in split(objects)[1]}
        new = {}
        for at, row in enumerate(self.rows):
            leaves = after.pop(row.path, values[at])
            if len(leaves) != len(values[at]):
                raise ValueError(f"{text(row.path)}: its structure changes in the step")
            for number, (old, leaf) in enumerate(zip(values[at], leaves)):
                if leaf is not old:
                    new[at, number] = leaf
        if after:
            names = ", ".join(text(path) for path in list(after)[:3])
            warnings.warn(f"variables that the step adds are left out: {names}", stacklevel=2)
        return new


@dataclasses.dataclass(frozen=True)
class Place:
    """(row, leaf) as a leaf of a tree."""

    place: tuple


def text(path):
    """A path as users read it, without the object's number."""
    return "/".join(str(key) for key in path[1:])


def values_of(value):
    """The dict of one object's values, for a result that a step returns."""
    _, rows = split((value,))
    return as_dict([(path[1:], leaf) for row in rows for path, leaf in entries_of(row)] or [((), {})])


def state_of(value, known):
    """The nnx.State of an object with `known[id(array)]` in the place of each array."""
    _, rows = split((value,))
    pairs = []
    for row in rows:
        new = [known.get(id(leaf)) for leaf in row.leaves]
        pairs.append((row.path[1:], new[0] if len(new) == 1 else tuple(new)))
    return pairs[0][1] if [path for path, _ in pairs] == [()] else nnx().from_flat_state(pairs)


def assign(objects, places, values):
    """Gives variables of Objects new values in place; `places` are (row, leaf) numbers."""
    new = {}
    for (row, leaf), value in zip(places, values, strict=True):
        new.setdefault(row, list(objects.rows[row].leaves))[leaf] = value
    rows = [(objects.rows[row], leaves) for row, leaves in new.items()]
    state = [(row.path, row.structure.unflatten(leaves)) for row, leaves in rows]
    nnx().update(tuple(objects.objects), nnx().from_flat_state(state))


def place(value, shardings):
    """Moves the arrays of an object to their shardings, in place; returns the object."""
    definition, rows = split((value,))
    if isinstance(value, nnx().Variable):
        wanted = {(): shardings}
    else:
        wanted = dict(nnx().to_flat_state(shardings))
    values = []
    for row in rows:
        new = wanted[row.path[1:]]
        new = new if isinstance(new, tuple) else (new,)
        values.append([leaf if at is None else jax.device_put(leaf, at) for leaf, at in zip(row.leaves, new)])
    state = [(row.path, row.structure.unflatten(new)) for row, new in zip(rows, values)]
    nnx().update((value,), nnx().from_flat_state(state))
    return value
