"""A user's training step as a function of arrays alone.

Steps differ in their arguments and in how they return the new state:

    step(params, x) -> (params, loss)          trees of arrays
    step(model, optimizer, batch) -> loss      objects of NNX, updated in place (graph_objects.py)
    step(model, opt_state, x) -> (model, ...)  Equinox modules: arrays and static leaves

`Step` has the arguments without static leaves, with each NNX object as a dict of its arrays, and a
function over them. Wrappers (jax.jit, nnx.jit, eqx.filter_jit) are taken off; arguments that they declare as static
stay static.
"""

import contextlib
import functools
import inspect
import sys

import jax
import numpy as np

from . import graph_objects

ARRAYS = (jax.Array, np.ndarray, np.generic, jax.ShapeDtypeStruct)
SCALARS = (bool, int, float, complex)


def equinox():
    """The module equinox, or None where nothing has imported it."""
    return sys.modules.get("equinox")


def is_equinox_module(value):
    return equinox() is not None and isinstance(value, equinox().Module)


def has_module(value, name):
    """Returns whether the class of `value` is defined in the package or module `name`."""
    return (type(value).__module__ or "").startswith(name)


class Unwrapped:
    """A step without its wrappers.

    function   the plain function
    leading    arguments that the step is bound to: the object of a method, those of a partial
    keywords   keyword arguments of a partial
    positions  positions of arguments that are declared static, after the leading ones
    names      names of arguments that are declared static
    filtered   whether Python scalars are static, as in eqx.filter_jit
    is_jitted  whether jax.jit is among the wrappers
    """

    def __init__(self, step):
        self.leading, self.keywords = (), {}
        self.positions, self.names = set(), set()
        self.filtered = self.is_jitted = False
        while (inner := self.inner(step)) is not None:
            step = inner
        self.function = step

    def bind(self, function, leading, keywords=None):
        self.positions = {at + len(leading) for at in self.positions if at >= 0}
        self.leading = tuple(leading) + self.leading
        self.keywords = {**(keywords or {}), **self.keywords}
        return function

    def declare(self, info):
        """Notes the static arguments of a PjitInfo, which jax.jit keeps."""
        self.positions |= set(getattr(info, "static_argnums", ()))
        self.names |= set(getattr(info, "static_argnames", ()))

    def inner(self, step):
        """Returns the function that `step` wraps, or None where it is the plain function."""
        if isinstance(step, type(jax.jit(abs))):
            self.declare(getattr(step, "_jit_info", None))
            self.is_jitted = True
            return step.__wrapped__
        if has_module(step, "flax.nnx") and hasattr(step, "jitted_fn"):
            self.declare(getattr(step.jitted_fn, "_jit_info", None))
            return self.bind(step.__wrapped__, getattr(step, "partial_args", ()))
        if has_module(step, "equinox._jit"):
            self.filtered = True
            return step.__wrapped__
        if has_module(step, "equinox") and hasattr(step, "func"):
            return self.bind(step.func, step.args, step.keywords)
        if isinstance(step, functools.partial) and has_objects((step.args, step.keywords)):
            return self.bind(step.func, step.args, step.keywords)
        owner = getattr(step, "__self__", None)
        if has_objects(owner) and hasattr(step, "__func__"):
            return self.bind(step.__func__, (owner,))
        if has_objects(step) and not isinstance(step, type) and callable(type(step).__call__):
            return self.bind(type(step).__call__, (step,))
        return None


def has_objects(tree):
    """Returns whether a tree has an object of NNX or a module of Equinox."""
    is_one = lambda value: graph_objects.is_object(value) or is_equinox_module(value)
    return any(map(is_one, jax.tree.leaves(tree, is_leaf=is_one)))


def has_objects_of(kind):
    """Returns whether objects of a class are NNX objects or Equinox modules."""
    bases = [graph_objects.nnx() and graph_objects.nnx().Pytree, equinox() and equinox().Module]
    return any(base and issubclass(kind, base) for base in bases)


def leaves_of(tree, scalars_static):
    """(leaves, whether each is an array, structure); NNX objects are leaves. Python scalars are
    static inside of Equinox modules, and everywhere with `scalars_static`."""
    stop = lambda value: graph_objects.is_object(value) or is_equinox_module(value)
    leaves, dynamic = [], []
    for outer in jax.tree.leaves(tree, is_leaf=stop):
        inside = scalars_static or is_equinox_module(outer)
        for leaf in jax.tree.leaves(outer, is_leaf=graph_objects.is_object):
            leaves.append(leaf)
            if isinstance(leaf, type) and has_objects_of(leaf):
                raise TypeError(f"{leaf.__name__}: an argument is this class; pass an object of it")
            is_array = isinstance(leaf, ARRAYS) or hasattr(leaf, "__jax_array__")
            if isinstance(leaf, np.ndarray) and leaf.dtype.kind in "OSU":
                is_array = False
            dynamic.append(is_array or (not inside and isinstance(leaf, SCALARS)))
    return leaves, dynamic, jax.tree.structure(tree, is_leaf=graph_objects.is_object)


