"""The operators of a step: its jaxpr with all calls inlined.

    graph = Graph(jax.make_jaxpr(step)(*arguments))
    values = dict(zip(graph.inputs, arrays))
    evaluate(graph.nodes, values)                        # values[number] of every result
"""

import copy
import dataclasses
import pathlib
import re
import sys

import jax
import numpy as np

CALLS = {"jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call", "remat2", "checkpoint",
         "remat"}


@dataclasses.dataclass
class Node:
    """An operator: inputs are numbers of values, or arrays. In the graph for a part of a batch, `needs_all` says that
    it has no form for a part. `source` is JAX's note of the line of the step."""

    primitive: object
    params: dict
    inputs: list
    outputs: list
    needs_all: bool = False
    source: object = None

    @property
    def label(self):
        """The operator with its line, where JAX has that of the step: "sort (train.py:12)"."""
        util = sys.modules.get("jax._src.source_info_util")
        found = re.match(r"(.+?):(\d+)", util.summarize(self.source)) if util and self.source else None
        if not found or pathlib.Path(found[1]).parent == pathlib.Path(__file__).parent:  # traced again, by layers.py
            return self.primitive.name
        return f"{self.primitive.name} ({pathlib.Path(found[1]).name}:{found[2]})"


class Constant:
    def __init__(self, value):
        self.value = value


