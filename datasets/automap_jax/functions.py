"""The jitted functions of a step under a plan of stages and micro-batches."""

import warnings

import jax

from .operators import FOLDS, compiler_options
from .step_graph import evaluate, numbers


class Function:
    """Some nodes of one part as a jitted function of values. `donated` are the inputs that it may overwrite, `sums` the
    outputs that it adds to those of earlier micro-batches, `placed` the shardings of some values, `dropped` the inputs
    that no later function of the step uses."""

    def __init__(self, graph, free, nodes, wanted, sums=(), invariant=(), placed=()):
        own = {value for node in nodes for value in node.outputs}
        helpers, open_values = {}, [value for node in nodes for value in numbers(node)] + list(wanted)
        while open_values:
            value = open_values.pop()
            k = free.get(value)
            if k is not None and value not in own and k not in helpers:
                helpers[k] = graph.nodes[k]
                open_values += numbers(graph.nodes[k])
        nodes = [helpers[k] for k in sorted(helpers)] + list(nodes)
        if any(value in own for helper in helpers.values() for value in numbers(helper)):
            place = {id(node): k for k, node in enumerate(graph.nodes)}
            nodes.sort(key=lambda node: place[id(node)])
        made = {value for node in nodes for value in node.outputs}
        self.inputs = sorted({value for node in nodes for value in numbers(node) if value not in made}
                             | {value for value in wanted if value not in made})
        self.outputs = sorted(wanted)

        self.sums, self.donated, self.dropped, self.compiled = sorted(sums), set(), set(), {}
        self.placed = dict(placed)
        self.folds = {value: FOLDS[node.primitive.name] for node in nodes for value in node.outputs
                      if node.primitive.name in FOLDS}
        self.folds |= {value: lambda _, latest: latest for value in invariant}
        inner = {value: placed[value] for value in placed if value not in self.sums}

        def function(totals, *arrays):
            values = dict(zip(self.inputs, arrays))
            evaluate(nodes, values, inner)
            for value in self.sums:
                if value in placed:
                    values[value] = jax.lax.with_sharding_constraint(values[value], placed[value])
            for value, total in zip(self.sums, totals):
                values[value] = self.folds.get(value, jax.numpy.add)(total, values[value])
            return [values[value] for value in self.outputs]

        self.function = function

    def call(self, arrays, totals=()):
        """The outputs of arrays; `totals` are the sums so far, which are overwritten, or nothing."""
        is_first = len(totals) == 0
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Some donated buffers were not usable")
            if is_first not in self.compiled:
                donated = [1 + at for at, value in enumerate(self.inputs) if value in self.donated]
                self.compiled[is_first] = jax.jit(self.function, donate_argnums=[0, *donated],
                                                  compiler_options=compiler_options())
            return self.compiled[is_first](list(totals), *arrays)