class Call:
    """The arguments of one call as trees of arrays.

    trees     one tree for each positional argument, then one for each keyword argument by name
    static    positions and names of arguments that hold no array
    """

    def __init__(self, arguments, keywords, scalars_static, declared=frozenset()):
        self.count = len(arguments)
        self.names = sorted(keywords)
        self.values = [*arguments, *(keywords[name] for name in self.names)]
        keys = [*range(self.count), *self.names]
        self.parts, objects = [], []
        for key, value in zip(keys, self.values, strict=True):
            if key in declared:
                self.parts.append(([value], [False], jax.tree.structure(0)))
                continue
            self.parts.append(leaves_of(value, scalars_static))
            objects += [leaf for leaf in self.parts[-1][0] if graph_objects.is_object(leaf)]
        self.objects = graph_objects.Objects(objects)
        self.trees = self.arrays()

    def arrays(self):
        """The trees of arrays of all arguments."""
        numbers = iter(range(len(self.objects.objects)))

        def kept(leaf, is_dynamic):
            if graph_objects.is_object(leaf):
                return self.objects.arrays(next(numbers))
            return leaf if is_dynamic else None

        return [
            structure.unflatten(map(kept, leaves, dynamic))
            for leaves, dynamic, structure in self.parts
        ]

    def object_parts(self, trees):
        """The part of `trees` that stands for each object, in their order."""
        found = []
        for (leaves, _, structure), tree in zip(self.parts, trees, strict=True):
            for leaf, part in zip(leaves, structure.flatten_up_to(tree), strict=True):
                if graph_objects.is_object(leaf):
                    found.append(part)
        return found

    def rebuilt(self, trees):
        """The arguments with the arrays of `trees`; returns (arguments, keywords, objects and
        values as Objects.merged gives them)."""
        objects, values = self.objects.merged(self.object_parts(trees))
        copies = iter(objects)

        def value(leaf, is_dynamic, new):
            if graph_objects.is_object(leaf):
                return next(copies)
            return new if is_dynamic else leaf

        built = [
            structure.unflatten(map(value, leaves, dynamic, structure.flatten_up_to(tree)))
            for (leaves, dynamic, structure), tree in zip(self.parts, trees, strict=True)
        ]
        keywords = dict(zip(self.names, built[self.count :]))
        return built[: self.count], keywords, objects, values

    def first_leaves(self):
        """{(row, leaf) of an object's variable: number of its leaf among all the arguments'}."""
        places, numbers = {}, iter(range(10**9))
        objects = iter(self.objects.order)
        for leaves, dynamic, _ in self.parts:
            for leaf, is_dynamic in zip(leaves, dynamic):
                if graph_objects.is_object(leaf):
                    places.update((place, next(numbers)) for place in next(objects))
                elif is_dynamic:
                    next(numbers)
        return places

    def constants(self):
        """Numbers of the leaves that are constants unless they are updated: those of NNX objects
        and of Equinox modules."""
        found, number = set(self.first_leaves().values()), 0
        for value, tree in zip(self.values, self.trees):
            count = len(jax.tree.leaves(tree))
            if any(map(is_equinox_module, jax.tree.leaves(value, is_leaf=is_equinox_module))):
                found.update(range(number, number + count))
            number += count
        return found


@contextlib.contextmanager
def recorded_losses(found):
    """Appends to `found` the value of every function that jax.grad differentiates meanwhile; JAX
    passes each of them to one check. A version of JAX without this check finds nothing."""
    api = sys.modules.get("jax._src.api")
    check = getattr(api, "_check_scalar", None)
    if check is None:
        yield
        return

    def record(value):
        check(value)
        found.append(value)

    api._check_scalar = record
    try:
        yield
    finally:
        api._check_scalar = check


def is_distributed(step):
    """Returns whether a function was made by jax.pmap."""
    kinds = (type(step).__name__, getattr(step, "__qualname__", ""))
    code = getattr(step, "__code__", None) or getattr(getattr(step, "_fun", None), "__code__", None)
    return "PmapFunction" in kinds or "pmap" in getattr(code, "co_filename", "")


def signature_of(function):
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None


def check_call(step, function, arguments, keywords):
    """Raises TypeError with the step's own argument names if the arguments do not fit."""
    signature = signature_of(function)
    if signature is None:
        return
    try:
        signature.bind(*arguments, **keywords)
    except TypeError as error:
        name = getattr(function, "__name__", type(step).__name__)
        given = f"{len(arguments)} positional arguments"
        given += f" and keywords {sorted(keywords)}" if keywords else ""
        raise TypeError(f"{name}{signature}: {error} (example_arguments: {given})") from None