class Graph:
    """A jaxpr with all calls and branches of constants inlined, and without what no output needs. Graphs of one step
    have equal numbers."""

    def __init__(self, closed):
        self.nodes, self.shapes, self.dtypes = [], [], []
        self.inputs = [self.add(variable.aval) for variable in closed.jaxpr.invars]
        environment = dict(zip(closed.jaxpr.invars, self.inputs))
        environment |= dict(zip(closed.jaxpr.constvars, map(Constant, closed.consts)))
        self.outputs = self.walk(closed.jaxpr, environment)
        self.drop_unused()

    def copy(self):
        """A graph with nodes of its own, which may be changed."""
        graph = copy.copy(self)
        graph.nodes = [dataclasses.replace(node, inputs=list(node.inputs)) for node in self.nodes]
        return graph

    def add(self, aval):
        self.shapes.append(getattr(aval, "shape", ()))
        self.dtypes.append(getattr(aval, "dtype", None))
        return len(self.shapes) - 1

    def walk(self, jaxpr, environment):
        def read(atom):
            return Constant(atom.val) if hasattr(atom, "val") else environment[atom]

        for equation in jaxpr.eqns:
            inputs = [read(atom) for atom in equation.invars]
            inner = equation.params.get("call_jaxpr", equation.params.get("jaxpr"))
            branch = self.known(inputs[0]) if equation.primitive.name == "cond" else None
            if branch is not None:
                inner, inputs = equation.params["branches"][int(branch)], inputs[1:]
            elif equation.primitive.name not in CALLS:
                inner = None
            if inner is not None:
                consts = map(Constant, getattr(inner, "consts", ()))
                inner = getattr(inner, "jaxpr", inner)
                names = dict(zip(inner.constvars, consts)) | dict(zip(inner.invars, inputs, strict=True))
                outputs = self.walk(inner, names)
            else:
                outputs = [self.add(variable.aval) for variable in equation.outvars]
                self.nodes.append(Node(equation.primitive, equation.params, inputs, outputs,
                                       source=equation.source_info))
            environment.update(zip(equation.outvars, outputs, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def known(self, value, depth=4):
        """The number of a constant, or of few operators on constants, such as the clamped index of a branch, or that of
        the platform; or None."""
        if isinstance(value, Constant):
            return value.value
        node = next((node for node in reversed(self.nodes) if value in node.outputs), None)
        if node is not None and node.primitive.name == "platform_index":
            backend = jax.default_backend()
            own = {backend, *(("cuda", "rocm") if backend == "gpu" else ())}
            return next((k for k, names in enumerate(node.params["platforms"])
                         if names is None or not own.isdisjoint(names)), None)
        if depth == 0 or node is None or self.shapes[value] != () or not node.inputs:
            return None
        found = [self.known(operand, depth - 1) for operand in node.inputs]
        if any(operand is None for operand in found):
            return None
        values = {}
        with jax.ensure_compile_time_eval():
            evaluate([dataclasses.replace(node, inputs=list(map(Constant, found)))], values)
        return values[value]

    def drop_unused(self):
        needed = {value for value in self.outputs if not isinstance(value, Constant)}
        kept = []
        for node in reversed(self.nodes):
            if needed & set(node.outputs):
                kept.append(node)
                needed.update(numbers(node))
        self.nodes = kept[::-1]


def operand_arrays(operands, values):
    """The arrays of operands: those of constants, or those in `values` {number: array}."""
    return [value.value if isinstance(value, Constant) else values[value] for value in operands]


def evaluate(nodes, values, shardings=()):
    """Adds the results of nodes to `values` {number: array}. `shardings` has the sharding of some of them by number."""
    for node in nodes:
        inputs = operand_arrays(node.inputs, values)
        bound = node.primitive.get_bind_params(node.params)  # older versions of JAX: (functions, parameters)
        functions, params = bound if isinstance(bound, tuple) else ((), bound)
        results = node.primitive.bind(*functions, *inputs, **params)
        values.update(zip(node.outputs, results if node.primitive.multiple_results else [results], strict=True))
        for value in node.outputs:
            if value in shardings:
                values[value] = jax.lax.with_sharding_constraint(values[value], shardings[value])


def traced(graph, nodes, shapes):
    """The closed jaxpr of a graph with other nodes of the same values, on inputs of these shapes."""
    def function(*arrays):
        values = dict(zip(graph.inputs, arrays, strict=True))
        evaluate(nodes, values)
        return operand_arrays(graph.outputs, values)

    return jax.make_jaxpr(function)(*(jax.ShapeDtypeStruct(shape, graph.dtypes[value])
                                      for value, shape in zip(graph.inputs, shapes, strict=True)))


def numbers(node):
    return [value for value in node.inputs if not isinstance(value, Constant)]


def users_of(nodes):
    """{value: the numbers of the nodes that use it}, a number for each use."""
    users = {}
    for k, node in enumerate(nodes):
        for value in numbers(node):
            users.setdefault(value, []).append(k)
    return users


def depending(jaxpr, depends):
    """Which results of a jaxpr depend on the inputs marked in `depends`, a list of booleans."""
    known = {variable for variable, is_so in zip(jaxpr.invars, depends, strict=True) if is_so}

    def reads(atoms):
        return [not hasattr(atom, "val") and atom in known for atom in atoms]

    for equation in jaxpr.eqns:
        inputs, count = reads(equation.invars), len(equation.outvars)
        found = depending_results(equation.primitive.name, equation.params, inputs, count)
        known.update(variable for variable, is_so in zip(equation.outvars, found, strict=True) if is_so)
    return reads(jaxpr.outvars)


def depending_results(name, params, depends, count):
    """Which results of an operator depend on the inputs marked in `depends`. A scan may return weights unchanged."""
    inner = params.get("call_jaxpr", params.get("jaxpr"))
    if name == "scan":
        consts, carries = params["num_consts"], params["num_carry"]
        carried, depends = slice(consts, consts + carries), list(depends)
        while True:
            found = depending(inner.jaxpr, depends)
            later = [a or b for a, b in zip(depends[carried], found[:carries], strict=True)]
            if later == depends[carried]:
                return found
            depends[carried] = later
    if name in CALLS and inner is not None:
        return depending(getattr(inner, "jaxpr", inner), depends)
    return [any(depends)] * count


def params_with_constants(whole, micro):
    """Parameters of an operator of a micro-batch, whose bodies have the scalars of the operator of the whole batch."""
    return {name: with_constants(whole[name], value) for name, value in micro.items()}


def with_constants(whole, micro):
    """The same for a parameter: a jaxpr, a tuple of them, or any other value, which stays. ValueError: the bodies have
    different operators, so that their scalars do not correspond."""
    if type(micro) is tuple:
        return tuple(map(with_constants, whole, micro)) if len(whole) == len(micro) else micro
    jaxpr = getattr(micro, "jaxpr", micro)
    if not hasattr(jaxpr, "eqns"):
        return micro
    of_whole = getattr(whole, "jaxpr", whole)
    if [a.primitive for a in of_whole.eqns] != [b.primitive for b in jaxpr.eqns]:
        raise ValueError("the step has other operators for other batches")
    equations = []
    for a, b in zip(of_whole.eqns, jaxpr.eqns):
        atoms = [x if hasattr(x, "val") and hasattr(y, "val") and np.shape(x.val) == np.shape(y.val) else y
                 for x, y in zip(a.invars, b.invars)]
        equations.append(b.replace(invars=atoms, params=params_with_constants(a.params, b.params)))
    jaxpr = jaxpr.replace(eqns=equations)
    return micro.replace(jaxpr=jaxpr) if hasattr(micro, "jaxpr") else jaxpr