class Step:
    """A step and example arguments, as a function of arrays.

    function   over the trees of `call`, positional and by keyword; it returns (result, losses):
               the step's result without static leaves and, where objects are updated, a pair of
               that and the new values; `losses` are the values that are differentiated
    call       the example arguments
    offset     how many arguments stand before those that the caller gave
    is_jitted  whether jax.jit wraps the function
    updated    after tracing: [(row, leaf)] of the updated variables, in the order of the new values
    result     after tracing: the origin of each leaf of the step's result, and its structure
    """

    def __init__(self, step, arguments, keywords=None, scalars_static=False):
        if not isinstance(arguments, (tuple, list)) or hasattr(arguments, "_fields"):
            raise TypeError(
                "example_arguments: expected a tuple of the step's positional arguments, "
                f"got {type(arguments).__name__}; write (argument,) for a single one"
            )
        if not callable(step) or isinstance(step, (jax.stages.Compiled, jax.stages.Lowered)):
            raise TypeError(
                f"step: expected the function of the step, got {type(step).__name__}; "
                "give the function before lower() or compile()"
            )
        if is_distributed(step):
            raise TypeError(
                "step: jax.pmap distributes it already; give the function for one device, "
                "without pmap and its collectives"
            )
        unwrapped = Unwrapped(step)
        self.inner, self.offset = unwrapped.function, len(unwrapped.leading)
        self.filtered = unwrapped.filtered or scalars_static
        self.is_jitted = unwrapped.is_jitted
        arguments = (*unwrapped.leading, *arguments)
        keywords = {**unwrapped.keywords, **(keywords or {})}
        check_call(step, self.inner, arguments, keywords)
        declared = {at % len(arguments) for at in unwrapped.positions if at < len(arguments)}
        self.call = Call(arguments, keywords, self.filtered, declared | unwrapped.names)
        self.updated, self.result = [], None
        self.function = self.named(self.pure)

    def named(self, pure):
        """`pure` under the name and the signature of the step: JAX derives paths from them."""

        def function(*trees, **keywords):
            return pure(*trees, **keywords)

        for name in ("__module__", "__name__", "__qualname__", "__doc__"):
            if hasattr(self.inner, name):
                setattr(function, name, getattr(self.inner, name))
        function.__wrapped__ = self.inner
        return function

    @property
    def is_plain(self):
        """Returns whether the arguments are trees of arrays alone."""
        return not (self.offset or self.call.objects.objects or not all(
            all(dynamic) for _, dynamic, _ in self.call.parts))

    @property
    def arguments(self):
        """The trees of the positional arguments."""
        return tuple(self.call.trees[: self.call.count])

    @property
    def keywords(self):
        """The trees of the keyword arguments by name."""
        return dict(zip(self.call.names, self.call.trees[self.call.count :]))

    @property
    def trees(self):
        """All trees, in the order of the module's parameters."""
        return tuple(self.call.trees)

    def names(self):
        """Names of the arguments for messages; those of *args are left out."""
        signature = signature_of(self.inner)
        rows = list(signature.parameters.values()) if signature else []
        plain = [row.name for row in rows if row.kind in (row.POSITIONAL_OR_KEYWORD, row.POSITIONAL_ONLY)]
        plain = plain[: self.call.count]
        missing = [f"argument {at}" for at in range(len(plain), self.call.count)]
        return plain + missing + self.call.names

    def pure(self, *trees, **keywords):
        everything = [*trees, *(keywords[name] for name in self.call.names)]
        arguments, named, objects, values = self.call.rebuilt(everything)
        losses = []
        with recorded_losses(losses):
            result = self.inner(*arguments, **named)
        new = self.call.objects.updates(objects, values)
        self.updated = list(new)
        result = self.of_arrays(result, objects)
        return ((result, list(new.values())) if new else result), here(losses, everything)

    def of_arrays(self, result, objects):
        """The result without static leaves. Objects of the arguments are left out, since their new
        values are appended; other objects become dicts."""
        leaves, dynamic, structure = leaves_of(result, self.filtered)
        numbers = {id(copy): number for number, copy in enumerate(objects)}

        def origin(leaf, is_dynamic):
            if graph_objects.is_object(leaf):
                return ("object", numbers[id(leaf)]) if id(leaf) in numbers else ("array", None)
            return ("array", None) if is_dynamic else ("static", leaf)

        self.result = list(map(origin, leaves, dynamic)), structure

        def kept(leaf, is_dynamic):
            if graph_objects.is_object(leaf):
                return None if id(leaf) in numbers else graph_objects.values_of(leaf)
            return leaf if is_dynamic else None

        return structure.unflatten(map(kept, leaves, dynamic))

    def finished(self, result, call):
        """The result of a call from its arrays: objects of the call get their new values, and static leaves return."""
        if self.updated:
            result, new = result
            graph_objects.assign(call.objects, self.updated, new)
        origins, structure = self.result
        arrays = structure.flatten_up_to(result)
        return structure.unflatten(
            array if kind == "array" else call.objects.objects[known] if kind == "object" else known
            for (kind, known), array in zip(origins, arrays, strict=True))


def here(losses, trees):
    """The distinct values among `losses` that belong to the trace of the arguments `trees`."""
    traces = {id(getattr(leaf, "_trace", None)) for leaf in jax.tree.leaves(trees)}
    found = []
    for loss in losses:
        is_here = isinstance(loss, jax.core.Tracer) and id(getattr(loss, "_trace", None)) in traces
        if is_here and not any(loss is other for other in found):
            found.append(loss)
    return found
